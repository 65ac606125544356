"""The health of a dependency, checked by one caller for all who ask at about the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from diagnoser.model.errors import DiagnoserError, Unavailable

FRESH = 15.0
"""Seconds for which an answer counts."""
FRESH_NEEDED = 1.0
"""The same of a part that no request goes without."""
FIRST_WAIT_SECONDS = 0.5
"""Seconds that the first caller waits: readiness probes have short timeouts."""


class CachedHealthCheck:
    """Call it for a few words of detail; raises DiagnoserError while the dependency does not work."""

    def __init__(
        self, ping: Callable[[], Awaitable[str]], clock: Callable[[], float], *, is_needed: bool = False
    ) -> None:
        """is_needed: no request goes without the part, so callers wait for a new answer; ``ping`` ends in time. By
        default they get the old one, and the part is asked in the background."""
        self._ping = ping
        self._clock = clock
        self._is_needed = is_needed
        self._fresh = FRESH_NEEDED if is_needed else FRESH
        self._asked = -FRESH
        self._task: asyncio.Task[None] | None = None
        self._detail = ""
        self._error: DiagnoserError | None = Unavailable("not asked yet")

    async def __call__(self) -> str:
        if self._task is None or (self._task.done() and self._clock() - self._asked >= self._fresh):
            self._asked = self._clock()
            self._task = asyncio.create_task(self._ask())
        if self._is_needed:
            await asyncio.wait([self._task])
        elif not self._detail:
            await asyncio.wait([self._task], timeout=FIRST_WAIT_SECONDS)
        if self._error:
            raise self._error
        return self._detail

    @classmethod
    def closed_by(
        cls, stack: AsyncExitStack, ping: Callable[[], Awaitable[str]], *, is_needed: bool = False
    ) -> "CachedHealthCheck":
        check = cls(ping, time.monotonic, is_needed=is_needed)
        stack.push_async_callback(check.close)
        return check

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _ask(self) -> None:
        try:
            self._detail, self._error = await self._ping(), None
        except DiagnoserError as error:
            self._detail, self._error = str(error), error
        except Exception as error:  # a check that cannot be made must not leave its last good answer
            self._error = Unavailable(f"the check failed: {type(error).__name__}")
            self._detail = str(self._error)
