"""The routes of all protocols by which lines come in, as the registry has them.

The framework's own reading of parameters costs more than taking in ten lines, so that these routes do it by themselves.
Each has a twin of the framework's behind it, by which it is described.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field, ValidationError
from starlette.routing import BaseRoute, Route, compile_path

from diagnoser.ingest import RecordDefaults, protocols
from diagnoser.ingest.job_access import JobSender
from diagnoser.ingest.protocols.protocol import Answer, Protocol, RequestHead
from diagnoser.model import Stream, provenance_of
from diagnoser.model.access import Credential
from diagnoser.model.errors import DiagnoserError
from diagnoser.web.api.params import JobId, Node, Source
from diagnoser.web.http.access import own_cluster
from diagnoser.web.http.authentication import identified, may_ingest, may_push
from diagnoser.web.http.problems import ErrorAnswer, Problem, ProtocolErrors, answers, retry_after
from diagnoser.web.http.request_bodies import Bodies, declared_length
from diagnoser.web.http.routing import Router, StrictSchema
from diagnoser.web.http.services import WebServices

LINE_NUMBER_LIMIT = 1 << 53
Endpoint = Callable[[Request], Awaitable[Response]]
ERRORS = (400, 401, 403, 413, 415, 429, 503)


class ShipperQuery(StrictSchema):
    """Defaults for every line of the body that does not name its own."""

    job: JobId | None = Field(
        None,
        description="Id of the job; needed unless every record names its own, or the lines are a node's own log "
        "(source kernel, dmesg, daemon, syslog or scheduler, with its node)",
    )
    cluster: Node | None = Field(None, description="Cluster of the node whose own log this is")
    attempt: int | None = Field(None, ge=1, lt=1 << 31, description="Launch of the job; the latest one by default")
    node: Node | None = Field(None, description="Where the lines were printed")
    rank: int | None = Field(None, ge=0, lt=1 << 31, description="Which rank printed the lines")
    source: Source = Field("stdout", description="Name of the stream")

    @property
    def first(self) -> int | None:
        return None

    def defaults(self, caller: Credential) -> RecordDefaults:
        """Raises OutOfScope when the query names another cluster than the caller's."""
        provenance = provenance_of(self.source, vouched=caller.vouches)
        stream = Stream(self.source, self.node or "", -1 if self.rank is None else self.rank, provenance)
        cluster = own_cluster(caller, self.cluster or "")
        return RecordDefaults(self.job or "", self.attempt, stream, self.first, cluster, caller.vouches, caller.name)


class NumberedQuery(ShipperQuery):
    """As of every shipper, and the numbers of the lines."""

    offset: int | None = Field(
        None,
        ge=0,
        lt=LINE_NUMBER_LIMIT,
        description="Number of lines of the stream before this body; with it, a body that is sent again counts once",
    )

    @property
    def first(self) -> int | None:
        return None if self.offset is None else self.offset + 1


class ForeignQuery(ShipperQuery):
    """As of every shipper. Other parameters are the protocol's own, and not looked at."""

    model_config = ConfigDict(extra="ignore")


def routes() -> list[BaseRoute]:
    """Of all protocols: first the plain ones, for each route that is tried costs, then the twins that describe them."""
    plain: list[BaseRoute] = []
    described = Router(tags=["logs"])
    for protocol in protocols.PROTOCOLS:
        receive, greet = _endpoint(protocol), partial(_greet, protocol=protocol)
        plain += [Route(path, receive, methods=list(protocol.methods)) for path in protocol.paths]
        plain += [Route(path, greet) for path in protocol.greetings]
        _describe(protocol, receive, described)
    return plain + described.routes


def errors_by_path() -> ProtocolErrors:
    """How errors are told at the paths of protocols with a way of their own."""
    known: list[tuple[re.Pattern[str], ErrorAnswer]] = []
    for protocol in protocols.PROTOCOLS:
        if protocol.refuse:
            known += [(compile_path(path)[0], _refuser(protocol.refuse)) for path in protocol.paths]

    def find(path: str) -> ErrorAnswer | None:
        return next((answer for paths, answer in known if paths.match(path)), None)

    return find


