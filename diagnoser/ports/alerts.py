"""Channels to people, and what was told through them."""

from dataclasses import dataclass
from typing import Protocol

from diagnoser.model.alerts import Alert


@dataclass(frozen=True, slots=True)
class AlertThread:
    """What one receiver was told of one incident. handle: the channel's own note, such as where the first message
    stands. told: time of the last alert. held_back: failures since then that were not told."""

    receiver: str
    incident: str
    handle: str
    told: float
    held_back: int = 0


@dataclass(frozen=True, slots=True)
class AlertSilence:
    """Nobody is told of the incident until then."""

    incident: str
    until: float
    by: str


class AlertChannel(Protocol):
    """threaded: whether later alerts of an incident join the first one, so that none needs to be held back."""

    threaded: bool

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """Tell an alert, the first of its incident without a thread. place: where, as the channel knows it; "" for its
        usual one. Returns the handle of the thread.

        Raises DeliveryError.
        """
