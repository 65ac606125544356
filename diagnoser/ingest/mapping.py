"""Which labels or attributes of a stream name its job, attempt, rank, node, cluster and source.

A field takes the first value that there is: of our own names (``diagnoser.job``) and those of the operator's file, then
what the request's query says, then the names of the presets. What is said outright must be usable; what a preset reads
out of labels that were made for something else is passed over when it is not.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from pydantic import Field as Describe
from pydantic import ValidationError

from diagnoser.ingest.batch import Labels, Place, RecordDefaults, Unattributed, target
from diagnoser.ingest.presets import KUBERNETES, PLAIN, PRESETS, SENDER_NAMES, Candidates, Field
from diagnoser.ingest.senders import doubts, vouched_source
from diagnoser.model import JOB_ID, Stream, UnplacedReason, expressions
from diagnoser.model.errors import BadInput, Fault, RuleFaults
from diagnoser.model.yaml_loader import StrictModel, locate, read

FIELDS: tuple[Field, ...] = get_args(Field)
"""In the order in which they are found: a template may name those before its own."""
OWN = ("diagnoser.", "diagnoser.io/")
"""Before the name of a field: our own name for it, which wins."""
NAME_LENGTH = 253  # of a host name
KEY_LENGTH = 256
LABELS_LENGTH = 16 << 10
"""Characters of the labels of one stream that are kept to be recognised again."""
STREAMS_KNOWN = 8192
NAMES_KNOWN = 65_536
EMPTY = frozenset({""})
NO_VALUES = frozenset({"", "-", "none", "null", "undefined", "unknown"})
"""Values that say that there is none, in labels that were not made for us."""
DEFAULT_SOURCE = Stream().source
DOUBTED_SENDER = "what the record says of its sender"
"""Who decides a source that the record does not bear out."""

_OTHER = re.compile(r"[^a-z0-9]+")
_OUTER = re.compile(r"(?:resources?|resource_attributes|attributes|fields|meta)_")
_LABEL = re.compile(r"(?:(?:kubernetes|k8s|docker|container)_)*(?:pod_|job_)?(?:labels?|annotations?)_")
_PART = re.compile(r"\{([^{}]+)\}")
_BAD: Mapping[Field, UnplacedReason] = {
    "cluster": UnplacedReason.BAD_CLUSTER,
    "node": UnplacedReason.BAD_NODE,
    "attempt": UnplacedReason.BAD_ATTEMPT,
    "rank": UnplacedReason.BAD_RANK,
    "job": UnplacedReason.NOT_A_JOB_ID,
    "source": UnplacedReason.BAD_SOURCE,
}

_LEAST: Mapping[Field, int] = {"attempt": 1, "rank": -1}
"""The fields that are numbers, each with its least value."""


def canonical(name: str) -> str:
    """The form in which names are compared: ``k8s.pod.name`` and ``K8S_POD_NAME`` are one."""
    return _OTHER.sub("_", name.lower()).strip("_")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to find the value of a field.

    name: the label that must be there; "" where only the template tells. pattern: what its value must match. template:
    literals and, at odd places, the names of labels, of fields found before, or numbers of groups of the pattern; empty
    for the value itself, or the pattern's first group. plus: added to a number. unless: a field that must be unknown.
    origin: who says so, for people.
    """

    name: str = ""
    pattern: Any = None
    template: tuple[str, ...] = ()
    plus: int = 0
    unless: Field | None = None
    origin: str = ""

    @property
    def names(self) -> set[str]:
        """Labels that it reads, in their canonical form."""
        names = set(filter(_is_label, self.template[1::2]))
        if self.name:
            names.add(self.name)
        return names

    def value(self, labels: Mapping[str, str], known: Mapping[Field, str], absent: frozenset[str]) -> str:
        """Empty where it does not apply. absent: values, in lower case, that are none."""
        if self.unless and known.get(self.unless):
            return ""
        value, groups = labels.get(self.name, ""), ()
        if self.name and value.lower() in absent:
            return ""
        if self.pattern:
            match = self.pattern.search(value)
            if not match:
                return ""
            groups = match.groups("")
            value = _matched(match)
        if self.template:
            value = self._filled(labels, known, groups, absent)
        if self.plus:
            return self._added(value)
        return value

    def _added(self, value: str) -> str:
        """The number with ``plus`` on it; unchanged where it is no number of at most nine digits."""
        if re.fullmatch(r"\d{1,9}", value):
            return str(int(value) + self.plus)
        return value

    def _filled(
        self,
        labels: Mapping[str, str],
        known: Mapping[Field, str],
        groups: Sequence[str],
        absent: frozenset[str],
    ) -> str:
        parts = list(self.template)
        for index in range(1, len(parts), 2):
            part = parts[index]
            if part.isdecimal():
                parts[index] = groups[int(part) - 1]
            elif part in FIELDS:
                parts[index] = known.get(part, "")
            else:
                parts[index] = labels.get(part, "")
            if parts[index].lower() in absent:
                return ""
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a field is. origin: who says so. labels: those that were read, as they were received. fault: why what was
    said cannot be used; the value is "" then."""

    value: str
    origin: str
    labels: tuple[str, ...]
    fault: str = ""


class _FieldValue(NamedTuple):
    """What is found of a field. fault: why what was said cannot be used. by: who says so, None for the query, or
    where nobody says anything."""

    value: str = ""
    fault: str = ""
    by: Candidate | None = None


class _CandidateFile(StrictModel):
    """A candidate as a file writes it."""

    name: str = Describe("", max_length=KEY_LENGTH)
    match: str = ""
    value: str = ""
    plus: int = 0
    unless: Field | None = None

    @classmethod
    def of(cls, item: object) -> "_CandidateFile":
        """A text alone is a name, or a template."""
        if isinstance(item, str):
            return cls(name=item)
        return cls.model_validate(item)


class _MappingFile(StrictModel):
    """An operator's file. presets: those that are tried after the names of the file; all of them by default."""

    presets: tuple[str, ...] = tuple(PRESETS)
    cluster: tuple[str | _CandidateFile, ...] = ()
    node: tuple[str | _CandidateFile, ...] = ()
    attempt: tuple[str | _CandidateFile, ...] = ()
    rank: tuple[str | _CandidateFile, ...] = ()
    job: tuple[str | _CandidateFile, ...] = ()
    source: tuple[str | _CandidateFile, ...] = ()


