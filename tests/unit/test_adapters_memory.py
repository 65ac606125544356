"""The wake signal of one process."""

import asyncio

import pytest

from diagnoser.adapters.wake_signals import LocalWakeSignal


async def test_a_call_ends_the_sleep() -> None:
    """A loop that sleeps wakes up as soon as there is work."""
    wake = LocalWakeSignal()
    sleep = asyncio.create_task(wake.wait(3600.0))
    await asyncio.sleep(0)
    wake.notify()
    await asyncio.wait_for(sleep, 60.0)


async def test_a_call_while_nobody_sleeps_is_kept_once() -> None:
    """Work that came during a round starts the next one at once, and only that one."""
    wake = LocalWakeSignal()
    wake.notify()
    wake.notify()
    await asyncio.wait_for(wake.wait(3600.0), 60.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wake.wait(3600.0), 0.01)


async def test_a_sleep_ends_by_itself() -> None:
    """Without a call the loop looks for due rows after its longest sleep."""
    await asyncio.wait_for(LocalWakeSignal().wait(0.001), 60.0)
