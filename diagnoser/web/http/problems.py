"""Every error of the API as problem+json (RFC 9457), every error of a page as a page."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlencode

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.routing import iter_route_contexts
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from diagnoser.model.errors import Denied, DiagnoserError, Overloaded, Throttled, Unavailable
from diagnoser.ports import current_call
from diagnoser.redaction.redact import Redact
from diagnoser.web.http.routing import Schema

RETRY_AFTER_SECONDS = 2
MEDIA_TYPE = "application/problem+json"
TOKEN_PAGE = "/login/token"  # noqa: S105 - an address
"""Where a browser is asked for a token although people can sign in."""

ErrorAnswer = Callable[[Request, "Problem"], Response]


ProtocolErrors = Callable[[str], ErrorAnswer | None]
"""Path -> how the protocol that is spoken there tells an error, None where it does so as everything else."""


class FieldProblem(Schema):
    """One fault of the request."""

    where: str = Field(description="The field, with its place: `query.limit`, `body.time`")
    message: str


class Problem(Schema):
    """An error as RFC 9457 draws it. ``type`` is always about:blank: the status and the title say which kind it is."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    errors: list[FieldProblem] = Field(default_factory=list)


def answers(*statuses: int, content: Mapping[str, object] | None = None) -> dict[int | str, dict[str, object]]:
    """The error answers of a route, for its description, beside those of every route (``description.complete``).

    content: media type -> its description, where a protocol of others says how errors are told.
    """
    told = content or {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": told} for status in statuses}


def install(app: FastAPI, page: ErrorAnswer, protocols: ProtocolErrors) -> None:
    """Registers the error handlers on the app.

    page: renders an error for a person.
    protocols: of the paths at which a protocol is spoken.
    """
    handlers = _ErrorHandlers(app, page, protocols)
    app.add_exception_handler(DiagnoserError, handlers.on_own)
    app.add_exception_handler(RequestValidationError, handlers.on_invalid)
    app.add_exception_handler(HTTPException, handlers.on_http)
    app.add_exception_handler(ClientDisconnect, handlers.on_hang_up)
    app.add_exception_handler(Exception, handlers.on_bug)


@dataclass(frozen=True, slots=True)
class _ErrorHandlers:
    app: FastAPI
    page: ErrorAnswer
    protocols: ProtocolErrors

    async def on_own(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, DiagnoserError)
        services = self.app.state.services
        if call := current_call():
            call.fault = services.core.redact(str(error))
        if isinstance(error, Denied):
            services.core.metrics.refused_requests.labels(str(error.status)).inc()
        if _is_visit(request, error) and await services.people.authenticator.has_people():
            address = f"{request.url.path}?{request.url.query}".removesuffix("?")
            return RedirectResponse(f"/login?{urlencode({'next': address})}", HTTPStatus.SEE_OTHER)
        problem = Problem(title=error.title, status=error.status, detail=str(error))
        return self._answer(request, problem, _headers(request, error))

    async def on_invalid(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return self._answer(request, _invalid(error.errors()), {})

    async def on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _allowed(request)
        return self._answer(request, _from_http(request, error), headers)

    async def on_hang_up(self, request: Request, error: Exception) -> Response:
        """A client that leaves while it sends a body is no fault of ours."""
        structlog.get_logger().info("client_hung_up", path=request.url.path)
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it

    async def on_bug(self, request: Request, error: Exception) -> Response:
        own = getattr(request.state, "request_id", "")
        structlog.get_logger().error("request_failed", request=own, path=request.url.path, exc_info=error)
        problem = Problem(title="Internal error", status=500, detail="The fault is in the service's log.")
        return self._answer(request, problem, {"X-Request-ID": own})

    def _answer(self, request: Request, problem: Problem, headers: Mapping[str, str]) -> Response:
        problem = _masked(problem, self.app.state.services.core.redact)
        if told := self.protocols(request.url.path):
            response = told(request, problem)
        elif _is_page(request):
            response = self.page(request, problem)
        else:
            response = as_json(problem)
        response.headers.update(headers)
        return response


def _allowed(request: Request) -> str:
    """All methods of the path. The framework names those of the first route that has it, also of one whose parameter
    takes the name of another."""
    methods: dict[str, set[str]] = {}
    for route in iter_route_contexts(request.app.routes):
        if route.path and route.methods and compile_path(route.path)[0].match(request.url.path):
            methods.setdefault(route.path, set()).update(route.methods)
    exact = min(methods, key=lambda path: path.count("{"), default="")
    return ", ".join(sorted(methods.get(exact, ())))


def _masked(problem: Problem, redact: Redact) -> Problem:
    """An error repeats what it was given, which may be a line of a log or a field with a credential."""
    errors = [FieldProblem(where=fault.where, message=redact(fault.message)) for fault in problem.errors]
    return problem.model_copy(update={"detail": redact(problem.detail), "errors": errors})


def _is_visit(request: Request, error: DiagnoserError) -> bool:
    """Whether a person looks at a page and the fault is that nobody knows who they are."""
    if error.status != HTTPStatus.UNAUTHORIZED:
        return False
    return request.method == "GET" and request.url.path != TOKEN_PAGE and _is_page(request)


def _is_page(request: Request) -> bool:
    root, _, _ = request.url.path.removeprefix("/").partition("/")
    return root in request.app.state.page_roots


def as_json(problem: Problem) -> Response:
    return JSONResponse(
        problem.model_dump(exclude_defaults=True) | {"type": problem.type}, problem.status, media_type=MEDIA_TYPE
    )


def retry_after(error: DiagnoserError) -> dict[str, str]:
    """The header that says when to try again; none where that would not help."""
    if isinstance(error, Unavailable):
        return {"Retry-After": str(RETRY_AFTER_SECONDS)}
    if isinstance(error, Throttled | Overloaded):
        return {"Retry-After": str(math.ceil(error.retry_after))}
    return {}


def _headers(request: Request, error: DiagnoserError) -> dict[str, str]:
    if headers := retry_after(error):
        return headers
    if error.status != HTTPStatus.UNAUTHORIZED:
        return {}
    if _is_page(request):
        return {"WWW-Authenticate": 'Basic realm="diagnoser"'}
    return {"WWW-Authenticate": 'Bearer realm="diagnoser"'}


def _invalid(faults: Sequence[dict[str, object]]) -> Problem:
    problems = [FieldProblem(where=_where(fault), message=_message(fault)) for fault in faults]
    detail = "; ".join(f"{problem.where}: {problem.message}" for problem in problems[:3])
    return Problem(title="Bad input", status=400, detail=detail, errors=problems)


def _where(fault: dict[str, object]) -> str:
    location = fault.get("loc")
    if not isinstance(location, tuple | list):
        return ""
    if fault.get("type") == "json_invalid":  # behind the first step is a position in the text
        location = location[:1]
    return ".".join(map(str, location))


def _message(fault: dict[str, object]) -> str:
    if fault.get("type") == "json_invalid":
        context = fault.get("ctx")
        return f"not JSON: {context.get('error') if isinstance(context, dict) else fault.get('msg')}"
    if fault.get("type") == "model_attributes_type":
        return "a JSON object is needed, sent as application/json"
    message = str(fault.get("msg", "not valid")).removeprefix("Value error, ")
    return message.replace("Extra inputs are not permitted", "unknown field").replace("Field required", "missing")


def _from_http(request: Request, error: HTTPException) -> Problem:
    title = HTTPStatus(error.status_code).phrase
    details = {
        404: f"There is nothing at {request.url.path}.",
        405: f"{request.method} does not apply to {request.url.path}.",
        413: "The body is too large.",
    }
    return Problem(title=title, status=error.status_code, detail=details.get(error.status_code, str(error.detail)))
