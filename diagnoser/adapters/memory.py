"""The ``WakeSignal`` of a single replica."""

import asyncio


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
