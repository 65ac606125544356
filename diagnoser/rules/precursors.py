"""What happened when a collective that timed out later had begun to wait: the report comes a watchdog's timeout after.

A fault of a device or a link that training seems to survive for a step or two is dismissed as survived. If all ranks
then wait, and the watchdog reports after ten minutes, the fault at *report minus ten minutes* is no coincidence.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import Evidence, Line, Mark
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.keyword_classifier import KeywordClassifier
from diagnoser.rules.last_words import of_words
from diagnoser.rules.schema import Role

_WAITING = frozenset({FailureType.NCCL_TIMEOUT_ERROR, FailureType.NCCL_REMOTE_ERROR, FailureType.CONNECTION_ERROR})
"""What ranks report because another did not arrive: it tells of the waiting, not of what led to it."""
_NO_DEVICE = frozenset({FailureType.S3_STORAGE_ERROR, FailureType.DISK_FULL, FailureType.CONTAINER_RUNTIME_ERROR})
"""Faults that stop a process at once and say so: they do not leave the others waiting in silence."""
_WAITED = re.compile(
    r"\bran for (?P<ran>\d{1,12}) milliseconds|[Tt]imeout\(ms\) ?= ?(?P<limit>\d{1,12})"
    r"|\b[Tt]imed? ?out (?:after|waiting(?: for)?|of) (?P<count>\d{1,9})(?:\.\d{1,9})? ?"
    r"(?P<unit>ms|milliseconds?|s|sec|seconds?|min|minutes?)\b"
)
_CALM = re.compile(r"\b(?:INFO|DEBUG|[Dd]eprecat\w{0,8})\b")
_UNITS = {"ms": 0.001, "mil": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0}
_NEAR = 60.0
"""Seconds between a fault and the begin of the wait, either way: collectives are queued ahead, clocks differ."""
_SHORTEST = 20.0
"""Seconds of waiting below which "at the begin of the wait" and "just now" are the same."""


def link(candidates: Sequence[Candidate], evidence: Evidence, keywords: KeywordClassifier) -> tuple[Candidate, ...]:
    """The candidates, with those that began the wait of a collective marked as precursors, and lines that no rule
    knows added where their words tell of a device or a link at that time."""
    window = _window(candidates, evidence)
    if window is None:
        return tuple(candidates)
    linked, covered, is_known = list[Candidate](), set[int](), False
    for candidate in candidates:
        covered.add(candidate.line)
        if candidate.is_failing and _is_device(candidate.type) and evidence.lines[candidate.line].time in window:
            candidate, is_known = replace(candidate, role=Role.ROOT, precursor=True), True
        linked.append(candidate)
    if not is_known:
        linked += _from_words(evidence, covered, keywords, window)
    return tuple(sorted(linked, key=lambda c: c.line))


@dataclass(frozen=True, slots=True)
class _Window:
    """Seconds since the epoch between which something happened, both included."""

    begin: float
    end: float

    def __contains__(self, time: float) -> bool:
        return self.begin <= time <= self.end


def _window(candidates: Sequence[Candidate], evidence: Evidence) -> _Window | None:
    """When the first reported wait began; None without a time or a timeout."""
    reports = []
    for candidate in candidates:
        line = evidence.lines[candidate.line]
        if candidate.type not in _WAITING:
            continue
        if line.time <= 0:
            continue
        waited = _waited(line.body)
        if waited >= _SHORTEST:
            reports.append((line.time, waited))
    if not reports:
        return None
    reported, waited = min(reports)
    near = min(_NEAR, waited / 2)
    return _Window(reported - waited - near, reported - waited + near)


def _waited(body: str) -> float:
    """Seconds that the report says were waited; the time that it really took outweighs the limit."""
    wait = min(_WAITED.finditer(body[:2048]), key=lambda wait: wait["ran"] is None, default=None)
    if wait is None:
        return 0.0
    if wait["count"]:
        return int(wait["count"]) * _UNITS[wait["unit"][:3]]
    return int(wait["ran"] or wait["limit"]) / 1000


def _from_words(
    evidence: Evidence, covered: set[int], keywords: KeywordClassifier, window: _Window
) -> Iterator[Candidate]:
    if not any(0 < point.time < window.begin for point in evidence.progress):
        return  # the first collective of all: what is printed at the start of a run is no fault
    for index, line in enumerate(evidence.lines):
        if index in covered:
            continue
        if line.time not in window:
            continue
        kind = _complaint(line, keywords)
        if kind is None:
            continue
        if _is_device(kind):
            why = "its words speak of a fault at the moment from which a collective waited until it timed out"
            yield replace(of_words(index, line, kind, why), precursor=True)


def _complaint(line: Line, keywords: KeywordClassifier) -> FailureType | None:
    """What a line complains of; None for one in a calm voice."""
    if line.mark is not Mark.SEVERITY:
        return None
    if _CALM.search(line.body):
        return None
    return keywords.says(line.body)


def _is_device(kind: FailureType) -> bool:
    if category_of(kind) is not Category.INFRASTRUCTURE:
        return False
    return kind not in _WAITING | _NO_DEVICE