def _endpoint(protocol: Protocol) -> Endpoint:
    async def receive(request: Request) -> Response:
        return await receive_request(request, protocol)

    return receive


async def _greet(request: Request, protocol: Protocol) -> Response:
    await _sender(request, protocol)
    return _response(protocol.greetings[request.url.path])


def _describe(protocol: Protocol, receive: Endpoint, router: Router) -> None:
    """Add the twins of a protocol: one for each method of its first path."""
    shown = protocol.description
    operation = {
        "security": [{"HTTPBearer": []}],
        "parameters": _query_parameters(_query_shape(protocol)),
        "requestBody": {"required": True, "description": shown.body, "content": dict(shown.content)},
    }
    success, *_ = shown.answers
    responses = answers(*ERRORS, content=shown.errors)
    responses |= {status: dict(answer) for status, answer in shown.answers.items()}

    for method in protocol.methods:
        by = "" if method == protocol.methods[0] else f" by {method}"
        router.add_api_route(
            protocol.paths[0],
            receive,
            methods=[method],
            status_code=success,
            summary=shown.summary + by,
            description=shown.text,
            responses=responses,
            openapi_extra=operation,
        )


async def receive_request(request: Request, protocol: Protocol) -> Response:
    """Commit the lines of a request, and answer as its protocol does. Raises DiagnoserError."""
    services: WebServices = request.app.state.services
    caller = await _sender(request, protocol)
    defaults = _defaults(request, protocol, caller)
    headers = request.headers
    head = RequestHead(headers.get("content-type", ""), headers.get("content-encoding"), request.path_params)
    body_format, decode = protocol.reading(head)
    bodies: Bodies = request.app.state.bodies
    async with bodies.read(request.stream(), decode, declared_length(request)) as body:
        received = services.core.clock()
        batch = await services.intake.ingest.parse_body(body, body_format, defaults, received)
        sender = JobSender(services.intake.job_access, caller)
        try:
            receipt = await services.intake.ingest.accept_batch(batch, body_format.name, defaults, received, sender)
        except DiagnoserError as error:
            answer = protocol.refuse_batch(batch, error) if protocol.refuse_batch else None
            if answer is None:
                raise
            return _response(answer, retry_after(error))
    return _response(protocol.answer(batch, receipt, head))


async def _sender(request: Request, protocol: Protocol) -> Credential:
    """Raises Denied, OutOfScope."""
    caller = await identified(request, request.app.state.services.people)
    check = may_push if protocol.takes_passwords else may_ingest
    await check(request, caller)
    return caller


def _defaults(request: Request, protocol: Protocol, caller: Credential) -> RecordDefaults:
    """What the query says of all lines. Raises OutOfScope; RequestValidationError, as the framework does."""
    try:
        query = _query_shape(protocol).model_validate(dict(request.query_params))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise RequestValidationError([{**fault, "loc": ("query", *fault["loc"])} for fault in faults]) from None
    return query.defaults(caller)


def _query_shape(protocol: Protocol) -> type[ShipperQuery]:
    if protocol.numbers_lines:
        return NumberedQuery
    return ForeignQuery if protocol.ignores_parameters else ShipperQuery


@cache
def _query_parameters(shape: type[ShipperQuery]) -> list[dict[str, object]]:
    """Describe the parameters of a shape, which several protocols share."""
    return [
        {"name": name, "in": "query", "schema": schema, "description": schema.pop("description", "")}
        for name, schema in shape.model_json_schema()["properties"].items()
    ]


def _refuser(refuse: Callable[[RequestHead, int, str], Answer]) -> ErrorAnswer:
    def answer(request: Request, problem: Problem) -> Response:
        head = RequestHead(request.headers.get("content-type", ""))
        return _response(refuse(head, problem.status, problem.detail or problem.title))

    return answer


def _response(answer: Answer, headers: Mapping[str, Any] = {}) -> Response:
    return Response(answer.body, answer.status, {**answer.headers, **headers}, answer.media_type or None)
