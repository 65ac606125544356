"""Compares a verdict with the clean runs of its job family: what they print too is no cause. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from diagnoser.compress import Digest, baseline
from diagnoser.diagnosis.node_logs import without
from diagnoser.model import Baseline, Diagnosis, Diff, Event, EventKind, Evidence, EvidenceLine, NewLine
from diagnoser.model.taxonomy import FailureType, Outcome

RUNS_NEEDED = 3
"""Clean runs needed to change a verdict; new lines are shown from the first clean run on."""
LINES_SHOWN = 20
_GUESSES = ("heuristic:words", "heuristic:exception_line")
"""Deciders that pick a line for its words alone; rules and tracebacks outrank a baseline."""
_GUESSES_MAX = 5


def is_clean(verdict: Diagnosis, events: Sequence[Event]) -> bool:
    """Whether a baseline may learn from this run: it ended with 0, and nothing in it was diagnosed."""
    ended = any(event.kind is EventKind.EXIT and event.code == 0 and not event.signal for event in events)
    return ended and verdict.outcome is Outcome.COMPLETED and verdict.type is FailureType.COMPLETED


def apply_baseline(
    verdict: Diagnosis, digest: Digest, clean_runs: Baseline, diagnose_again: Callable[[Evidence], Diagnosis]
) -> Diagnosis:
    """The verdict without guesses at lines that clean runs print too, and with the lines that none of them prints.

    diagnose_again: the verdict on evidence that lacks such a line.
    """
    if verdict.outcome is Outcome.COMPLETED or not clean_runs.runs:
        return verdict
    diff, evidence = baseline.diff(digest, clean_runs), digest.evidence
    for _ in range(_GUESSES_MAX if diff.runs >= RUNS_NEEDED else 0):
        guess = _guess_at_known_line(verdict, evidence, diff)
        if guess is None:
            break
        evidence = without(evidence, guess)
        verdict = diagnose_again(evidence)
    new = sorted(diff.new[:LINES_SHOWN], key=lambda added: (added.line.time, added.line.stream, added.line.number))
    return replace(verdict, new_lines=tuple(_cited(added, diff.runs) for added in new), clean_runs=diff.runs)


def _guess_at_known_line(verdict: Diagnosis, evidence: Evidence, diff: Diff) -> int | None:
    """Index of the root line if it was guessed from its words and clean runs print such lines too."""
    root = verdict.root_cause
    if root is None or verdict.decided_by not in _GUESSES:
        return None
    for index, line in enumerate(evidence.lines):
        if (line.number, line.stream.source, line.text) == (root.line, root.source, root.text):
            return index if (line.number, line.stream) in diff.known else None
    return None


def _cited(added: NewLine, runs: int) -> EvidenceLine:
    line, times = added.line, f"{added.count} lines, " if added.count > 1 else ""
    rank, stream = line.known_rank, line.stream
    never = "not in the one clean run" if runs == 1 else f"in none of {runs} clean runs"
    usually = f"where a clean run prints at most {added.usual}" if added.usual else never
    return EvidenceLine(line.number, line.text, times + usually, rank, stream.source, stream.provenance)
