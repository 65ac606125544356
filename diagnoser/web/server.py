"""Builds the HTTP application."""

import copy
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diagnoser.ingest.protocols import path_ends
from diagnoser.observability.vitals import VitalsReader
from diagnoser.web import api, pages
from diagnoser.web.api import health, protocols
from diagnoser.web.http import description, problems
from diagnoser.web.http.allowed_hosts import AllowedHosts
from diagnoser.web.http.answer_headers import HeadAsGet, RequestIds, SecurityHeaders
from diagnoser.web.http.auditing import AuditedCalls
from diagnoser.web.http.authentication import READ, People
from diagnoser.web.http.compression import KeptFiles, ReadCompression
from diagnoser.web.http.request_bodies import Bodies
from diagnoser.web.http.request_metrics import RequestMetrics
from diagnoser.web.http.routing import Router
from diagnoser.web.http.seldom import Seldom
from diagnoser.web.http.services import WebServices
from diagnoser.web.http.spoken_job_ids import SpokenJobIds
from diagnoser.web.pages.rendering import STATIC, Pages

BODY_LIMIT_BYTES = 4 << 20

ABOUT = """Takes in training logs and answers with the root cause, the rank and node that failed first, and what to do.

Errors are `application/problem+json` (RFC 9457). Times in requests are seconds since the epoch or ISO 8601."""


def _routers(room: ModuleType) -> Iterator[Router]:
    """Those of the modules of a package, by their names: a module with a ``router`` is served."""
    for found in iter_modules(room.__path__):
        module = import_module(f"{room.__name__}.{found.name}")
        if hasattr(module, "router"):
            yield module.router


_API, _PAGES = tuple(_routers(api)), tuple(_routers(pages))
"""Loaded with this module, before the service forks: each process would load them for itself."""

AGENT_NOTED_SECONDS = 30.0
"""Between two notes that the agent of a cluster asked for a plan: an agent that has fallen silent is told."""


def create(services: WebServices) -> FastAPI:
    """The whole application: API under /api/v1, health and metrics at the root, pages for people."""
    app = create_health(services)
    app.state.bodies = Bodies()
    app.state.agents_seen = Seldom(AGENT_NOTED_SECONDS)
    app.router.routes[:0] = protocols.routes()  # before all others, for each route that is tried costs
    for router in (*_API, *_PAGES):  # as they are: to include a router makes each of its routes once more, 0.2 s in all
        app.router.routes.extend(router.routes)
    app.state.page_roots = _page_roots()
    app.router.routes.extend(services.core.config.channel_routes)
    app.add_api_route("/openapi.json", _description, dependencies=READ, include_in_schema=False)
    return app


def _page_roots() -> frozenset[str]:
    """How addresses of pages begin, "" for the first page: errors are shown there as pages."""
    roots = set[str]()
    for router in _PAGES:
        roots.update(route.path.split("/")[1] for route in router.routes if isinstance(route, Route))
    return frozenset(roots)


async def _description(request: Request, people: People) -> JSONResponse:
    """Where there are no tokens, none is asked for in the description either."""
    document: dict[str, Any] = request.app.openapi()
    if await people.authenticator.is_open():
        document = copy.deepcopy(document)
        for path in document["paths"].values():
            for operation in path.values():
                operation.pop("security", None)
    return JSONResponse(document)


def create_health(services: WebServices) -> FastAPI:
    """Health and metrics only, for a process that takes no other requests."""
    app = _Application(
        title="diagnoser",
        summary="Finds out why a training job failed",
        description=ABOUT,
        version=version("diagnoser"),
        openapi_url=None,  # the framework would show it to everybody
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.services = services
    app.state.page_roots = frozenset[str]()
    app.state.pages = pages = Pages(services.core.clock, has_model=services.inquiries is not None)
    app.state.vitals = VitalsReader(services.core.store.vitals.read, services.core.clock)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    app.add_middleware(AuditedCalls, core=services.core)
    app.add_middleware(BodyBound, unbounded=path_ends())
    app.add_middleware(AllowedHosts, names=services.core.config.allowed_hosts)
    app.add_middleware(SpokenJobIds)
    app.add_middleware(ReadCompression)
    app.add_middleware(RequestMetrics, metrics=services.core.metrics)
    app.add_middleware(RequestIds)
    problems.install(app, pages.error, protocols.errors_by_path())
    app.router.routes.extend(health.probes.routes)
    app.mount("/static", KeptFiles(directory=STATIC), name="static")
    return app


class _Application(FastAPI):
    def build_middleware_stack(self) -> ASGIApp:
        """The framework answers faults of ours outside of all middleware that is added: around that, too, are the
        headers."""
        return SecurityHeaders(HeadAsGet(super().build_middleware_stack()))


class BodyBound:
    """Stops reading a body at ``BODY_LIMIT_BYTES``, except on routes with a limit of their own, whose paths end so.

    The framework's own limit would answer in plain text and without the headers above.
    """

    def __init__(self, app: ASGIApp, unbounded: tuple[str, ...]) -> None:
        self.app = app
        self.unbounded = unbounded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_LIMIT_BYTES:
                raise HTTPException(413)
            return message

        is_bounded = scope["type"] == "http" and not scope["path"].endswith(self.unbounded)
        await self.app(scope, counted if is_bounded else receive, send)


def _describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the errors as this service answers them instead of the framework's own 422."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
        )
        description.complete(document)
        app.openapi_schema = document
    return app.openapi_schema
