"""Smaller answers for whoever reads, and files that browsers keep."""

from os import PathLike, stat_result

from fastapi import Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

LEAST_BYTES = 1_000
LEVEL = 5
"""A page of 140 kB takes 2 ms and becomes 15 kB; each further level costs more than it saves."""


class ReadCompression:
    """Compresses answers to GET. What is sent in, logs above all, goes past it untouched, and so do live streams.

    A page of another site may make a browser ask with the person's password, and put text of its own into the address:
    from the size of compressed answers, somebody who watches the network could then guess what stands beside that
    text. Such answers are not compressed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressed = GZipMiddleware(app, minimum_size=LEAST_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._compressed if _is_own_read(scope) else self._app
        await app(scope, receive, send)


def _is_own_read(scope: Scope) -> bool:
    """Tell whether nothing is changed, and no page of another site asks."""
    if (scope["type"], scope.get("method")) != ("http", "GET"):
        return False
    return Headers(scope=scope).get("sec-fetch-site") not in ("cross-site", "same-site")


class KeptFiles(StaticFiles):
    """Static files. An address with the hash of the content may be kept for a year: another content has another
    address."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = "no-cache"
        if scope["query_string"].startswith(b"v="):
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response
