"""Incidents and the attempts whose failures they are."""

from collections.abc import Callable
from dataclasses import dataclass

from diagnoser.model import Incident, IncidentState
from diagnoser.ports.sorting import LAST_SEEN, Sort

IncidentTransition = Callable[[Incident], Incident]
"""What becomes of an incident. Pure: the store calls it inside the transaction that writes the result."""


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents; "" for all. states: none for all."""

    states: frozenset[IncidentState] = frozenset()
    node: str = ""
    assignee: str = ""


UNRESOLVED = IncidentFilter(frozenset({IncidentState.OPEN, IncidentState.ACKNOWLEDGED}))


def position_of(incident: Incident, sort: Sort = LAST_SEEN) -> str:
    """Where an incident stands in the list, as a cursor. It holds the value, which may change between two pages."""
    return f"{sort.by}:{getattr(incident, sort.by)}:{incident.id}"
