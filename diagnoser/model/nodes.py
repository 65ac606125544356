"""What people say of nodes, what people want done with them, and what ran there."""

from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model.jobs import AttemptKey
from diagnoser.model.taxonomy import Category, FailureType


@dataclass(frozen=True, slots=True)
class NodeNote:
    """What a person wrote down about a node. by: the login."""

    id: str
    cluster: str
    node: str
    time: float
    by: str
    text: str


class UncordonState(StrEnum):
    """How far a request to give a node back is."""

    OPEN = "open"
    DONE = "done"
    REFUSED = "refused"  # by the agent, or by the scheduler: the reason says why


@dataclass(frozen=True, slots=True)
class UncordonRequest:
    """A person wants a node back in service that the service took out. result: what the agent said of it, "" so far.

    taken_out: when a plan took it out, in seconds since the epoch; 0.0 where nobody knows.
    """

    id: str
    cluster: str
    node: str
    by: str
    created: float
    comment: str = ""
    state: UncordonState = UncordonState.OPEN
    result: str = ""
    ended: float = 0.0
    taken_out: float = 0.0


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Output of one command on a node. exit_code: None where it took too long."""

    id: str
    exit_code: int | None
    output: str


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    parts: tuple[SnapshotPart, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What a node said of itself before a plan took it out. received: in seconds since the epoch."""

    node: str
    received: float
    parts: tuple[SnapshotPart, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRun:
    """A launch and the nodes that the scheduler gave it. ended: None while it runs.

    diagnosis, category, type: of its current verdict, "" and None where there is none.
    """

    attempt: AttemptKey
    nodes: tuple[str, ...]
    opened: float
    ended: float | None
    tenant: str = ""
    diagnosis: str = ""
    category: Category | None = None
    type: FailureType | None = None
