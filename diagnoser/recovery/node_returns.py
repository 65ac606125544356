"""Nodes that came back: how long they are on probation, and whether their repair helped. Pure."""

from collections.abc import Sequence

from diagnoser.model import NodeActor, NodeEvent, NodeEventKind

HOUR, DAY = 3_600.0, 86_400.0
PROBATION_SECONDS = DAY
"""For how long after a node came back another failure on it weighs more."""
REPEAT_SECONDS = 30 * DAY
"""Within which a node that is taken out twice for the same cause was not repaired."""


def evictions(events: Sequence[NodeEvent]) -> list[NodeEvent]:
    """List when plans took the node out, in the order of its events."""
    return [event for event in events if event.kind is NodeEventKind.CORDONED and event.by is NodeActor.DIAGNOSER]


def is_on_probation(mark: NodeEvent, now: float) -> bool:
    """Tell whether a node came back within the day, also by a clock that was put back since. mark: what last
    happened to it."""
    return mark.kind is NodeEventKind.UNCORDONED and abs(now - mark.time) < PROBATION_SECONDS


def unhelpful_repair(events: Sequence[NodeEvent], causes: Sequence[tuple[NodeEvent, str]]) -> str:
    """Say why the last repair of a node did not help, "" as far as nothing says so.

    It was taken out for the same cause before; or, whatever the cause, while it was on probation.
    events: of the node, newest first.
    causes: when plans took it out and for which failure, newest first; "" where that is not known any more.
    """
    if not causes:
        return ""
    last, cause = causes[0]
    words = cause.replace("_", " ")
    for earlier, other in causes[1:]:
        if cause and other == cause and last.time - earlier.time < REPEAT_SECONDS:
            days = max(1.0, (last.time - earlier.time) / DAY)
            return f"the repair did not help: {last.node} was taken out twice within {days:.0f} d for {words}"
    for event in events:
        if event.time <= last.time and is_on_probation(event, last.time):
            hours = (last.time - event.time) / HOUR
            return f"the repair did not help: {last.node} was taken out again {hours:.0f} h after it came back"
    return ""
