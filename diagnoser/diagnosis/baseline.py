"""Compares a verdict with the clean runs of its job family: what they print too is no cause. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from diagnoser.compress import Digest, baseline
from diagnoser.diagnosis.node_logs import without
from diagnoser.model import LIKELY_LINE, Baseline, Diagnosis, Diff, Event, EventKind, Evidence, EvidenceLine, NewLine
from diagnoser.model.taxonomy import FailureType, Outcome

RUNS_NEEDED = 3
"""Clean runs needed to change a verdict; new lines are shown from the first clean run on."""
LINES_SHOWN = 20
_GUESSES = ("heuristic:words", "heuristic:exception_line", LIKELY_LINE)
"""Deciders that pick a line for its words alone; rules and tracebacks outrank a baseline."""
_GUESSES_MAX = 5


def is_clean(verdict: Diagnosis, events: Sequence[Event]) -> bool:
    """Whether a baseline may learn from this run: it ended with 0, and nothing in it was diagnosed or is in doubt."""
    if verdict.needs_review:
        return False
    if (verdict.outcome, verdict.type) != (Outcome.COMPLETED, FailureType.COMPLETED):
        return False
    return any((event.kind, event.code, bool(event.signal)) == (EventKind.EXIT, 0, False) for event in events)


def apply_baseline(
    verdict: Diagnosis, digest: Digest, clean_runs: Baseline, diagnose_again: Callable[[Evidence], Diagnosis]
) -> Diagnosis:
    """The verdict without guesses at lines that clean runs print too, and with the lines that none of them prints.

    diagnose_again: the verdict on evidence that lacks such a line.
    """
    if verdict.outcome is Outcome.COMPLETED:
        return verdict
    if not clean_runs.runs:
        return verdict
    diff, evidence = baseline.diff(digest, clean_runs), digest.evidence
    for _ in range(_GUESSES_MAX):
        guess = _guess_at_known_line(verdict, evidence, diff)
        if guess is None or diff.runs < RUNS_NEEDED:
            break
        evidence = without(evidence, guess)
        verdict = diagnose_again(evidence)
    new = sorted(diff.new[:LINES_SHOWN], key=lambda added: (added.line.time, added.line.stream, added.line.number))
    return replace(verdict, new_lines=tuple(_cited(added, diff.runs) for added in new), clean_runs=diff.runs)


def _guess_at_known_line(verdict: Diagnosis, evidence: Evidence, diff: Diff) -> int | None:
    """Index of the root line if it was guessed from its words and clean runs print such lines too."""
    root = verdict.root_cause
    if root is None:
        return None
    if verdict.decided_by not in _GUESSES:
        return None
    for index, line in enumerate(evidence.lines):
        if (line.number, line.stream.source, line.text) == (root.line, root.source, root.text):
            if (line.number, line.stream) in diff.known:
                return index
            return None
    return None


def _cited(added: NewLine, runs: int) -> EvidenceLine:
    line, why = added.line, f"in none of {runs} clean runs"
    if added.usual:
        why = f"where a clean run prints at most {added.usual}"
    elif runs == 1:
        why = "not in the one clean run"
    if added.count > 1:
        why = f"{added.count} lines, {why}"
    return EvidenceLine(line.number, line.text, why, line.known_rank, line.stream.source, line.stream.provenance)
