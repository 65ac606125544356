"""The agent as it runs: some duties look, one loop takes up plans."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import structlog

from diagnoser.agent.service import Order, Service
from diagnoser.model.errors import BadInput, Conflict, NotFound, Unavailable

CLAIM_SECONDS = 20.0
KNOCK_SECONDS = 60.0
LONGEST_WAIT = 30.0
PLANS_AT_ONCE = 8

log = structlog.get_logger()


class Executor(Protocol):
    """dry: it changes nothing."""

    @property
    def service(self) -> Service: ...

    @property
    def cluster(self) -> str: ...

    @property
    def dry(self) -> bool: ...

    async def carry_out(self, order: Order) -> object:
        """Raises Unavailable when the service is away."""


async def run(
    executor: Executor, name: str, *duties: Coroutine[Any, Any, None], knock: asyncio.Event | None = None
) -> None:
    """Until SIGTERM or SIGINT. name: of this executor. duties: run beside it, and never end. knock: says that there may
    be a plan, so that no request has to be held open. Raises Denied."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    log.info("agent_started", cluster=executor.cluster, executor=name, dry_run=executor.dry)
    try:
        async with asyncio.TaskGroup() as group:
            for duty in duties:
                group.create_task(duty)
            group.create_task(_plans(executor, name, group, knock))
    except asyncio.CancelledError:
        log.info("agent_stopped")
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def again(work: Callable[[], Awaitable[None]], pause: float) -> None:
    """Over and over, ``pause`` seconds between two times, longer after failures."""
    wait = pause
    while True:
        try:
            await work()
            wait = pause
        except (Unavailable, BadInput, OSError) as error:
            wait = min(2 * wait, max(LONGEST_WAIT, pause))
            log.warning("look_failed", why=str(error), again_in=wait)
        await asyncio.sleep(wait)


async def _plans(executor: Executor, name: str, group: asyncio.TaskGroup, knock: asyncio.Event | None) -> None:
    """Takes up plans, several at a time: a node check of one job must not hold up the others."""
    turn, wait = asyncio.Semaphore(PLANS_AT_ONCE), 1.0
    while True:
        await turn.acquire()
        try:
            order = await executor.service.claim(name, executor.cluster, 0.0 if knock else CLAIM_SECONDS)
            wait = 1.0
        except (Unavailable, BadInput, NotFound, Conflict) as error:
            order, wait = None, min(2 * wait, LONGEST_WAIT)
            log.warning("claim_failed", why=str(error), again_in=wait)
            await asyncio.sleep(wait)
        if order:
            group.create_task(_carry_out(executor, order, turn))
            continue
        turn.release()
        if knock:
            await _knocked(knock)


async def _knocked(knock: asyncio.Event) -> None:
    """A delivery may get lost: now and then it is asked without one."""
    with suppress(TimeoutError):
        async with asyncio.timeout(KNOCK_SECONDS):
            await knock.wait()
    knock.clear()


async def _carry_out(executor: Executor, order: Order, turn: asyncio.Semaphore) -> None:
    plan = order.plan
    log.info("plan_claimed", plan=plan["id"], action=plan["action"], job=plan["job"], nodes=plan["nodes"])
    try:
        await executor.carry_out(order)
    except Unavailable as error:
        log.warning("plan_left", plan=plan["id"], why=str(error))
    finally:
        turn.release()