class FieldMapping:
    """The mapping of a site. ``attribute`` remembers what it said: a shipper sends the same labels again and again.

    stated: candidates that win over a request's query; derived: those that do not.

    Labels and annotations of a pod are written by a tenant. They give rank and attempt, what the operator's file asks
    of them, and what the Kubernetes preset makes an id of together with the namespace; never the source, from which
    the provenance follows.
    """

    def __init__(
        self, stated: Mapping[Field, Sequence[Candidate]], derived: Mapping[Field, Sequence[Candidate]]
    ) -> None:
        self._stated: dict[Field, tuple[Candidate, ...]] = {}
        for field in FIELDS:
            ours = [Candidate(canonical(prefix + field), origin="our own name") for prefix in OWN]
            self._stated[field] = (*ours, *stated.get(field, ()))
        self._derived = {field: tuple(derived.get(field, ())) for field in FIELDS}
        self._names = _names(self._stated, self._derived).union(*SENDER_NAMES.values())
        counts = {field: self._stated[field] + self._derived[field] for field in _LEAST}
        of_kubernetes = _no_candidates()
        _add(of_kubernetes, KUBERNETES, "")
        of_pods = _names(*map(_without_source, (stated, of_kubernetes, counts)))
        self._pod_labels = self._names & of_pods
        self._prefixes = frozenset(itertools.chain.from_iterable(map(_prefixes, self._names)))
        self._known_places = lru_cache(STREAMS_KNOWN)(self._attribute)
        self._known_name = lru_cache(NAMES_KNOWN)(self._name)
        self._known_holder = lru_cache(NAMES_KNOWN)(self._holds)

    def name(self, key: str) -> str:
        """The name by which the mapping reads the label ``key``; "" when it reads no such label."""
        if len(key) > KEY_LENGTH:
            return ""
        return self._known_name(key)

    def may_hold_names(self, key: str) -> bool:
        """Whether an object under ``key`` may hold labels that the mapping reads."""
        if len(key) > KEY_LENGTH:
            return False
        return self._known_holder(key)

    def attribute(self, labels: Labels, defaults: RecordDefaults) -> Place | Unattributed:
        """Where lines with these labels go. Labels that the mapping does not read are best left out."""
        if sum(len(name) + len(value) for name, value in labels) > LABELS_LENGTH:
            return self._attribute(labels, defaults)
        return self._known_places(labels, defaults)

    def trace(self, labels: Labels, defaults: RecordDefaults) -> dict[Field, "Decision"]:
        """Of each field that anything is said of: its value, and what decided it."""
        values = self._values(labels)
        decisions: dict[Field, Decision] = {}
        for field, found in self._field_values(values, defaults).items():
            if found.value or found.fault:
                decisions[field] = self._decision(found, labels)
        if "source" in decisions:
            source = vouched_source(decisions["source"].value, values)
            if source != decisions["source"].value:
                decisions["source"] = replace(decisions["source"], value=source, origin=DOUBTED_SENDER)
        return decisions

    def _decision(self, found: _FieldValue, labels: Labels) -> Decision:
        if found.by is None:
            return Decision(found.value, "query", (), found.fault)
        read = found.by.names
        keys = tuple(key for key, _ in labels if self.name(key) in read)
        return Decision(found.value, found.by.origin, keys, found.fault)

    def node_doubts(self, labels: Labels, defaults: RecordDefaults) -> str:
        """Why lines with these labels would prove nothing about their node, or too much; "" where neither is so."""
        values = self._values(labels)
        return doubts(self._field_values(values, defaults)["source"].value, values)

    def _holds(self, key: str) -> bool:
        name = canonical(key)
        if name in self._prefixes:
            return True
        if _LABEL.match(f"{name}_labels_"):
            return True
        return _OUTER.match(f"{name}_") is not None

    def _name(self, key: str) -> str:
        name = canonical(key)
        if outer := _OUTER.match(name):
            name = name[outer.end() :]
        if name in self._names:
            return name
        label = _LABEL.match(name)
        if label is None:
            return ""
        inner = name[label.end() :]
        return inner if inner in self._pod_labels else ""

    def _values(self, labels: Labels) -> dict[str, str]:
        """By canonical name. A label with the whole name wins over one of a pod that is called the same."""
        values: dict[str, str] = {}
        for key, value in labels:
            name = self.name(key)
            if not name:
                continue
            if name not in values or name == canonical(key):
                values[name] = value
        return values

    def _attribute(self, labels: Labels, defaults: RecordDefaults) -> Place | Unattributed:
        values = self._values(labels)
        found = self._field_values(values, defaults)
        for field in FIELDS:
            if found[field].fault:
                return Unattributed(_BAD[field], found[field].fault, labels)
        known: dict[Field, str] = {field: found[field].value for field in FIELDS}
        source, rank = vouched_source(known["source"], values) or DEFAULT_SOURCE, int(known["rank"] or -1)
        stream = defaults.stream_of(source, known["node"], rank)
        if known["job"] and found["source"].by in self._derived["source"]:
            # What a label that was made for something else says vouches for no line of a job.
            stream = Stream(source, known["node"], rank)
        attempt = int(known["attempt"]) if known["attempt"] else None
        destination = target(known["job"], attempt, known["cluster"], stream)
        if not destination.job:
            return Unattributed(UnplacedReason.NO_JOB, _no_job(labels), labels)
        return Place(destination, stream)

    def _field_values(self, values: Mapping[str, str], defaults: RecordDefaults) -> dict[Field, _FieldValue]:
        """What is found of each field. values: of the labels, by canonical name."""
        found: dict[Field, _FieldValue] = {}
        known: dict[Field, str] = {}
        for field in FIELDS:
            found[field] = self._value(field, values, known, _default(field, defaults))
            known[field] = found[field].value
        return found

    def _value(self, field: Field, labels: Mapping[str, str], known: Mapping[Field, str], default: str) -> _FieldValue:
        for candidate in self._stated[field]:
            if value := candidate.value(labels, known, EMPTY):
                fault = _fault(field, value)
                return _FieldValue("" if fault else value, fault, candidate)
        if default:
            return _FieldValue(default)
        unusable = _FieldValue()
        for candidate in self._derived[field]:
            if value := candidate.value(labels, known, NO_VALUES):
                fault = _fault(field, value)
                if not fault:
                    return _FieldValue(value, "", candidate)
                if field == "job" and not unusable.fault:
                    unusable = _FieldValue("", fault, candidate)
        return unusable


