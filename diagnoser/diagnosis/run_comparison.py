"""A run beside another one, mostly the last that went well: what it prints, and what it was started with. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from diagnoser.compress import AttemptLog, baseline
from diagnoser.compress.digest import Digest
from diagnoser.compress.lines import body_of
from diagnoser.model import Baseline, CleanRun, NewLine, Stage, Stream, Template
from diagnoser.model.choice import single

GONE = 20
"""Templates listed that the run does not print any more."""
_LEAST = 2
"""Lines of a template from which its absence means something."""

_READ = 600
"""Characters of a line that are read."""
_VERSIONS = re.compile(
    r"(?i)\b(nccl|rccl|cuda|rocm|cudnn|python|pytorch|torch|transformers|deepspeed|megatron[-_]core|apex|flash[-_]attn|"
    r"transformer[-_ ]engine|triton|xformers|accelerate|lightning|numpy|nemo|jax|jaxlib|flax|ofed|libfabric|"
    r"aws-ofi-nccl|driver)\b(?: driver)?(?: runtime)?(?: version)?[ =:]{1,3}\(?v?(\d{1,4}\.\d[\w.+-]{0,40})"
)
_PINNED = re.compile(r"(?:^|[\s,'\"])([A-Za-z][\w.-]{0,60})==(\d[\w.+-]{0,40})")
"""As pip lists packages."""
_COMMIT = re.compile(r"(?i)\b(?:git[ _-]?(?:hash|sha|commit|revision)?|commit)[ :=]{1,3}([0-9a-f]{7,40})\b")
_DOTTED = re.compile(r"(?:^|\s)([A-Za-z_][\w.-]{1,60}) \.{3,} ?(\S.{0,200})$")
"""As Megatron prints its arguments."""
_VALUE = r"('[^']{0,200}'|\"[^\"]{0,200}\"|\[[^\]]{0,200}\]|[^\s,;)}]{1,120})"
_ALONE = re.compile(rf"^\s*([A-Za-z_][\w.-]{{1,60}})\s?[=:](?!=)\s?{_VALUE},?$")
_PAIR = re.compile(rf"(?:^|[\s,({{])([A-Za-z_][\w.-]{{1,60}})=(?!=){_VALUE}")
_PLACES = {"addr", "address", "device", "gpu", "host", "hostname", "ip", "master_addr", "master_port", "node", "port"}
_RANKS = {"global_rank", "group_rank", "local_rank", "node_rank", "pid", "rank", "ranks", "thread", "tid"}
_RUNS = {"id", "job_id", "log_dir", "name", "rdzv_endpoint", "rdzv_id", "restart_count", "run_id", "uuid"}
_TIMES = {"date", "elapsed", "epoch", "eta", "grad_norm", "iter", "iteration", "loss", "step", "time", "timestamp"}
_WORDS = {"critical", "debug", "error", "file", "info", "level", "line", "msg", "note", "warning"}
_NEVER = _PLACES | _RANKS | _RUNS | _TIMES | _WORDS
"""What is different in each run, or is no setting."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Name -> value. What a run says in two ways is left out."""

    versions: Mapping[str, str]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SettingChange:
    """before, after: "" where that run does not say it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RunComparison:
    """new: lines of which the other run printed none alike, or far fewer; the most telling first. gone: what it printed
    and this one does not, most frequent first. versions, settings: what differs, as far as both logs say it.
    """

    new: tuple[NewLine, ...]
    gone: tuple[Template, ...]
    versions: tuple[SettingChange, ...]
    settings: tuple[SettingChange, ...]


def compare(log: AttemptLog, other: AttemptLog, name: str) -> RunComparison:
    """name: of the other run. Takes a second for the largest logs."""
    printed = {shape: stat.count for shape, stat in other.delta.shapes.items()}
    found = baseline.diff(log.digest, Baseline((CleanRun(name, other.delta.lines, printed),))).new
    now, then = run_settings(log.digest), run_settings(other.digest)
    return RunComparison(
        tuple(new for new in found if new.usual or baseline.shape_of(new.line.text) not in printed),
        tuple(_gone(log, other)),
        tuple(changes(then.versions, now.versions)),
        tuple(changes(then.settings, now.settings)),
    )


def _gone(log: AttemptLog, other: AttemptLog) -> list[Template]:
    mine = log.delta.shapes
    gone = []
    for template in other.digest.templates:
        if template.count < _LEAST:
            continue
        if not mine.keys() & set(map(baseline.shape_of, template.samples)):
            gone.append(template)
    return gone[:GONE]


def run_settings(digest: Digest) -> RunSettings:
    """Read the lines that came before the first step of their stream."""
    starts = _first_steps(digest)
    texts = []
    for stat in digest.delta.shapes.values():
        number, stream = stat.first
        if number >= starts.get(stream, number + 1):
            continue
        for line in {stat.first_text, stat.last_text}:
            _, body = body_of(line)
            texts.append(body.decode("utf-8", "replace")[:_READ])
    return RunSettings(
        _agreed(chain.from_iterable(map(_versions, texts))), _agreed(chain.from_iterable(map(_settings, texts)))
    )


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[SettingChange]:
    """List what differs: first what both runs say."""
    changes = []
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            changes.append(SettingChange(name, before.get(name, ""), after.get(name, "")))
    return sorted(changes, key=lambda change: "" in (change.before, change.after))


def _first_steps(digest: Digest) -> dict[Stream, int]:
    """Stream -> number of its first line about training."""
    first: dict[Stream, int] = {}
    for stream, point in digest.placed_progress:
        if point.stage is Stage.TRAIN:
            first[stream] = min(point.line, first.get(stream, point.line))
    return first


def _versions(text: str) -> Iterator[tuple[str, str]]:
    for found in (*_VERSIONS.finditer(text), *_PINNED.finditer(text)):
        yield found[1].lower().replace("_", "-").replace(" ", "-"), found[2].rstrip(".,")
    if commit := _COMMIT.search(text):
        yield "commit", commit[1]


def _settings(text: str) -> Iterator[tuple[str, str]]:
    if dotted := _DOTTED.search(text):
        yield dotted[1], dotted[2].strip()
        return
    if alone := _ALONE.match(text):
        yield from _telling(alone[1], alone[2])
        return
    pairs = _PAIR.findall(text)
    if len(pairs) > 1:
        for name, value in pairs:
            yield from _telling(name, value)


def _telling(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name.lower() not in _NEVER:
        yield name, value.strip("'\"")


def _agreed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, set[str]] = {}
    for name, value in pairs:
        values.setdefault(name, set()).add(value)
    return single(values)
