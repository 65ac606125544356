"""Wake signals without a server: within a process, between processes of one machine with the same parent, and from a
database that tells whether it changed."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from diagnoser.model.errors import Unavailable
from diagnoser.ports import Pause, WakeSignal

LONGEST_PAUSE = 10.0
"""Seconds between two looks where nothing changes: what is due by time alone may be so much late."""


class LocalWakeSignal:
    """Wakes one loop. A call while the loop is busy makes its next sleep return at once."""

    def __init__(self) -> None:
        self._called = asyncio.Event()

    def notify(self) -> None:
        self._called.set()

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - the caller's longest sleep
        try:
            async with asyncio.timeout(timeout):
                await self._called.wait()
        except TimeoutError:
            pass
        finally:
            self._called.clear()


class PipeWakeSignal:
    """``ports.WakeSignal`` over a pipe, made before the processes part. One of them waits, all may notify."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def notify(self) -> None:
        with suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._write, b"\0")

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - the caller's longest sleep
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._read, called.set)
        try:
            async with asyncio.timeout(timeout):
                await called.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(self._read)
            with suppress(BlockingIOError):
                os.read(self._read, 65536)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class DatabaseChanges:
    """Notifies whenever anybody has changed the database. Where nothing happens, that is all that happens."""

    def __init__(self, mark: Callable[[], Awaitable[int | None]], *, is_watched: bool) -> None:
        """mark: gives another number after each change, for less than looking what changed.
        is_watched: whether it does; elsewhere pauses are as short as they are asked for."""
        self.is_watched = is_watched
        self._mark = mark
        self._signals: list[WakeSignal] = []

    def wake(self, signal: WakeSignal) -> None:
        """Notify this signal, too."""
        self._signals.append(signal)

    def pause(self) -> Pause:
        """The pause of one loop, which ends late while nothing changes. No change is missed: one that comes while the
        loop looks, or sleeps, ends its next wait."""
        if not self.is_watched:
            return asyncio.sleep
        changed = LocalWakeSignal()
        self.wake(changed)

        async def pause(seconds: float) -> None:
            await asyncio.sleep(seconds)
            await changed.wait(LONGEST_PAUSE - seconds)

        return pause

    async def run(self, seconds: float) -> None:
        """Look every so many seconds until cancelled, and go on while the database is away."""
        seen = None
        while True:
            with suppress(Unavailable):
                mark = await self._mark()
                if mark != seen:
                    for signal in self._signals:
                        signal.notify()
                seen = mark
            await asyncio.sleep(seconds)
