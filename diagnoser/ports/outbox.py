"""Messages that must leave the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import OutboxMessage


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A lease on a message. tries: how often it was claimed for sending, this time included."""

    message: OutboxMessage
    tries: int
    token: str


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """The state of a message. state: pending, sent, dead (gave up), expired, withheld (on purpose). error: why."""

    message: OutboxMessage
    state: str
    tries: int
    due: float
    error: str = ""


class OutboxStore(Protocol):
    async def claim_messages(self, now: float, lease: float, limit: int) -> list[DueMessage]: ...

    async def extend_messages(self, due: Sequence[DueMessage], until: float) -> None:
        """Renew the leases; those that are recorded by now, or lost, stay as they are."""

    async def record_delivery(self, due: DueMessage, state: str, *, retry_at: float = 0.0, error: str = "") -> None:
        """state: ``sent``, ``dead``, ``expired``, ``withheld``, ``pending`` with ``retry_at`` after a failed try, or
        ``deferred``: pending with ``retry_at``, without a try. Ignored when the lease was lost."""

    async def add_message(self, message: OutboxMessage) -> None:
        """Ignored when its key is there."""

    async def messages(self, keys: Sequence[str] | None = None) -> list[OutboxRecord]: ...

    async def messages_in(self, state: str, after: str, limit: int) -> list[OutboxRecord]:
        """By key; ``after`` is the last key of the page before, "" for the first page. state: "" for all."""

    async def retry_message(self, key: str, now: float, expires: float) -> OutboxRecord:
        """Make a dead or expired message due again, until ``expires`` at least. Raises NotFound, Conflict."""
