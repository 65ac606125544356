"""Messages that must leave the service."""

from dataclasses import dataclass

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
