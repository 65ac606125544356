"""What the runtime of a job knows of a hang, and what follows from it."""

from dataclasses import dataclass, field
from enum import StrEnum

from diagnoser.model.lines import Provenance

RUNTIME_SOURCES = {"flight_recorder": "flight recorder", "nccl_ras": "NCCL RAS", "stack_dump": "stack dump"}
"""Sources of evidence that has no line number, in words."""
WAITING_RANKS, MISMATCHED_COLLECTIVES = "heuristic:waiting_ranks", "heuristic:mismatched_collectives"
"""What decides where the dumps of the ranks do."""
LOOKS_APART = 10.0
"""Fewest seconds between two looks that prove a hang."""
_NAMED = 3
"""Most ranks that a headline names."""


def cited_place(source: str, line: int) -> str:
    """Where a diagnosis has its word from: "line 41", "kernel line 3", or "flight recorder", which has no lines: 0."""
    if line <= 0:
        return RUNTIME_SOURCES.get(source, source)
    return f"line {line}" if source == "stdout" else f"{source} line {line}"


class EvidenceKind(StrEnum):
    FLIGHT_RECORDER = "flight-recorder"
    RAS = "ras"
    STACKS = "stacks"
    ACTIVITY = "activity"  # processor time and bytes of the ranks of a node, between two looks


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
    AT_WORK = "at_work"  # others wait for it, and it computes or moves data: not a hang yet


class StuckPlace(StrEnum):
    RANK = "rank"  # in its own code: nothing speaks against its machine
    NODE = "node"  # several ranks, all of one node, or one that waits as the others do and left no dump


@dataclass(frozen=True, slots=True)
class HangSuspect:
    """score: 0 to 1; how sure, and how many ranks it explains. node: "" when not known. stuck_in: innermost frame of a
    process that used neither processor nor disk while it was looked at, "" where nobody looked, or it did.
    work_seconds: how long the others may wait for one that is at work, by what it is at; 0.0 for others.
    """

    rank: int
    kind: SuspectKind
    why: str
    score: float
    node: str = ""
    stuck_in: str = ""
    work_seconds: float = 0.0

    @property
    def place(self) -> str:
        return f"{self.rank} on {self.node}" if self.node else str(self.rank)


@dataclass(frozen=True, slots=True)
class HangLook:
    """What the agents of its cluster saw of the ranks that hold up a running attempt.

    last_line: when its newest line had come in. taken: when the first dump of these ranks came in. suspects: rank and
    innermost frame of each.
    """

    last_line: float
    taken: float
    suspects: tuple[tuple[int, str], ...]

    def agrees_with(self, earlier: "HangLook") -> bool:
        """Tell whether the same processes stood in the same place at an earlier time, and nothing was printed since."""
        if (self.last_line, self.suspects) != (earlier.last_line, earlier.suspects):
            return False
        return self.taken >= earlier.taken + LOOKS_APART


@dataclass(frozen=True, slots=True)
class HangFindings:
    """What a diagnosis says of a hang. suspects: the most likely first. notes: where nobody is suspected, why.

    files: number of dumps that were read. not_seen: ranks that left none; of many, the first ones. waiting: number of
    ranks that wait for the suspects, directly or not. look: at the suspects of a running attempt, None where not each
    of them was seen stuck by an agent.
    """

    suspects: tuple[HangSuspect, ...] = ()
    notes: tuple[str, ...] = ()
    files: int = 0
    not_seen: tuple[int, ...] = ()
    waiting: int = 0
    look: HangLook | None = None

    @property
    def explains_wait(self) -> bool:
        """Tell whether the rank that the others wait for was seen at work."""
        if not self.suspects:
            return False
        return self.suspects[0].kind is SuspectKind.AT_WORK

    @property
    def holds_up(self) -> bool:
        """Tell whether a rank that the others wait for was seen, and not at work."""
        return bool(self.suspects) and not self.explains_wait

    @property
    def headline(self) -> str:
        """Who holds up how many: ``Rank 12 on gpu-017 holds up 15 ranks``; "" where nobody is suspected."""
        if not self.suspects:
            return ""
        kind = self.suspects[0].kind
        named = [suspect.place for suspect in self.suspects if suspect.kind is kind][:_NAMED]
        singular, plural = _DOES.get(kind, ("holds up", "hold up"))
        if len(named) == 1:
            return f"Rank {named[0]} {singular} {self._held(kind)}"
        return f"Ranks {', '.join(named[:-1])} and {named[-1]} {plural} {self._held(kind)}"

    def _held(self, kind: SuspectKind) -> str:
        if not self.waiting or kind in _DOES:
            return "the others"
        return f"{self.waiting} rank" if self.waiting == 1 else f"{self.waiting} ranks"


_DOES = {
    SuspectKind.AT_WORK: ("is at work while others wait, and holds up", "are at work while others wait, and hold up"),
    SuspectKind.MISMATCH: ("calls another collective than", "call another collective than"),
    SuspectKind.DEADLOCK: ("calls its groups in another order than", "call their groups in another order than"),
}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A dump without its content. bytes: as it was sent."""

    kind: EvidenceKind
    rank: int
    node: str
    received: float
    provenance: Provenance
    bytes: int
