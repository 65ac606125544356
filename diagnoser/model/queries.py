"""What lists are asked for, and the rows that they show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model import AttemptKey
from diagnoser.model.audit import ActorKind, AuditResult
from diagnoser.model.incidents import Incident, IncidentState
from diagnoser.model.learned import LearnedState
from diagnoser.model.sorting import LAST_SEEN, Sort
from diagnoser.model.taxonomy import FAILURES, Category, FailureType, Outcome


@dataclass(frozen=True, slots=True)
class DiagnosisFilter:
    """Which diagnoses; "" and 0.0 for all. since: made at that time or later. newer: made after the one of this id."""

    job: str = ""
    category: str = ""
    type: str = ""
    outcome: str = ""
    node: str = ""
    cluster: str = ""
    family: str = ""
    decided_by: str = ""
    since: float = 0.0
    newer: str = ""
    text: str = ""
    current_only: bool = True


@dataclass(frozen=True, slots=True)
class News:
    """A diagnosis that was made, without what it says."""

    id: str
    attempt: AttemptKey
    outcome: Outcome
    category: Category
    type: FailureType


@dataclass(frozen=True, slots=True)
class Facets:
    """How many diagnoses have which value, by the name of a field of ``DiagnosisFilter``, the most frequent first.

    is_complete: all diagnoses that match are counted. Else the counts are of the newest: ``limit`` were looked at.
    """

    counts: Mapping[str, Sequence[tuple[str, int]]]
    is_complete: bool
    limit: int


class AttemptState(StrEnum):
    """How an attempt stands.

    running: it printed, or began, a short while ago. silent: it did not, and no end was reported. ended: its end was
    reported. failed: its current verdict says that it failed or hangs; such an attempt is one of the others as well.
    """

    RUNNING = "running"
    SILENT = "silent"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Attempts of which jobs; "" for all. user: whom the scheduler knows the job to belong to."""

    user: str = ""
    cluster: str = ""
    framework: str = ""


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One launch of a job as lists show it. outcome, category, type: of its current verdict, whose id is ``diagnosis``
    ("" while there is none). revision: grows with its log. position: where it stands in the list, as a cursor. user:
    whom the scheduler knows the job to belong to. user, cluster, framework: "" where nobody said.
    """

    key: AttemptKey
    opened: float
    last_line: float
    ended: float | None
    revision: int
    diagnosis: str = ""
    outcome: Outcome | None = None
    category: Category | None = None
    type: FailureType | None = None
    position: str = ""
    user: str = ""
    cluster: str = ""
    framework: str = ""

    @property
    def heard(self) -> float:
        """When it last printed, else when it began."""
        return self.last_line or self.opened

    def state(self, silent_since: float) -> AttemptState:
        """silent_since: an attempt that was heard after this time is not silent."""
        if self.ended is not None:
            return AttemptState.FAILED if self.outcome in FAILURES else AttemptState.ENDED
        if self.outcome is Outcome.FAILED:
            return AttemptState.FAILED
        return AttemptState.RUNNING if self.heard > silent_since else AttemptState.SILENT


@dataclass(frozen=True, slots=True)
class Attention:
    """What waits for a person. approvals: plans whose time is not over. incidents: open ones. tripped: breakers."""

    approvals: int = 0
    incidents: int = 0
    tripped: int = 0


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents; "" for all. states: none for all. is_muted: at the time ``now``; None for either."""

    states: frozenset[IncidentState] = frozenset()
    node: str = ""
    assignee: str = ""
    is_muted: bool | None = None
    now: float = 0.0


UNRESOLVED = IncidentFilter(frozenset({IncidentState.OPEN, IncidentState.ACKNOWLEDGED}))


def position_of(incident: Incident, sort: Sort = LAST_SEEN) -> str:
    """Where an incident stands in the list, as a cursor. It holds the value, which may change between two pages."""
    return f"{sort.by}:{getattr(incident, sort.by)}:{incident.id}"


@dataclass(frozen=True, slots=True)
class PlanFilter:
    state: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class LearnedRuleQuery:
    """Which learned rules. Empty: all. source: the diagnosis that a rule was learned from.

    filters: Filter Rules instead of those that name causes. family: of one job family.
    """

    states: tuple[LearnedState, ...] = ()
    source: str = ""
    filters: bool = False
    family: str = ""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Fields that are set must match. action, object_id: a part of it. since, until: seconds since the epoch."""

    actor: str = ""
    kind: ActorKind | None = None
    action: str = ""
    object_kind: str = ""
    object_id: str = ""
    result: AuditResult | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node that is known. cluster: "" where only diagnoses name it."""

    node: str
    cluster: str = ""
