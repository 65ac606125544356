"""What a person can do about lines that belong to no job: lines for the mapping file, or a setting of the shipper.

Lines are proposed only where they are proved: with them, the labels that came in have a place.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from diagnoser.ingest import mapping, protocols
from diagnoser.ingest.batch import Labels, Place, RecordDefaults
from diagnoser.ingest.mapping import canonical
from diagnoser.model import JOB_ID, UnplacedReason
from diagnoser.model.errors import RuleFaults

_LIKELY = [
    "job",
    "run",
    "experiment",
    "training",
    "workload",
    "task",
    "app",
    "name",
    "pod",
    "container",
    "unit",
    "file",
]
"""Words in the names of labels that tell workloads apart, the likeliest first."""
_UNLIKELY = re.compile(r"level|severity|time|date|host|node|cluster|region|zone|_ip$|version|stream|source|message")
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w./-]*")
_LAST_ID = "([A-Za-z0-9][A-Za-z0-9._:@+=-]*)[^A-Za-z0-9]*$"
_TRIED = 40
"""Labels that are tried: a record may have thousands."""

_KAFKA = "Make the job the key of the message, or add a header: diagnoser.job"
_SETTING = "Send a label or field diagnoser.job with the name of the job"

_OTHERS = {
    UnplacedReason.UNREADABLE: "Send one JSON object a record, with the line in its field message",
    UnplacedReason.REFUSED: "Logs of nodes need a token with the scope agent, jobs of a cluster one of that cluster; "
    "a topic that no job can write to is read with --vouch",
    UnplacedReason.NOT_STORED: "The database cannot hold these lines; the reason above says what is too much",
}


@dataclass(frozen=True, slots=True)
class MappingHint:
    """mapping_lines: for DIAGNOSER_MAPPING, "" where no line of it helps. setting: what to change at the shipper."""

    mapping_lines: str
    setting: str


def mapping_hint(labels: Labels, reason: UnplacedReason, protocol: str) -> MappingHint:
    """What would give lines with these labels a place. protocol: as ``UnplacedStream`` has it."""
    if reason in _OTHERS:
        return MappingHint("", _OTHERS[reason])
    if reason in (UnplacedReason.NO_JOB, UnplacedReason.NOT_A_JOB_ID):
        lines = next(filter(lambda text: _places(text, labels), _proposals(labels)), "")
        return MappingHint(lines, _settings().get(protocol, _SETTING))
    field = reason.value.removeprefix("bad_")
    return MappingHint("", f"Send a usable {field}, or none: its label is one that says outright what the {field} is")


def _settings() -> dict[str, str]:
    """What to change at the shipper, by the format in which its lines come."""
    settings = {"kafka": _KAFKA}
    for protocol in protocols.PROTOCOLS:
        settings |= {read.name: read.hint or _SETTING for read in protocol.formats.values()}
    return settings


def _proposals(labels: Labels) -> Iterator[str]:
    """Each label as the job, the likeliest first: as it is, or else the part at its end that can be a name."""
    usable = list[tuple[str, str]]()
    for name, value in labels[:_TRIED]:
        if not value:
            continue
        if _UNLIKELY.search(canonical(name)):
            continue
        if "{" not in name:  # would be a template
            usable.append((name, value))

    def order(label: tuple[str, str]) -> tuple[bool, int]:
        name = canonical(label[0])
        likely = next((place for place, word in enumerate(_LIKELY) if word in name), len(_LIKELY))
        return not re.fullmatch(JOB_ID, label[1]), likely

    usable.sort(key=order)
    for name, value in usable:
        if re.fullmatch(JOB_ID, value):
            yield f"job:\n  - {_yaml(name)}\n"
        else:
            yield f"job:\n  - name: {_yaml(name)}\n    match: '{_LAST_ID}'\n"


def _places(text: str, labels: Labels) -> bool:
    try:
        proposed = mapping.load("proposal", text)
    except RuleFaults:
        return False
    return isinstance(proposed.attribute(labels, RecordDefaults()), Place)


def _yaml(name: str) -> str:
    """A name as YAML reads it as a text."""
    return name if _PLAIN_NAME.fullmatch(name) else orjson.dumps(name).decode()
