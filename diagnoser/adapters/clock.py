"""The time of day, in seconds since the epoch: one that never runs backwards within a process, and one that replicas
share."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

SKEW_SECONDS = 1.0
"""From which on the clock of this machine is called wrong, or the database's is."""
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


@dataclass(eq=False)
class DatabaseClock:
    """The clock of a database that replicas on several machines share, so that they agree about leases and silence
    however wrong the clock of one of them is.

    The monotonic clock carries the database's time on from one ``compare`` to the next, also while that is away.
    read: asks for the time of the database's machine, in seconds. skew: shown to operators, in seconds.
    """

    read: Callable[[], Awaitable[float]]
    skew: Callable[[float], object]
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _zero: float = field(default=0.0, init=False)  # the database's time when the monotonic clock was 0
    _differs: bool = field(default=False, init=False)  # as it was logged last

    def __call__(self) -> float:
        return self.monotonic() + self._zero

    async def compare(self) -> None:
        """Ask for the database's time; once before the first call. Raises Unavailable."""
        asked = self.monotonic()
        theirs = await self.read()
        half = (self.monotonic() - asked) / 2  # the answer was made some time within the round trip
        zero = theirs - asked - half
        self._zero = min(max(self._zero, zero - half), zero + half)  # what the answer does not contradict stays
        self._report()

    def _report(self) -> None:
        skew = self.wall() - self()
        self.skew(skew)
        differs = abs(skew) > SKEW_SECONDS
        if differs == self._differs:
            return
        self._differs = differs
        if differs:
            structlog.get_logger().warning("clock_differs", ahead_seconds=round(skew, 1), of="the database's clock")
        else:
            structlog.get_logger().info("clock_agrees")
