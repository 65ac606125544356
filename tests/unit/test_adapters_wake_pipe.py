"""Wake-ups between processes."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from diagnoser.adapters.wake_signals import PipeWakeSignal


@pytest.fixture
def signal() -> Iterator[PipeWakeSignal]:
    made = PipeWakeSignal()
    yield made
    made.close()


async def test_a_call_ends_a_wait(signal: PipeWakeSignal) -> None:
    """Also one that came before the wait began, once."""
    signal.notify()
    async with asyncio.timeout(60):
        await signal.wait(3600)
        waiting = asyncio.create_task(signal.wait(3600))
        await asyncio.sleep(0)
        assert not waiting.done()
        signal.notify()
        await waiting


async def test_a_wait_ends_by_itself(signal: PipeWakeSignal) -> None:
    """And leaves nothing behind that would end the next one."""
    await signal.wait(0.0)
    await signal.wait(0.01)


async def test_another_process_can_call(signal: PipeWakeSignal) -> None:
    """One that has inherited it."""
    code, pipe = "import os, sys; os.write(int(sys.argv[1]), b'x')", signal._write
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(pipe), pass_fds=[pipe])
    async with asyncio.timeout(60):
        await signal.wait(3600)
    assert await process.wait() == 0


async def test_nobody_waits_for_the_one_who_does_not_listen(signal: PipeWakeSignal) -> None:
    """A full pipe refuses no call and holds none up."""
    for _ in range(100_000):
        signal.notify()
    await signal.wait(60)
