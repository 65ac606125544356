"""The pulse of a part that can be spared."""

import asyncio

import pytest

from diagnoser.model.errors import Unavailable
from diagnoser.observability.health import FRESH, FRESH_NEEDED, CachedHealthCheck


class Part:
    """A part with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self.says = "3 models"
        self.hangs = False
        self.breaks = False

    async def ping(self) -> str:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.breaks:
            self.asked += 1 // 0
        if not self.says:
            raise Unavailable("refused")
        return self.says

    def clock(self) -> float:
        return self.now


async def test_an_answer_counts_for_a_while() -> None:
    """The part is asked once for all who want to know, and again when the answer is old."""
    part = Part()
    pulse = CachedHealthCheck(part.ping, part.clock)
    for part.now in (0.0, 1.0, FRESH - 0.1):
        assert await pulse() == "3 models"
        await asyncio.sleep(0)
    assert part.asked == 1
    part.says, part.now = "", FRESH
    assert await pulse() == "3 models"
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="refused"):
        await pulse()
    assert part.asked == 2
    await pulse.close()


async def test_a_part_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks hears at once that nothing is known."""
    monkeypatch.setattr("diagnoser.observability.health.FIRST_WAIT_SECONDS", 0.01)
    part = Part()
    part.hangs = True
    pulse = CachedHealthCheck(part.ping, part.clock)
    for _ in range(2):
        with pytest.raises(Unavailable, match="not asked yet"):
            await pulse()
    assert part.asked == 1
    await pulse.close()


async def test_a_needed_part_never_gives_an_old_answer() -> None:
    """Who asks waits for the new one; what breaks in the check itself is no good answer either."""
    part = Part()
    pulse = CachedHealthCheck(part.ping, part.clock, is_needed=True)
    assert await pulse() == "3 models"
    part.says, part.now = "", FRESH_NEEDED
    with pytest.raises(Unavailable, match="refused"):
        await pulse()
    part.says, part.now = "3 models", 2 * FRESH_NEEDED
    assert await pulse() == "3 models"
    part.breaks, part.now = True, 3 * FRESH_NEEDED
    with pytest.raises(Unavailable, match="ZeroDivisionError"):
        await pulse()
