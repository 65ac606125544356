"""Dumps of the runtime of a job, and what agents are asked to collect."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import AttemptKey, EvidenceKind, EvidenceRequest, Provenance, RuntimeFile


@dataclass(frozen=True, slots=True)
class EvidenceLimits:
    """Of one attempt. bytes: as they are stored, compressed."""

    files: int = 20_000
    bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A dump without its content. bytes: as it was sent."""

    kind: EvidenceKind
    rank: int
    node: str
    received: float
    provenance: Provenance
    bytes: int


LIMITS = EvidenceLimits()


class EvidenceStore(Protocol):
    async def add_runtime_files(
        self, attempt: AttemptKey, files: Sequence[RuntimeFile], limits: EvidenceLimits = LIMITS, *, due: bool = True
    ) -> None:
        """Of each kind, rank, node and provenance the newest is kept. due: the attempt becomes due again at once, also
        one that is checked for silence. Raises NotFound for an unknown attempt, TooLarge beyond the limits."""

    async def runtime_files(self, attempt: AttemptKey) -> list[RuntimeFile]:
        """By kind, rank, node."""

    async def list_runtime_files(self, attempt: AttemptKey) -> list[StoredFile]: ...

    async def request_evidence(self, request: EvidenceRequest) -> bool:
        """False when the same was asked for already: of one silence evidence is collected once."""

    async def claim_evidence_requests(
        self, cluster: str, now: float, lease: float, oldest: float, limit: int
    ) -> list[EvidenceRequest]:
        """Requests of a cluster that nobody works on; an agent that dies loses them after ``lease`` seconds. Those made
        before ``oldest`` are over."""

    async def finish_evidence_request(self, id: str, cluster: str, now: float, result: str) -> bool:
        """False when it is not known, or of another cluster. Idempotent."""

    async def evidence_requests(self, attempt: AttemptKey) -> list[tuple[EvidenceRequest, str]]:
        """The newest first, each with what came of it, "" while it is open."""
