"""The baseline of a job family at work: routine is no candidate, and what no clean run printed is shown. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from diagnoser.compress import Digest, baseline
from diagnoser.compress.delta import LinePosition
from diagnoser.diagnosis.node_logs import without
from diagnoser.model import Diagnosis, Event, EventKind, Evidence, Line, Mark
from diagnoser.model.taxonomy import FailureType, Outcome

_GUESSES = ("heuristic:words", "heuristic:exception_line")
"""Who points at a line for its words alone; rules and tracebacks know better than a baseline."""
_TRIES, _NEAR, _SHOWN = 5, 80, 3


def is_clean(found: Diagnosis, events: Sequence[Event]) -> bool:
    """Whether a baseline may learn from this run: it ended with 0, and nothing in it was diagnosed."""
    ended = any(event.kind is EventKind.EXIT and event.code == 0 and not event.signal for event in events)
    return ended and found.outcome is Outcome.COMPLETED and found.type is FailureType.COMPLETED


def sharpened(
    found: Diagnosis, digest: Digest, runs: Sequence[bytes], again: Callable[[Evidence], Diagnosis]
) -> Diagnosis:
    """The verdict with the family's clean runs in mind. again: diagnoses evidence that lacks a routine line."""
    if found.outcome is Outcome.COMPLETED:
        return found
    known = baseline.of(runs)
    if not known.holds:
        why = f"no baseline: {known.runs} of {baseline.NEEDED} clean runs of this family are known"
        return replace(found, notes=(*found.notes, why))
    evidence, routine = digest.evidence(), baseline.familiar(digest.delta, known)
    for _ in range(_TRIES):
        guess = _guessed(found, evidence, routine)
        if guess is None:
            break
        evidence = without(evidence, guess)
        found = again(evidence)
    return replace(found, notes=(*found.notes, *_news(found, digest, known)))


def _guessed(found: Diagnosis, evidence: Evidence, routine: frozenset[LinePosition]) -> int | None:
    """Index of the root line when it was guessed by its words and clean runs print such lines as well."""
    root = found.root_cause
    if root is None or found.decided_by not in _GUESSES:
        return None
    for index, line in enumerate(evidence.lines):
        if (line.number, line.stream.source, line.text) == (root.line, root.source, root.text):
            return index if (line.number, line.stream) in routine else None
    return None


def _news(found: Diagnosis, digest: Digest, known: baseline.Baseline) -> list[str]:
    """Lines just before the failure, or the end, that no clean run printed, and that are not cited anyway."""
    root = found.root_cause
    cited = {one.line for one in found.evidence} | {one.line for one in found.symptoms}
    new = baseline.news(digest.delta, known)
    last = root.line if root else max((line.number for line in digest.lines), default=0)

    def tells(line: Line) -> bool:
        near = last - _NEAR < line.number <= last and line.number not in cited
        return near and line.mark < Mark.TRACEBACK and (line.number, line.stream) in new

    told = [line for line in digest.lines if tells(line)][-_SHOWN:]
    return [f"not seen in {known.runs} clean runs: line {line.number}: {line.text[:160]}" for line in told]
