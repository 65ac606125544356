"""Channels to people."""

from typing import Protocol

from diagnoser.model.alerts import Alert, AlertThread


class AlertChannel(Protocol):
    """threaded: whether later alerts of an incident join the first one, so that none needs to be held back. resolves:
    whether a recovery ends the whole incident there."""

    threaded: bool
    resolves: bool

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """Tell an alert, the first of its incident without a thread. place: where, as the channel knows it; "" for its
        usual one. Returns the handle of the thread.

        Raises DeliveryError.
        """
