"""Wake-ups between replicas, over Redis publish/subscribe.

The database stays the only queue: a second one would be a second source of truth. Redis only says
*when* to look. Without it each loop looks every half second; with it the replica that commits wakes the others at once.
A lost Redis, or a lost message, costs that half second and nothing else.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.ports import WakeSignal

CHANNEL = "diagnoser:wake"
CONNECT_SECONDS = 3.0
RETRY_SECONDS = (0.5, 30.0)
"""Seconds between attempts to reconnect: doubles from the first to the second."""

log = structlog.get_logger()


class RedisWakeSignals:
    """One connection pair for all the loops of a process.

    wakes: name of a loop, the same in all replicas -> its local wake. ``wake`` gives the shared one. Messages are
    names; one that is not known here is for a newer version and is ignored.
    """

    def __init__(self, url: str, wakes: Mapping[str, WakeSignal]) -> None:
        """Raises BadInput for an invalid URL."""
        try:
            self._redis = Redis.from_url(
                url,
                decode_responses=True,
                socket_connect_timeout=CONNECT_SECONDS,
                health_check_interval=15,
            )
        except ValueError as error:
            raise BadInput(f"DIAGNOSER_REDIS_URL: {error}") from error
        self._wakes = wakes
        self._due: set[str] = set()
        self._rung = asyncio.Event()
        self._listened = False

    def wake(self, name: str) -> WakeSignal:
        return _SharedWake(self, name, self._wakes[name])

    def ring(self, name: str) -> None:
        """Notifies the other replicas soon; several calls before that become one message."""
        self._due.add(name)
        self._rung.set()

    async def run(self) -> None:
        """Carries wake-ups in both directions until cancelled; reconnects when Redis is unavailable."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish())
            group.create_task(self._keep_listening())

    async def ping(self) -> str:
        """For readiness. Raises Unavailable."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._redis.ping()
        except (RedisError, OSError, TimeoutError) as error:
            raise Unavailable(f"redis does not answer: {str(error) or 'timeout'}") from error
        return "wakes the other replicas"

    async def close(self) -> None:
        await self._redis.aclose()

    async def _keep_listening(self) -> None:
        pause, longest = RETRY_SECONDS
        while True:
            try:
                await self._listen()
            except (RedisError, OSError) as error:
                log.warning("redis_lost", error=str(error), again_in=pause)
            await asyncio.sleep(pause)
            pause = RETRY_SECONDS[0] if self._listened else min(2 * pause, longest)

    async def _listen(self) -> None:
        self._listened = False
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(CHANNEL)
            self._listened = True
            while True:
                message = await channel.get_message(timeout=None)
                if message and (wake := self._wakes.get(message["data"])):
                    wake.notify()

    async def _publish(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            while self._due:
                name = self._due.pop()
                with suppress(RedisError, OSError):  # the listener tells of a lost Redis
                    await self._redis.publish(CHANNEL, name)


@dataclass(eq=False)
class _SharedWake:
    bell: RedisWakeSignals
    name: str
    local: WakeSignal

    def notify(self) -> None:
        self.local.notify()
        self.bell.ring(self.name)

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - the caller's longest sleep
        await self.local.wait(timeout)
