"""What the API server's answers mean, without one."""

from collections.abc import Mapping
from typing import Any, cast

import httpx
import pytest

from diagnoser.agent.kubernetes.kube import ApiResponse, Kube
from diagnoser.model.errors import OutOfScope, Unavailable

NODE = "/api/v1/nodes/gpu-01"


class PlainKube(Kube):
    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> ApiResponse:
        answer = await self.streams.request(method, path)
        return ApiResponse(answer.status_code, {})

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


async def test_a_refusal_by_a_server_that_is_not_ready_is_none() -> None:
    """It has not read who may do what, and is asked again later."""
    with pytest.raises(Unavailable, match="is starting"):
        await kube((NODE, 403), ("/readyz", 500)).get(NODE)


async def test_a_server_that_became_ready_in_between_is_asked_again() -> None:
    """Its first refusal was that of its start."""
    assert await kube((NODE, 403), ("/readyz", 200), (NODE, 200)).get(NODE) == {}


@pytest.mark.parametrize("readiness", [200, 403, 404])
async def test_what_a_server_refuses_that_is_ready_is_refused(readiness: int) -> None:
    """Also where it lets nobody ask whether it is ready."""
    with pytest.raises(OutOfScope):
        await kube((NODE, 403), ("/readyz", readiness), (NODE, 403)).get(NODE)