def _is_label(part: str) -> bool:
    """Whether the name in a template is a label's: no number of a group, and no field found before."""
    if part.isdecimal():
        return False
    return part not in FIELDS


def _matched(match: Any) -> str:
    """The pattern's first group; all of the match where it has none."""
    first: str = next(iter(match.groups("")), match[0])
    return first


def _names(*orders: Mapping[Field, Iterable[Candidate]]) -> frozenset[str]:
    """Labels that these candidates read, in their canonical form."""
    names = set[str]()
    for order in orders:
        for candidates in order.values():
            names.update(*(candidate.names for candidate in candidates))
    return frozenset(names)


def _without_source(order: Mapping[Field, Sequence[Candidate]]) -> dict[Field, Sequence[Candidate]]:
    """No label of a pod says the source: the provenance follows from it."""
    return {field: candidates for field, candidates in order.items() if field != "source"}


def _prefixes(name: str) -> Iterator[str]:
    """``a_b_c`` -> ``a`` and ``a_b``: an object that is called so may hold the label."""
    parts = name.split("_")
    for count in range(1, len(parts)):
        yield "_".join(parts[:count])


def _default(field: Field, defaults: RecordDefaults) -> str:
    """What the query says; "" where it says nothing."""
    stream = defaults.stream
    if field == "rank":
        return str(stream.rank) if stream.rank >= 0 else ""
    if field == "source":
        return stream.source if stream.source != DEFAULT_SOURCE else ""
    values: dict[Field, str] = {
        "cluster": defaults.cluster,
        "node": stream.node,
        "attempt": str(defaults.attempt or ""),
        "job": defaults.job,
    }
    return values[field]


