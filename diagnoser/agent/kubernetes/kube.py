"""The API server, as this agent uses it. Credentials, TLS and plain requests go through kr8s."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import httpx_ws
import kr8s
import kr8s.asyncio
import orjson
import structlog

from diagnoser.agent.kubernetes import fields
from diagnoser.model.errors import BadInput, Denied, OutOfScope, Unavailable

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 10.0
REFUSALS, REFUSED_PAUSE = 10, 1.0
"""Times that a refused request is asked again of a server that may be starting, and seconds in between."""
PAGE = 500
MERGE = "application/merge-patch+json"
EXEC_PROTOCOL = "v4.channel.k8s.io"
STDOUT, STATUS = b"\x01", b"\x03"
"""Channels of that protocol: the first byte of each message."""
MESSAGE_BYTES = 1 << 20

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """Answer of the server; an error too, as long as it came from the API server itself."""

    code: int
    body: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        return 200 <= self.code < 300

    @property
    def message(self) -> str:
        detail = "" if self.ok else fields.text(self.body, "message")[:1000]
        return ": ".join(filter(None, (f"HTTP {self.code}", detail)))

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else self.code


@dataclass(frozen=True, slots=True)
class Kube:
    """Every call raises Unavailable when the server does not answer, or says that it cannot now.

    streams: for watches and logs. kr8s's own pool ends at 100 connections, and each of these holds one for long.
    """

    api: kr8s.asyncio.Api
    streams: httpx.AsyncClient

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> ApiResponse:
        """One request. A PATCH is a JSON merge patch."""
        answer = await self._once(method, path, body, query)
        if answer.code == 401:  # tokens of service accounts are replaced every hour
            await self._renew()
            answer = await self._once(method, path, body, query)
        if answer.code == 403:
            answer = await self._refused_for_good(method, path, body, query)
        if answer.code == 401:
            raise Denied(f"the API server does not know us: {answer.message}")
        if answer.code == 408 or answer.code >= 500:
            raise Unavailable(f"the API server cannot answer {method} {path}: {answer.message}")
        return answer

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """None when it is not there. Raises OutOfScope when we may not read it."""
        answer = await self.ask("GET", path, query=query)
        return None if answer.code == 404 else _body(path, answer)

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """A list in pieces, so that a large one never lies in memory at once. Raises Gone when it must begin anew."""
        page_query = {**query, "limit": str(PAGE)}
        while True:
            answer = await self.ask("GET", path, query=page_query)
            if answer.code == 410:
                raise Gone(answer.message)
            if answer.code == 404:
                raise OutOfScope("the cluster does not serve it")
            page = _body(path, answer)
            yield page
            page_query["continue"] = fields.text(fields.section(page, "metadata"), "continue")
            if not page_query["continue"]:
                return

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[httpx.Response]:
        """An answer whose body comes as things happen. silence: seconds without a byte after which it is cut."""
        timeout = httpx.Timeout(CONNECT_SECONDS, read=silence)
        headers = self._headers()
        try:
            async with self.streams.stream("GET", path, params=query, headers=headers, timeout=timeout) as answer:
                if answer.status_code == 401:
                    await self._renew()
                    raise Unavailable("the token has been replaced")
                yield answer
        except httpx.TransportError as error:
            raise Unavailable(f"the stream of {path} broke: {type(error).__name__}") from None

    async def execute(self, path: str, container: str, command: Sequence[str], seconds: float, limit: int) -> str:
        """Run a command in a container, and give the first ``limit`` bytes that it prints within the time."""
        query = [*(("command", word) for word in command), ("container", container), ("stdout", "true")]
        output = bytearray()
        try:
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(seconds),
                    httpx_ws.aconnect_ws(
                        path,
                        client=self.streams,
                        session_class=httpx_ws.AsyncWebSocketSession,
                        max_message_size_bytes=MESSAGE_BYTES,
                        subprotocols=[EXEC_PROTOCOL],
                        params=query,
                        headers=self._headers(),
                        timeout=CONNECT_SECONDS,
                    ) as socket,
                ):
                    while (message := await _message(socket))[:1] not in (STATUS, b""):
                        if message[:1] == STDOUT:
                            output += message[1 : 1 + limit - len(output)]
        except httpx_ws.WebSocketUpgradeError as error:
            raise Unavailable(f"the API server refuses to run a command: HTTP {error.response.status_code}") from None
        except (httpx_ws.HTTPXWSException, httpx.TransportError) as error:
            raise Unavailable(f"the command in a container broke off: {type(error).__name__}") from None
        return output.decode("utf-8", "replace")

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> ApiResponse:
        root, _, rest = path[1:].partition("/")
        headers = self._headers()
        if method == "PATCH":
            headers["content-type"] = MERGE
        request: dict[str, Any] = {"params": query or {}, "headers": headers, "timeout": REQUEST_SECONDS}
        if body is not None:
            request["content"] = orjson.dumps(body)
        try:
            async with self.api.call_api(
                method, version="", base=f"/{root}", url=rest, raise_for_status=False, **request
            ) as answer:
                return ApiResponse(answer.status_code, _json(answer.content))
        except (httpx.TransportError, kr8s.APITimeoutError) as error:
            raise Unavailable(f"the API server does not answer: {type(error).__name__}") from None

    async def _refused_for_good(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> ApiResponse:
        """Ask again what was refused: a server that starts refuses everything until it has read who may do what.

        First it refuses to say how ready it is as well, then it says that it is not; some never say it to us. Raises
        Unavailable for one that is not ready.
        """
        for _ in range(REFUSALS):
            readiness = await self._readiness()
            answer = await self._once(method, path, body, query)
            if answer.code != 403 or readiness == 200:
                return answer
            await asyncio.sleep(REFUSED_PAUSE)
        if readiness >= 500:
            raise Unavailable(f"the API server is starting: {answer.message}")
        return answer

    async def _readiness(self) -> int:
        try:
            answer = await self.streams.get("/readyz", headers=self._headers(), timeout=CONNECT_SECONDS)
        except httpx.TransportError as error:
            raise Unavailable(f"the API server does not answer: {type(error).__name__}") from None
        return answer.status_code

    async def _renew(self) -> None:
        try:
            await self.api.reauthenticate()
        except (ValueError, KeyError, OSError) as error:
            raise Denied(f"no credentials for the API server: {error}") from None

    def _headers(self) -> dict[str, str]:
        token = self.api.auth.token
        return {"authorization": f"Bearer {token.strip()}"} if token else {}


class Gone(Unavailable):
    """The server no longer has the version that was asked for: list anew."""


@asynccontextmanager
async def connect(context: str = "") -> AsyncIterator[Kube]:
    """Connect by the service account inside a pod, else by the kubeconfig. context: of the kubeconfig, "" for its own.

    Raises Denied without credentials, Unavailable when the server does not answer.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            api = await kr8s.asyncio.api(context=context or None)
        except (ValueError, KeyError, OSError) as error:
            raise Denied(f"no credentials for a Kubernetes API server: {error}") from None
        except (httpx.TransportError, kr8s.APITimeoutError, kr8s.ServerError) as error:
            raise Unavailable(f"the API server does not answer: {str(error) or type(error).__name__}") from None
    for warning in caught:
        log.warning("kubernetes_client", why=str(warning.message))
    async with httpx.AsyncClient(
        base_url=api.auth.server,
        verify=await api.auth.ssl_context(),  # type: ignore[no-untyped-call]
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        proxy=api.auth.proxy,
    ) as streams:
        yield Kube(api, streams)


async def _message(socket: httpx_ws.AsyncWebSocketSession) -> bytes:
    """b"" at the end, also of a connection that breaks."""
    try:
        return await socket.receive_bytes()
    except (httpx_ws.WebSocketDisconnect, httpx_ws.WebSocketNetworkError):
        return b""


def _body(path: str, answer: ApiResponse) -> dict[str, Any]:
    if answer.code == 429:
        raise Unavailable(f"the API server is busy: {answer.message}")
    if answer.code == 403:
        raise OutOfScope(f"GET {path}: {answer.message}")
    if not answer.ok:
        raise BadInput(f"GET {path}: {answer.message}")
    return dict(answer.body)


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {"message": content[:500].decode("utf-8", "replace")}
    return body if isinstance(body, dict) else {"message": str(body)[:500]}
