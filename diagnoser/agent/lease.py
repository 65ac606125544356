"""Holding a plan while it is carried out."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from diagnoser.agent.service import Order, Service
from diagnoser.model.errors import BadInput, NotFound, Unavailable

HEARTBEAT_SECONDS = 15.0

log = structlog.get_logger()
T = TypeVar("T")


async def keep(service: Service, order: Order, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is stopped as soon as the plan is somebody else's. Raises Conflict or NotFound
    then."""
    task, beat = asyncio.create_task(work), asyncio.create_task(_beat(service, order))
    try:
        await asyncio.wait((task, beat), return_when=asyncio.FIRST_COMPLETED)
        if beat.done():
            beat.result()
        return await task
    finally:
        for one in (task, beat):
            one.cancel()
        await asyncio.gather(task, beat, return_exceptions=True)


async def report(service: Service, order: Order, state: str, **fields: Any) -> None:
    await service.report(order.plan["id"], {"token": order.token, "state": state, **fields})


async def kind(service: Service, order: Order) -> str:
    """Type of the failure, for the reason why a node is taken out."""
    try:
        return str((await service.diagnosis(order.plan["diagnosis"]))["type"])
    except (NotFound, BadInput, KeyError):
        return "unknown"


async def _beat(service: Service, order: Order) -> None:
    """Keeps the lease while a step takes long."""
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        try:
            await report(service, order, "progress")
        except Unavailable as error:
            log.warning("heartbeat_failed", plan=order.plan["id"], why=str(error))
