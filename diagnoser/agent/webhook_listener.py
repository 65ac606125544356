"""Receives the signed webhook, for sites that want no request held open: each delivery lets the agent ask for plans.

What the body says is not acted on: the plan comes from the claim, of which there is one. So a delivery that is sent
again, or replayed by somebody, does nothing.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from diagnoser.model.errors import BadInput

BODY_BYTES = 1 << 20

log = structlog.get_logger()


def application(secret: str, woken: asyncio.Event) -> Starlette:
    """Takes deliveries at any path. secret: as ``DIAGNOSER_WEBHOOK_SECRET``. Raises BadInput for an unusable one."""
    try:
        hook = Webhook(secret)
    except Exception as error:
        raise BadInput("the webhook secret must be whsec_ and base64") from error

    async def receive(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES:
                return Response(status_code=413)
        try:
            hook.verify(body, dict(request.headers))
        except (WebhookVerificationError, ValueError) as error:
            log.warning("webhook_refused", why=str(error))
            return Response(status_code=401)
        woken.set()
        return Response(status_code=204)

    return Starlette(routes=[Route("/{path:path}", receive, methods=["POST"])])


async def listen(address: str, secret: str, woken: asyncio.Event) -> None:
    """Until it is cancelled. address: ``host:port``. Raises BadInput."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"{address[:60]!r} is no address to listen on, such as 0.0.0.0:9444")
    config = uvicorn.Config(
        application(secret, woken), host=host.strip("[]"), port=int(port), log_config=None, access_log=False
    )
    await _ListenerServer(config).serve()


class _ListenerServer(uvicorn.Server):
    """Signals stay with the agent."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
