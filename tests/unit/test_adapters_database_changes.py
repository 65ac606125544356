"""Pauses that last while nobody changes the database."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from diagnoser.adapters import wake_signals
from diagnoser.adapters.wake_signals import DatabaseChanges
from diagnoser.model.errors import Unavailable
from diagnoser.worker.repeat import repeat

SOON = 0.001


class Marked:
    """A database whose mark a test sets; None: it is away."""

    def __init__(self) -> None:
        self.mark: int | None = 1

    async def change_mark(self) -> int:
        if self.mark is None:
            raise Unavailable("away")
        return self.mark


@pytest.fixture
async def database() -> AsyncIterator[tuple[Marked, DatabaseChanges]]:
    marked = Marked()
    changes = DatabaseChanges(marked.change_mark, is_watched=True)
    running = asyncio.create_task(changes.run(SOON))
    yield marked, changes
    running.cancel()


async def test_a_change_ends_every_pause_also_when_the_database_was_away(
    database: tuple[Marked, DatabaseChanges], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that came before the pause began counts, too, and none lasts longer than the longest."""
    marked, changes = database
    monkeypatch.setattr(wake_signals, "LONGEST_PAUSE", 3600.0)
    pauses = changes.pause(), changes.pause()
    async with asyncio.timeout(30):
        for mark in (None, 2, None, 3):
            marked.mark = mark
            await asyncio.sleep(5 * SOON)
            if mark:
                await asyncio.gather(*(pause(0.0) for pause in pauses))
        waiting = asyncio.gather(*(pause(0.0) for pause in pauses))
        await asyncio.sleep(20 * SOON)
        assert not waiting.done()
        marked.mark = 4
        await waiting
        monkeypatch.setattr(wake_signals, "LONGEST_PAUSE", SOON)
        await pauses[0](0.0)


async def test_a_look_that_left_something_is_repeated_without_a_change() -> None:
    """So is one that could not be made."""
    answers, rests = iter((True, Unavailable("away"), False, False)), list[str]()

    async def look() -> bool:
        answer = next(answers)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    async def pause(seconds: float) -> None:
        rests.append("pause")

    with capture_logs(), pytest.raises(RuntimeError):
        await repeat(look, 0.0, "missed", pause)
    assert rests == ["pause", "pause"]
