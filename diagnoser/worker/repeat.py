"""What the watches share: the loop that looks again and again, and sending what a look finds."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import OutboxMessage
from diagnoser.model.errors import Unavailable
from diagnoser.ports import Pause, WakeSignal


async def repeat(
    look: Callable[[], Awaitable[object]], seconds: float, missed: str, pause: Pause = asyncio.sleep
) -> None:
    """Look every so many seconds until cancelled, and go on while the database is away.

    look: returns something true where it shall be repeated whether or not anything changes.
    missed: event of the log for a look that could not be made.
    pause: after a look that left nothing to do.
    """
    rest: Pause = asyncio.sleep
    while True:
        await rest(seconds)  # first: what was away with the service has a moment to come back
        rest = asyncio.sleep
        try:
            if not await look():
                rest = pause
        except Unavailable as error:
            structlog.get_logger().warning(missed, error=str(error))


async def send(store: SqlStore, messages: Iterable[OutboxMessage], outbox: WakeSignal) -> None:
    """Store messages for the outbox, and wake it. One whose key is there is not sent again. Raises Unavailable."""
    for message in messages:
        await store.outbox.add(message)
        outbox.notify()
