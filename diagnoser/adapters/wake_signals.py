"""Wake signals without a server: within a process, and between processes of one machine with the same parent."""

import asyncio
import os
from contextlib import suppress


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
