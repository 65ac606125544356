"""Dumps of the runtime of a job, and what agents are asked to collect."""

from dataclasses import dataclass

from diagnoser.model import EvidenceKind, Provenance


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
