"""How the attempt ended: what the launcher or scheduler reports wins, then what the root says, then the log's end."""

from collections.abc import Iterable

from diagnoser.model import Event, EventKind
from diagnoser.model.taxonomy import FailureType, Outcome

_BY_ROOT = {
    FailureType.COMPLETED: Outcome.COMPLETED,
    FailureType.CANCELLED: Outcome.CANCELLED,
    FailureType.PREEMPTED: Outcome.PREEMPTED,
    FailureType.TIME_LIMIT: Outcome.TIME_LIMIT,
}


def reported(events: Iterable[Event]) -> Outcome | None:
    """The outcome by the newest event that tells it; None when none does.

    An exit with neither code nor signal only says that the attempt is over.
    """
    kinds = {EventKind.CANCELLED: Outcome.CANCELLED, EventKind.PREEMPTED: Outcome.PREEMPTED}
    for event in sorted(events, key=lambda event: event.time, reverse=True):
        if event.kind in kinds:
            return kinds[event.kind]
        if event.kind is not EventKind.EXIT:
            continue
        causes = {event.code, event.signal} - {None}
        if causes:
            return Outcome.FAILED if any(causes) else Outcome.COMPLETED
    return None


def decide_outcome(from_events: Outcome | None, root: FailureType, *, hung: bool, completed: bool) -> Outcome:
    """from_events: see ``reported``. root: its type, ``unknown`` without one. completed: by the log."""
    if root in _BY_ROOT:
        return _BY_ROOT[root]
    if from_events is not None:
        return from_events
    if completed:
        return Outcome.COMPLETED
    if hung:
        return Outcome.HUNG
    return Outcome.UNKNOWN if root is FailureType.UNKNOWN else Outcome.FAILED
