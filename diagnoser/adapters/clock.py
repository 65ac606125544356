"""The time of day, in seconds since the epoch, that never runs backwards within a process."""

import time
from collections.abc import Callable

SLEW = 0.1
"""Share of passing time by which a clock that is ahead falls back."""


class SteadyClock:
    """Follows the wall clock, and its jumps forward at once. When that is set back it goes on at nine tenths of the
    speed until both agree: what waits for a time waits a tenth longer, not as long as the jump was.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._now = wall()
        self._read_at = monotonic()

    def __call__(self) -> float:
        wall, read_at = self._wall(), self._monotonic()
        passed = max(0.0, read_at - self._read_at)
        self._now = max(wall, self._now + (1 - SLEW) * passed)
        self._read_at = read_at
        return self._now
