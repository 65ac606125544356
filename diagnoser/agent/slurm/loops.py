"""The agent as it runs: one loop looks, one takes up plans."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import structlog

from diagnoser.agent.service import Order
from diagnoser.agent.slurm.executor import Executor
from diagnoser.agent.slurm.observer import Observer
from diagnoser.errors import BadInput, Conflict, NotFound, Unavailable

CLAIM_SECONDS = 20.0
LONGEST_WAIT = 30.0
PLANS_AT_ONCE = 8

log = structlog.get_logger()


async def run(observer: Observer, executor: Executor, name: str, poll: float) -> None:
    """Until SIGTERM or SIGINT. name: of this executor. poll: seconds between two looks. Raises Denied."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    log.info("agent_started", cluster=executor.cluster, executor=name, dry_run=executor.dry, logs=observer.logs)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_again(observer.look, poll))
            group.create_task(_plans(executor, name, group))
    except asyncio.CancelledError:
        log.info("agent_stopped")
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _again(work: Callable[[], Awaitable[None]], pause: float) -> None:
    wait = pause
    while True:
        try:
            await work()
            wait = pause
        except (Unavailable, BadInput, OSError) as error:
            wait = min(2 * wait, max(LONGEST_WAIT, pause))
            log.warning("look_failed", why=str(error), again_in=wait)
        await asyncio.sleep(wait)


async def _plans(executor: Executor, name: str, group: asyncio.TaskGroup) -> None:
    """Takes up plans, several at a time: a node check of one job must not hold up the others."""
    turn, wait = asyncio.Semaphore(PLANS_AT_ONCE), 1.0
    while True:
        await turn.acquire()
        try:
            order = await executor.service.claim(name, executor.cluster, CLAIM_SECONDS)
            wait = 1.0
        except (Unavailable, BadInput, NotFound, Conflict) as error:
            order, wait = None, min(2 * wait, LONGEST_WAIT)
            log.warning("claim_failed", why=str(error), again_in=wait)
            await asyncio.sleep(wait)
        if order is None:
            turn.release()
        else:
            group.create_task(_carry_out(executor, order, turn))


async def _carry_out(executor: Executor, order: Order, turn: asyncio.Semaphore) -> None:
    plan = order.plan
    log.info("plan_claimed", plan=plan["id"], action=plan["action"], job=plan["job"], nodes=plan["nodes"])
    try:
        await executor.carry_out(order)
    except Unavailable as error:
        log.warning("plan_left", plan=plan["id"], why=str(error))
    finally:
        turn.release()
