"""Requests to the service's HTTP API: tries again where that can help, and turns answers into errors of ours."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import structlog

from diagnoser.client.service import API, LOOPBACK
from diagnoser.model.errors import BadInput, Conflict, Denied, DiagnoserError, NotFound, OutOfScope, Unavailable

TRIES = 4
FIRST_WAIT = 0.5
LONGEST_WAIT = 10.0
REQUEST_SECONDS = 30.0
IN_THE_CLEAR = "whoever shares the network can read the token, and act with it: use https"

_ERRORS: Mapping[int, type[DiagnoserError]] = {401: Denied, 403: OutOfScope, 404: NotFound, 409: Conflict}
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})

Pause = Callable[[float], Awaitable[object]]


def connect(url: str, token: str) -> httpx.AsyncClient:
    """HTTP for ``call``. Raises BadInput for an unusable address."""
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput("the server's address must start with http:// or https:// and name a host")
    if token and parsed.scheme == "http" and parsed.host not in LOOPBACK:
        structlog.get_logger().warning("token_unencrypted", server=url, why=IN_THE_CLEAR)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=REQUEST_SECONDS)


async def call(client: httpx.AsyncClient, pause: Pause, method: str, path: str, **request: Any) -> httpx.Response:
    """path: below ``API``. pause: how to sleep. Retries with growing pauses.

    Raises Unavailable when the service did not answer after some tries, Denied, OutOfScope, NotFound, Conflict, and
    BadInput for what it will never accept.
    """
    wait = FIRST_WAIT
    for attempt in range(1, TRIES + 1):
        answer = await _once(client, method, path, request)
        if isinstance(answer, httpx.Response) and answer.status_code not in _AGAIN:
            if answer.is_success:
                return answer
            try:
                detail = str(answer.json()["detail"])
            except (ValueError, KeyError, TypeError):
                detail = ""
            raise _ERRORS.get(answer.status_code, BadInput)(detail or f"the service answers {answer.status_code}")
        if attempt == TRIES:
            break
        await pause(max(wait, _retry_after(answer)))
        wait = min(wait * 2, LONGEST_WAIT)
    fault = f"answers {answer.status_code}" if isinstance(answer, httpx.Response) else f"is away: {answer}"
    raise Unavailable(f"the service {fault}")


async def _once(client: httpx.AsyncClient, method: str, path: str, request: dict[str, Any]) -> httpx.Response | str:
    try:
        return await client.request(method, API + path, **request)
    except httpx.TransportError as error:
        return type(error).__name__


def _retry_after(answer: httpx.Response | str) -> float:
    seconds = "" if isinstance(answer, str) else answer.headers.get("retry-after", "")
    return min(float(seconds), LONGEST_WAIT) if seconds.isdecimal() else 0.0
