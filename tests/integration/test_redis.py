"""Wake-ups between replicas through a real Redis, which may die."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from diagnoser.adapters.redis import RedisWakeSignals
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.model.errors import BadInput, Unavailable
from tests.contract import redis_server
from tests.contract.redis_server import redis
from tests.e2e.service import service
from tests.ports import free_port

LONG = 120.0
"""Seconds that a test may wait for what should come at once."""

pytestmark = pytest.mark.skipif(not redis_server.present(), reason=redis_server.MISSING)


@asynccontextmanager
async def replica(port: int) -> AsyncIterator[RedisWakeSignals]:
    bell = RedisWakeSignals(
        f"redis://127.0.0.1:{port}/0", {"attempts": LocalWakeSignal(), "effects": LocalWakeSignal()}
    )
    loop = asyncio.create_task(bell.run())
    try:
        yield bell
    finally:
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop
        await bell.close()


async def woken(bell: RedisWakeSignals, ringing: RedisWakeSignals, name: str = "attempts") -> bool:
    """Whether ``bell``'s sleeper is woken by ``ringing``, which rings until it is: subscribing takes a moment."""
    sleeper = asyncio.create_task(bell.wake(name).wait(LONG))
    for _ in range(int(LONG / 0.1)):
        ringing.wake(name).notify()
        done, _ = await asyncio.wait([sleeper], timeout=0.1)
        if done:
            return True
    sleeper.cancel()
    return False


async def test_a_notify_wakes_the_same_loop_of_another_replica_only(tmp_path: Path) -> None:
    """What one replica commits wakes the loop of that name elsewhere, and no other loop."""
    port = free_port()
    with redis(port, tmp_path):
        async with replica(port) as here, replica(port) as there:
            other = asyncio.create_task(there.wake("effects").wait(LONG))
            assert await woken(there, here)
            assert not other.done()
            other.cancel()


async def test_a_lost_redis_leaves_the_wakes_of_the_process_and_comes_back(tmp_path: Path) -> None:
    """While Redis is away a replica still wakes itself; when it is back it wakes the others again."""
    port = free_port()
    with redis(port, tmp_path):
        async with replica(port) as here, replica(port) as there:
            assert await woken(there, here)
    async with replica(port) as here, replica(port) as there:
        with pytest.raises(Unavailable):
            await here.ping()
        assert await woken(here, here)
        with redis(port, tmp_path):
            assert await woken(there, here)
            assert await here.ping()


def test_an_address_that_is_none_is_refused() -> None:
    """The setting's name stands in the error."""
    with pytest.raises(BadInput, match="DIAGNOSER_REDIS_URL"):
        RedisWakeSignals("http://127.0.0.1:1", {})


def test_the_service_starts_without_its_redis_and_says_so(tmp_path: Path) -> None:
    """Readiness stays, with the part that does not work in its detail."""
    with service(tmp_path, DIAGNOSER_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0") as running:
        client = running.start()
        answer = client.get("/readyz")
        assert answer.status_code == 200
        assert "redis does not answer" in answer.text
        assert running.stop() == 0
