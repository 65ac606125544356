"""The health of an optional dependency: answered at once from a cache, checked in the background."""

import asyncio
from collections.abc import Awaitable, Callable

from diagnoser.model.errors import DiagnoserError, Unavailable

FRESH = 15.0
"""Seconds for which an answer counts."""
PATIENCE = 0.5
"""Seconds that the first caller waits: readiness probes have short timeouts."""


class CachedHealthCheck:
    """Call it for a few words of detail; raises DiagnoserError while the dependency does not work."""

    def __init__(self, ping: Callable[[], Awaitable[str]], clock: Callable[[], float]) -> None:
        self._ping = ping
        self._clock = clock
        self._asked = -FRESH
        self._task: asyncio.Task[None] | None = None
        self._detail = ""
        self._error: DiagnoserError | None = Unavailable("not asked yet")

    async def __call__(self) -> str:
        if self._task is None or (self._task.done() and self._clock() - self._asked >= FRESH):
            self._asked = self._clock()
            self._task = asyncio.create_task(self._ask())
        if not self._detail:
            await asyncio.wait([self._task], timeout=PATIENCE)
        if self._error:
            raise self._error
        return self._detail

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _ask(self) -> None:
        try:
            self._detail, self._error = await self._ping(), None
        except DiagnoserError as error:
            self._detail, self._error = str(error), error
