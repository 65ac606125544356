"""What shippers ask of Elasticsearch: bulk requests, at the root and below ``PREFIX``, and who answers them, below it.

Logstash and Elastic's clients send nothing before they have seen a version, a licence and the header of the product.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict
from starlette.routing import Route

from diagnoser.model.errors import BadInput, OutOfScope, Overloaded, Unavailable, Unsupported
from diagnoser.web.api.shipping import ShipperQuery, declared_length, read_query
from diagnoser.web.http.authentication import identified, may_push
from diagnoser.web.http.problems import retry_after
from diagnoser.web.http.request_bodies import Bodies
from diagnoser.web.http.services import WebServices

PREFIX = "/elasticsearch"
INDEX_LENGTH = 255
PRODUCT = {"X-Elastic-Product": "Elasticsearch"}
VERSION = {
    "number": "8.17.0",
    "build_flavor": "default",
    "minimum_wire_compatibility_version": "7.17.0",
    "minimum_index_compatibility_version": "7.0.0",
}
"""Whose bulk requests are understood: those of all newer versions are the same."""

IDENTITY = {"name": "diagnoser", "cluster_name": "diagnoser", "cluster_uuid": "diagnoser", "version": VERSION}
LICENSE = {"license": {"uid": "diagnoser", "type": "basic", "status": "active", "mode": "basic"}}


class BulkQuery(ShipperQuery):
    """As of every shipper. Other parameters are Elasticsearch's own, and not looked at."""

    model_config = ConfigDict(extra="ignore")


def routes() -> Sequence[Route]:
    """Plain routes: the protocol is described elsewhere, and the framework's resolving of dependencies is dear."""
    bulk_paths = [prefix + path for prefix in ("", PREFIX) for path in ("/_bulk", "/{index}/_bulk")]
    return [
        *(Route(path, send_bulk, methods=["POST", "PUT"]) for path in bulk_paths),
        Route(PREFIX, identity),
        Route(PREFIX + "/", identity),
        Route(PREFIX + "/_license", licence),
    ]


async def identity(request: Request) -> Response:
    return await _said(request, IDENTITY)


async def licence(request: Request) -> Response:
    return await _said(request, LICENSE)


async def _said(request: Request, content: dict[str, Any]) -> Response:
    services: WebServices = request.app.state.services
    await may_push(request, await identified(request, services.people))
    return JSONResponse(content, headers=PRODUCT)


async def send_bulk(request: Request) -> Response:
    """Where an item says 201, its document is committed; 400 says why it never will be. On 429 and 503 none is, and
    every item says so: send them again.
    """
    if not _is_json(request.headers.get("content-type", "")):
        raise Unsupported("a bulk request is application/x-ndjson or application/json")
    index = request.path_params.get("index", "")
    if len(index) > INDEX_LENGTH:  # every item of the answer repeats it
        raise BadInput(f"the name of an index has at most {INDEX_LENGTH} characters")
    services: WebServices = request.app.state.services
    caller = await identified(request, services.people)
    await may_push(request, caller)
    defaults = read_query(request, BulkQuery).defaults(caller)
    sender = services.intake.job_access.sender(caller)
    bodies: Bodies = request.app.state.bodies
    encoding = request.headers.get("content-encoding", "identity")
    async with bodies.read(request.stream(), encoding, declared_length(request)) as body:
        received, ingest = services.core.clock(), services.intake.ingest
        batch = await ingest.parse_bulk(body, index, defaults, received)
        try:
            await ingest.take(batch, "bulk", defaults, received, sender)
        except OutOfScope:
            pass  # nothing was left of it, and each item says why
        except (Unavailable, Overloaded) as error:
            return _answer(batch.answer_failed(error.status, str(error)), error.status, retry_after(error))
    return _answer(batch.answer())


def _answer(content: bytes, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    return Response(content, status, {**PRODUCT, **headers}, "application/json")


def _is_json(content_type: str) -> bool:
    """Whether no page of another site can send it unasked; whatever name of JSON a version of a client uses."""
    name = content_type.partition(";")[0].strip().lower()
    return name.startswith(("application/", "text/")) and name.endswith("json")
