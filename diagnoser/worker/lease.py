"""Leases are short, so that the work of a killed process is soon taken over; who lives renews its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import structlog

from diagnoser.model.errors import Conflict, Unavailable
from diagnoser.ports import Clock

T = TypeVar("T")
RENEWALS = 3
"""Times a lease is renewed before it would end: one or two may be late, or fail."""


@asynccontextmanager
async def claimed(
    claiming: Coroutine[Any, Any, list[T]], give_back: Callable[[T], Awaitable[None]]
) -> AsyncIterator[list[T]]:
    """What is claimed, for the block. When the process stops meanwhile, also within the claim itself, it is given back:
    another process, or the next start of this one, begins anew at once. give_back: leaves alone what is finished."""
    claim = asyncio.ensure_future(claiming)
    try:
        yield await asyncio.shield(claim)
    except asyncio.CancelledError:
        with suppress(Unavailable):
            for held in await claim:
                await give_back(held)
        raise


@asynccontextmanager
async def renewed(extend: Callable[[float], Awaitable[None]], lease: float, clock: Clock) -> AsyncIterator[None]:
    """Renew a lease of so many seconds while the block runs. extend: moves its end to a time; raises Conflict where it
    is somebody else's by now, Unavailable."""
    done = asyncio.Event()
    renewal = asyncio.create_task(_renew(extend, lease, clock, done))
    try:
        yield
    finally:
        done.set()
        await renewal


async def _renew(extend: Callable[[float], Awaitable[None]], lease: float, clock: Clock, done: asyncio.Event) -> None:
    """Ends with ``done``, or when the lease is somebody else's: the save will find out. While the database is away
    nobody else can take it either."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(lease / RENEWALS):
                await done.wait()
                return
        try:
            await extend(clock() + lease)
        except Conflict:
            return
        except Unavailable as error:
            structlog.get_logger().warning("lease_not_renewed", error=str(error))
