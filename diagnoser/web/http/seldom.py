"""Writes down that something is in use, but not at each use."""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

from diagnoser.model.errors import Unavailable
from diagnoser.model.recent import Recent

KEYS = 10_000
"""Of which the last note is remembered; beyond it a use is noted more often."""


class Seldom:
    """seconds: from one note about a key to the next."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._noted = Recent[str, float](KEYS)

    async def note(self, key: str, now: float, write: Callable[[], Awaitable[None]]) -> None:
        """Write unless it was done a moment ago. No request fails for it."""
        if 0 <= now - self._noted.get(key, -math.inf) < self._seconds:  # below 0: the clock was set back
            return
        self._noted[key] = now
        with suppress(Unavailable):
            await write()
