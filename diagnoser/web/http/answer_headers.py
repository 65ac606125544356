"""Headers of every answer: those by which browsers keep a page to itself, the id of the request, and HEAD."""

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}
ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class SecurityHeaders:
    """Adds ``HEADERS`` to every answer. Plain ASGI, so that streams are not buffered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in ENCODED if pair[0] not in present)]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


class HeadAsGet:
    """Answers HEAD as GET, of which the server sends no body: what watches a site asks so. Plain ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}  # a copy: in its own, the server reads that no body is to be sent
        await self.app(scope, receive, send)


REQUEST_ID = b"x-request-id"
_GIVEN = re.compile(rb"[A-Za-z0-9._-]{8,64}")


class RequestIds:
    """An id for each request, which every line of our log about it has, and its answer: a proxy's, if it gave one.
    Plain ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        own = dict(scope["headers"]).get(REQUEST_ID, b"")
        if not _GIVEN.fullmatch(own):
            own = secrets.token_hex(8).encode()
        scope.setdefault("state", {})["request_id"] = own.decode()  # for who answers outside of this: faults of ours

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (REQUEST_ID, own)]
            await send(message)

        with bound_contextvars(request=own.decode()):
            await self.app(scope, receive, named)
