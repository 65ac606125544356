"""Liveness, readiness and metrics."""

import asyncio
from collections.abc import Mapping

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from diagnoser.model.errors import DiagnoserError, Unavailable
from diagnoser.observability.vitals import VitalsCollector
from diagnoser.web.http.access import check_every_tenant
from diagnoser.web.http.authentication import READ, Caller
from diagnoser.web.http.dependencies import Core, Health, UnscopedCore
from diagnoser.web.http.routing import Router, Schema
from diagnoser.web.http.services import HealthCheck

CHECK_SECONDS = 2.0
"""Probes have short timeouts, and a service that is stuck must be out of the balancer soon."""

probes = Router(tags=["health"])
"""Of every process, also of one that takes no other requests."""


class Alive(Schema):
    status: str = "alive"


class PartHealth(Schema):
    ready: bool
    detail: str


class Readiness(Schema):
    ready: bool
    parts: dict[str, PartHealth]


@probes.get("/livez", summary="Liveness")
async def livez() -> Alive:
    return Alive()


@probes.get(
    "/readyz", summary="Do all parts work", responses={503: {"model": Readiness, "description": "A part does not work"}}
)
async def readyz(core: UnscopedCore, health: Health, response: Response) -> Readiness:
    """Checks the database and all other parts. 503 when a required part fails, or during shutdown."""
    readiness = await check_health(core, health)
    response.status_code = 200 if readiness.ready else 503
    return readiness


@probes.get(
    "/metrics",
    dependencies=READ,
    summary="Metrics in Prometheus format",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
async def metrics(request: Request, core: UnscopedCore, caller: Caller) -> Response:
    """What was counted is of all processes of this service; what waits is that of the database, for all replicas."""
    check_every_tenant(caller)
    try:
        vitals = await request.app.state.vitals.vitals()
    except Unavailable:
        vitals = None
    collector = VitalsCollector(vitals, core.store.vitals.pool_use(), request.app.version)
    return Response(core.metrics.exposition(collector), media_type=CONTENT_TYPE_LATEST)


async def check_health(core: Core, health: Health) -> Readiness:
    required = _checks(core, health)
    names, checks = zip(*{**health.optional, **required}.items(), strict=True)
    parts = dict(zip(names, await asyncio.gather(*map(_ask, checks)), strict=True))
    ready = all(parts[name].ready for name in required)
    return Readiness(ready=ready, parts=parts)


def _checks(core: Core, health: Health) -> Mapping[str, HealthCheck]:
    async def database() -> str:
        await core.store.ping()
        return "answers"

    async def process() -> str:
        if core.stopping.is_set():
            raise DiagnoserError("stopping")
        return "serving"

    return {"process": process, "database": database, **health.required}


async def _ask(check: HealthCheck) -> PartHealth:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return PartHealth(ready=True, detail=await check())
    except TimeoutError:
        return PartHealth(ready=False, detail=f"no answer within {CHECK_SECONDS:g} s")
    except DiagnoserError as error:
        return PartHealth(ready=False, detail=str(error) or error.title)