def _fault(field: Field, value: str) -> str:
    """Why ``value`` cannot be one of the field; "" when it can."""
    if field == "job":
        if re.fullmatch(JOB_ID, value):
            return ""
        return f"not a job id: {value[:40]!r}"
    if field in _LEAST:
        return _count_fault(field, value)
    if value.isprintable() and len(value) <= NAME_LENGTH:
        return ""
    return f"{field} is not a name: {value[:40]!r}"


def _count_fault(field: Field, value: str) -> str:
    try:
        number = int(value)
    except ValueError:
        return f"{field} is not a whole number: {value[:40]!r}"
    if _LEAST[field] <= number < 1 << 31:
        return ""
    return f"{field} is out of range: {value[:40]}"


def value_of(decision: Decision | None) -> str:
    """ "" where the labels say nothing of the field."""
    return decision.value if decision else ""


def _no_job(labels: Labels) -> str:
    names = ", ".join(name for name, _ in labels[:8])
    if not names:
        return "no job: no label that the mapping reads was sent"
    return f"no job: none of {names} names one"


def preset(*names: str) -> FieldMapping:
    """The shipped mapping with these presets. Raises KeyError for a name that is none of ``PRESETS``."""
    return FieldMapping({}, _derived(names))


def _derived(names: Iterable[str]) -> dict[Field, list[Candidate]]:
    derived = _no_candidates()
    for name in names:
        _add(derived, PRESETS[name], f"preset {name}")
    _add(derived, PLAIN, "plain name")
    return derived


def _no_candidates() -> dict[Field, list[Candidate]]:
    return {field: [] for field in FIELDS}


def _add(order: dict[Field, list[Candidate]], shipped: Candidates, origin: str) -> None:
    """Add the shipped candidates of each field behind those that are there."""
    for field in FIELDS:
        for item in shipped.get(field, ()):
            order[field].append(_candidate(_CandidateFile.of(item), origin))


def load(path: str, text: str) -> FieldMapping:
    """The mapping of an operator's file. Raises RuleFaults with all of its faults."""
    file, faults = read(path, text, _MappingFile)
    stated = _no_candidates()
    if file is not None:
        for index, name in enumerate(file.presets):
            if name not in PRESETS:
                line = locate(text, "presets", index)
                faults.append(Fault(path, line, f"no preset {name!r}: there are {', '.join(PRESETS)}"))
        for field in FIELDS:
            for index, item in enumerate(getattr(file, field)):
                try:
                    stated[field].append(_candidate(_CandidateFile.of(item), path))
                except (ValueError, ValidationError, BadInput) as error:
                    faults.append(Fault(path, locate(text, field, index), f"{field}: {error}"))
    if file is None or faults:
        raise RuleFaults(faults)
    return FieldMapping(stated, _derived(file.presets))


def _candidate(item: _CandidateFile, origin: str) -> Candidate:
    """Raises ValueError or BadInput for one that can never apply. A name with braces is a template."""
    name, value = item.name, item.value
    if "{" in name:
        name, value = "", name
    pattern: Any = None
    groups = 0
    if item.match:
        pattern = expressions.compiled(item.match)
        groups = pattern.groups
        if not name:
            raise ValueError("match needs a name, whose value is matched")
    if not name and not value:
        raise ValueError("a candidate needs a name or a value")
    return Candidate(canonical(name), pattern, _template(value, groups), item.plus, item.unless, origin)


def _template(value: str, groups: int) -> tuple[str, ...]:
    """Literals and, at odd places, names. Raises ValueError."""
    if not value:
        return ()
    parts = _PART.split(value)
    if not set("{}").isdisjoint("".join(parts[::2])):
        raise ValueError(f"{value!r} holds a brace that is not one of a pair around a name")
    for index in range(1, len(parts), 2):
        part = parts[index]
        if part.isdecimal() and not 1 <= int(part) <= groups:
            raise ValueError(f"{value!r} takes group {part} of a pattern that has {groups}")
        if _is_label(part):
            parts[index] = canonical(part)
    return tuple(parts)


DEFAULT = preset(*PRESETS)
