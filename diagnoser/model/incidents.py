"""Incidents: failures of one cause, or of one node, as people on call deal with them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model.taxonomy import Category, FailureType


class IncidentState(StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """What somebody did with an incident, or that it came back. by: the login, or ``diagnoser``."""

    time: float
    state: IncidentState
    by: str
    assignee: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """Failures that one cause explains. node: which they are of, "" where what they printed groups them, or where they
    are of several nodes of one place: ``switch:leaf-07``. nodes: those.

    category, type, line, diagnosis: of the newest one. failures: attempts; jobs: how many jobs these are of.
    assignee: the login of who works on it, "" while nobody does. escalated, muted_until: times, 0.0 for never; muted,
    nobody is alerted, and it is not among what needs attention. history: the oldest change first.
    """

    id: str
    cluster: str
    node: str
    category: Category
    type: FailureType
    line: str
    diagnosis: str
    first_seen: float
    last_seen: float
    failures: int = 0
    jobs: int = 0
    state: IncidentState = IncidentState.OPEN
    assignee: str = ""
    escalated: float = 0.0
    muted_until: float = 0.0
    history: tuple[IncidentChange, ...] = ()
    place: str = ""
    nodes: tuple[str, ...] = ()


IncidentTransition = Callable[[Incident], Incident]
"""What becomes of an incident. Pure: the store calls it inside the transaction that writes the result."""
