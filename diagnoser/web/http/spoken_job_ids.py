"""A tenant reads the ids of its jobs as it says them, without the mark that tells its own from another's of that name.

One place for all answers, so that none can be forgotten: pages, JSON, exports, errors and live streams.
"""

import html
import json
import re
from functools import lru_cache
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diagnoser.model import own_job_id


class SpokenJobIds:
    """Takes the mark out of what is answered to a credential of one tenant. Live streams send each event as a whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def rewritten(message: Message) -> None:
            tenant = scope.get("state", {}).get("tenant", "")
            if tenant and message["type"] == "http.response.start":
                del MutableHeaders(raw=message["headers"])["content-length"]  # it is less without the marks
            if tenant and message["type"] == "http.response.body":
                message = {**message, "body": spoken(message.get("body", b""), tenant)}
            await send(message)

        await self._app(scope, receive, rewritten if scope["type"] == "http" else send)


def spoken(body: bytes, tenant: str) -> bytes:
    if b"~of~" not in body:
        return body
    return _mark_of(tenant).sub(b"", body)


@lru_cache(maxsize=256)
def _mark_of(tenant: str) -> re.Pattern[bytes]:
    """What stands behind an id and before no more letters, as it is written in text, HTML, JSON and addresses."""
    mark = own_job_id("", tenant)
    forms = {mark, html.escape(mark), quote(mark), quote(mark, safe=""), json.dumps(mark)[1:-1]}
    written = b"|".join(re.escape(form.encode()) for form in sorted(forms, key=len, reverse=True))
    return re.compile(rb"(?<=[A-Za-z0-9._:@+=-])(?:" + written + rb")(?![A-Za-z0-9_~-])")
