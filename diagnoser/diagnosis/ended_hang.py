"""A run that stood still, and then was ended, stays a hang: who ended it stands beside. Pure.

Whoever ends a run that hangs (a person, a scheduler, a watchdog) makes its ranks print the last lines of the log. They
show how the run was ended, and not why it stood still.
"""

from collections.abc import Iterable
from dataclasses import replace

from diagnoser.diagnosis.hang_evidence import UNDECIDED
from diagnoser.model import Diagnosis, EarlierHang, Event, EventKind, Evidence, Facts
from diagnoser.model.taxonomy import Outcome
from diagnoser.rules.candidate_sources import EXIT_SIGNAL
from diagnoser.rules.outcome import EXIT_EVENT, signal_of

_TEARDOWN = 60.0
"""Seconds before the end in which lines may be those of the end itself."""
_BY_STATUS = frozenset({EXIT_SIGNAL, EXIT_EVENT})
"""What decides where no line says why the run ended."""
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 9: "SIGKILL", 15: "SIGTERM"}
_REASONS = {
    **{name: name for name in _SIGNALS.values()},  # the client's, of a signal that it was sent
    "TIMEOUT": "its time limit",
    "DEADLINE": "its deadline",
    "DeadlineExceeded": "its deadline",
}
"""Reasons of ends that somebody outside the run has ordered."""


def keep_hang(diagnosis: Diagnosis, evidence: Evidence, facts: Facts) -> Diagnosis:
    """The verdict on an attempt that has ended, where an earlier one said that it hangs.

    diagnosis: by the log and its end. What to do follows from these: nobody relaunches what a person has ended.
    """
    hang = facts.hang
    if hang is None:
        return diagnosis
    if diagnosis.outcome is Outcome.COMPLETED:
        return diagnosis
    if _went_on(diagnosis, hang, evidence, facts):
        return diagnosis
    ended_by = _ended_by(diagnosis, facts.events)
    if ended_by:
        return _as_before(diagnosis, hang.diagnosis, f"It stood still, and was then ended by {ended_by}.")
    if diagnosis.type not in UNDECIDED:
        return diagnosis  # a rank that woke up says what was wrong
    note = "It stood still until its own watchdog or launcher ended it."
    if diagnosis.root_cause is None or diagnosis.root_cause.rank is None:
        return _as_before(diagnosis, hang.diagnosis, note)
    return replace(diagnosis, outcome=Outcome.HUNG, notes=(note, *diagnosis.notes))


def _went_on(diagnosis: Diagnosis, hang: EarlierHang, evidence: Evidence, facts: Facts) -> bool:
    """Tell whether the run made a step after it was called hung; of a run that shows none, whether it printed."""
    if diagnosis.step is not None or hang.diagnosis.step is not None:
        return diagnosis.step != hang.diagnosis.step
    until = facts.failed[1] - _TEARDOWN
    return any(hang.made < line.received < until for line in evidence.job_lines)


def _ended_by(diagnosis: Diagnosis, events: Iterable[Event]) -> str:
    """Name who ended the run; "" where it may have ended by itself."""
    for event in sorted(events, key=lambda event: event.time, reverse=True):
        if event.kind is EventKind.CANCELLED:
            return f"a cancellation ({event.reason or 'no reason given'})"
        if event.kind is EventKind.PREEMPTED:
            return "a preemption"
        if event.kind is EventKind.EXIT and event.rank is None:
            return _REASONS.get(event.reason, "") or _by_status(diagnosis, event)
    return ""


def _by_status(diagnosis: Diagnosis, event: Event) -> str:
    if diagnosis.decided_by not in _BY_STATUS:
        return ""
    return _SIGNALS.get(event.signal or signal_of(event.code or 0), "")


def _as_before(diagnosis: Diagnosis, before: Diagnosis, note: str) -> Diagnosis:
    """The earlier verdict, with what the end adds to it."""
    return replace(
        diagnosis,
        outcome=Outcome.HUNG,
        category=before.category,
        type=before.type,
        confidence=before.confidence,
        decided_by=before.decided_by,
        root_cause=before.root_cause,
        evidence=before.evidence,
        nodes=before.nodes,
        mitigation=before.mitigation,
        notes=(note, *before.notes),
        hang=before.hang,
        rivals=before.rivals,
        doubts=before.doubts,
    )
