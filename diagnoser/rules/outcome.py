"""How the attempt ended: what the launcher or scheduler reports wins, then what the root says, then the log's end."""

from collections.abc import Iterable

from diagnoser.model import Event, EventKind
from diagnoser.model.taxonomy import FailureType, Outcome

_TOLD = {
    FailureType.COMPLETED: Outcome.COMPLETED,
    FailureType.CANCELLED: Outcome.CANCELLED,
    FailureType.PREEMPTED: Outcome.PREEMPTED,
    FailureType.TIME_LIMIT: Outcome.TIME_LIMIT,
}


def reported(events: Iterable[Event]) -> Outcome | None:
    """What the events say, the last word first; None when they say nothing about the end.

    An exit of which neither code nor signal is known only tells that there is an end.
    """
    kinds = {EventKind.CANCELLED: Outcome.CANCELLED, EventKind.PREEMPTED: Outcome.PREEMPTED}
    for event in sorted(events, key=lambda event: event.time, reverse=True):
        if event.kind in kinds:
            return kinds[event.kind]
        if event.kind is EventKind.EXIT and (event.code, event.signal) != (None, None):
            return Outcome.FAILED if event.code or event.signal else Outcome.COMPLETED
    return None


def decide_outcome(told: Outcome | None, root: FailureType, *, hung: bool, completed: bool) -> Outcome:
    """told: by events. root: its type, ``unknown`` without one. completed: the log says that the run got to its end."""
    if root in _TOLD:
        return _TOLD[root]
    if told is not None:
        return told
    if completed:
        return Outcome.COMPLETED
    if hung:
        return Outcome.HUNG
    return Outcome.UNKNOWN if root is FailureType.UNKNOWN else Outcome.FAILED
