"""What is to leave the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import Effect


@dataclass(frozen=True, slots=True)
class DueEffect:
    """A lease on an effect. tries: how often it was claimed for sending, this time included."""

    effect: Effect
    tries: int
    token: str


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """How an effect stands. state: pending, sent, dead (gave up), expired."""

    effect: Effect
    state: str
    tries: int
    due: float
    error: str = ""


class OutboxStore(Protocol):
    async def claim_effects(self, now: float, lease: float, limit: int) -> list[DueEffect]: ...

    async def settle_effect(self, due: DueEffect, state: str, *, retry_at: float = 0.0, error: str = "") -> None:
        """state: ``sent``, ``dead``, ``expired``, ``pending`` with ``retry_at`` after a try that failed, or
        ``deferred``: pending with ``retry_at``, and nothing was tried. Ignored when the lease was lost."""

    async def effects(self, keys: Sequence[str] | None = None) -> list[EffectRecord]: ...

    async def effects_in(self, state: str, after: str, limit: int) -> list[EffectRecord]:
        """By key; ``after`` is the last key of the page before, "" for the first page. state: "" for all."""

    async def retry_effect(self, key: str, now: float, expires: float) -> EffectRecord:
        """Make a dead or expired effect due again, until ``expires`` at the least. Raises NotFound, Conflict."""
