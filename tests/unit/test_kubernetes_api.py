"""What the API server's answers mean, without one."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import httpx
import orjson
import pytest

from diagnoser.agent.kubernetes import kube as kube_module
from diagnoser.agent.kubernetes import reflector
from diagnoser.agent.kubernetes.kube import ApiResponse, Kube
from diagnoser.agent.kubernetes.reflector import Reflector
from diagnoser.model.errors import OutOfScope, Unavailable

NODE = "/api/v1/nodes/gpu-01"


class PlainKube(Kube):
    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> ApiResponse:
        answer = await self.streams.request(method, path)
        return ApiResponse(answer.status_code, orjson.loads(answer.content or b"{}"))

    def _headers(self) -> dict[str, str]:
        return {}


def kube(*answers: tuple[str, int]) -> Kube:
    """Of a server that gives these answers, in this order."""
    coming = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        path, status = next(coming)
        assert request.url.path == path
        return httpx.Response(status)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://cluster.test")
    return PlainKube(cast(Any, None), client)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "REFUSED_PAUSE", 0.0)


async def test_a_refusal_by_a_server_that_starts_is_none() -> None:
    """It has not read who may do what: first it refuses everything, and then it says that it is not ready."""
    starting = [(NODE, 403), ("/readyz", 403), (NODE, 403), ("/readyz", 500), (NODE, 403), ("/readyz", 200)]
    assert await kube(*starting, (NODE, 200)).get(NODE) == {}


async def test_a_server_that_never_becomes_ready_is_away() -> None:
    """Whoever asks can wait for it."""
    with pytest.raises(Unavailable, match="is starting"):
        await kube((NODE, 403), *[("/readyz", 500), (NODE, 403)] * kube_module.REFUSALS).get(NODE)


@pytest.mark.parametrize(("readiness", "times"), [(200, 1), (403, kube_module.REFUSALS)])
async def test_what_a_server_refuses_that_is_ready_is_refused(readiness: int, times: int) -> None:
    """Also where it never says to us whether it is ready."""
    with pytest.raises(OutOfScope):
        await kube((NODE, 403), *[("/readyz", readiness), (NODE, 403)] * times).get(NODE)


async def test_a_watch_that_is_refused_while_the_server_starts_goes_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could be listed is not taken for a kind that we may not read: that is looked at every five minutes."""
    monkeypatch.setattr(reflector, "SHORTEST_WAIT", 0.0)
    seen = asyncio.Event()
    added = {"type": "ADDED", "object": {"metadata": {"uid": "u", "name": "gpu-01", "resourceVersion": "8"}}}
    answers = iter(
        [
            httpx.Response(200, json={"metadata": {"resourceVersion": "7"}, "items": []}),
            httpx.Response(403),
            httpx.Response(200, content=orjson.dumps(added) + b"\n"),
        ]
    )
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: next(answers)), base_url="http://cluster.test"
    )
    nodes = Reflector(PlainKube(cast(Any, None), client), "/api/v1/nodes", lambda item: seen.set(), lambda item: None)
    following = asyncio.create_task(nodes.follow())
    async with asyncio.timeout(60):
        await seen.wait()
    following.cancel()
