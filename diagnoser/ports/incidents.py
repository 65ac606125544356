"""Incidents and the attempts whose failures they are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import Incident, IncidentState
from diagnoser.ports.sorting import LAST_SEEN, Sort
from diagnoser.ports.work import DiagnosisRecord

IncidentTransition = Callable[[Incident], Incident]
"""What becomes of an incident. Pure: the store calls it inside the transaction that writes the result."""


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents; "" for all. states: none for all."""

    states: frozenset[IncidentState] = frozenset()
    node: str = ""
    assignee: str = ""


UNRESOLVED = IncidentFilter(frozenset({IncidentState.OPEN, IncidentState.ACKNOWLEDGED}))


class IncidentStore(Protocol):
    """``WorkStore.save_diagnosis`` and ``replace_diagnosis`` put failures into them."""

    async def incidents(self, where: IncidentFilter, after: str, limit: int, sort: Sort = LAST_SEEN) -> list[Incident]:
        """sort: by one of ``INCIDENT_SORTS``. after: ``position_of`` the last one already seen, "" for the first page.
        Raises BadInput for any other text."""

    async def incident(self, id: str) -> Incident | None: ...

    async def incident_of(self, diagnosis: str) -> Incident | None:
        """The incident of the attempt that this diagnosis is of."""

    async def incident_failures(self, id: str, after: str, limit: int) -> list[DiagnosisRecord]:
        """The current diagnoses of its attempts, the newest first. after: id of the last one already seen."""

    async def worst_nodes(self, since: float, limit: int) -> list[Incident]:
        """Incidents of nodes that failed more than once, with a failure after ``since``; most failures first."""

    async def count_incidents(self) -> dict[IncidentState, int]:
        """How many are open and how many acknowledged."""

    async def change_incident(self, id: str, transition: IncidentTransition) -> Incident:
        """When ``transition`` raises, nothing changes. Raises NotFound."""


def position_of(incident: Incident, sort: Sort = LAST_SEEN) -> str:
    """Where an incident stands in the list, as a cursor. It holds the value, which may change between two pages."""
    return f"{sort.by}:{getattr(incident, sort.by)}:{incident.id}"
