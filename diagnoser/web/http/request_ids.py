"""An id for each request: every line of the service's log that is written for it has it, and its answer, too."""

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

HEADER = b"x-request-id"
_GIVEN = re.compile(rb"[A-Za-z0-9._-]{8,64}")


class RequestIds:
    """Takes the id that a proxy gave, if it is one. Plain ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        own = dict(scope["headers"]).get(HEADER, b"")
        if not _GIVEN.fullmatch(own):
            own = secrets.token_hex(8).encode()
        scope.setdefault("state", {})["request_id"] = own.decode()  # for who answers outside of this: faults of ours

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (HEADER, own)]
            await send(message)

        with bound_contextvars(request=own.decode()):
            await self.app(scope, receive, named)
