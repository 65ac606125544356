"""What the runtime of a job knows of a hang, and what follows from it."""

from dataclasses import dataclass, field
from enum import StrEnum

from diagnoser.model.lines import Provenance


class EvidenceKind(StrEnum):
    FLIGHT_RECORDER = "flight-recorder"
    RAS = "ras"
    STACKS = "stacks"


@dataclass(frozen=True, slots=True)
class RuntimeFile:
    """A dump as it was sent. rank: -1 and node: "" where it is not of one rank or node. received: seconds since the
    epoch. provenance: whose word it is; ``RUNTIME`` if an agent took it."""

    kind: EvidenceKind
    data: bytes = field(repr=False)
    rank: int = -1
    node: str = ""
    received: float = 0.0
    provenance: Provenance = Provenance.JOB

    @property
    def name(self) -> str:
        """As messages and reports call it."""
        of_rank = f" of rank {self.rank}" if self.rank >= 0 else ""
        return f"{self.kind}{of_rank}{f' on {self.node}' if self.node else ''}"


class SuspectKind(StrEnum):
    BEHIND = "behind"  # others stand in an operation that it has not begun
    STALLED = "stalled"  # it has begun, and does not finish what others finished
    ABSENT = "absent"  # it left no dump, and all others of its group wait
    MISMATCH = "mismatch"  # it called another collective than the rest: a bug of the script
    DEADLOCK = "deadlock"  # ranks wait for each other in a circle
    DEAD = "dead"  # the communication library cannot reach its process
    STACK = "stack"  # its stack is unlike that of all others, which wait


@dataclass(frozen=True, slots=True)
class HangSuspect:
    """score: 0 to 1; how sure, and how many ranks it explains. node: "" when not known."""

    rank: int
    kind: SuspectKind
    why: str
    score: float
    node: str = ""


@dataclass(frozen=True, slots=True)
class HangFindings:
    """What a diagnosis says of a hang. suspects: the most likely first. notes: where nobody is suspected, why.

    files: number of dumps that were read. not_seen: ranks that left none; of many, the first ones.
    """

    suspects: tuple[HangSuspect, ...] = ()
    notes: tuple[str, ...] = ()
    files: int = 0
    not_seen: tuple[int, ...] = ()
