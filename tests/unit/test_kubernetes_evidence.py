"""How evidence is asked for on Kubernetes: in which pods, and over a WebSocket as the API server speaks it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from httpx_ws.transport import ASGIWebSocketTransport
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from diagnoser.agent import evidence
from diagnoser.agent.cluster import NotCollected
from diagnoser.agent.evidence import Collected
from diagnoser.agent.kubernetes.evidence import FIELDS, KubernetesEvidence
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kinds import JOB
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.parsing import Workload
from diagnoser.model import AttemptKey, EvidenceRequest, RequestReason
from diagnoser.model.errors import Unavailable

ID = "k8s:lab:job:train:seven"
OUT, ERR, STATUS = b"\x01", b"\x02", b"\x03"


class PlainKube(Kube):
    def _headers(self) -> dict[str, str]:
        return {"authorization": "Bearer t"}


class ApiServer:
    """messages: what every command prints. asked: (pod, query) of each."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = messages
        self.asked: list[tuple[str, list[tuple[str, str]]]] = []

    async def execute(self, socket: WebSocket) -> None:
        assert socket.headers["authorization"] == "Bearer t"
        self.asked.append((socket.path_params["pod"], socket.query_params.multi_items()))
        await socket.accept(subprotocol="v4.channel.k8s.io")
        for message in self.messages:
            await socket.send_bytes(message)
        await socket.close()

    @asynccontextmanager
    async def kube(self) -> AsyncIterator[Kube]:
        path = "/api/v1/namespaces/train/pods/{pod}/exec"
        app = Starlette(routes=[WebSocketRoute(path, self.execute)])
        async with (
            ASGIWebSocketTransport(app) as transport,
            httpx.AsyncClient(transport=transport, base_url="http://cluster.test") as streams,
        ):
            yield PlainKube(cast(Any, None), streams)


def cache() -> InformerCache:
    """A Job of two pods, of which one has ended."""
    made = InformerCache()
    made.put_workload(
        JOB, {"metadata": {"name": "seven", "namespace": "train", "uid": "u"}, "spec": {"template": {"spec": {}}}}
    )
    for index, state in enumerate(
        ({"running": {"startedAt": "2026-03-01T10:00:00Z"}}, {"terminated": {"exitCode": 0}})
    ):
        owner = {"kind": "Job", "name": "seven", "uid": "u", "controller": True}
        meta = {"name": f"seven-{index}", "namespace": "train", "uid": f"p{index}", "ownerReferences": [owner]}
        status = [{"name": "main", "restartCount": 0, "state": state}]
        spec = {"nodeName": f"n{index}", "containers": [{"name": "main"}]}
        made.put_pod({"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": status}})
    return made


async def collected(kube: Kube, launch: int = 1, *, programs: bool = True, attempt: int = 1) -> list[Collected]:
    async def launch_of(work: Workload) -> int:
        return launch

    options = evidence.options((), (), FIELDS, programs=programs)
    source = KubernetesEvidence(kube, cache(), "lab", launch_of, options)
    asked = EvidenceRequest("1", AttemptKey(ID, attempt), "lab", 100.0, RequestReason.SILENCE, 0.0)
    return [found async for found in source.collect(asked)]


async def test_the_program_runs_in_each_pod_that_runs() -> None:
    """In the first container; what it prints is glued together, what goes to standard error is not."""
    server = ApiServer(OUT + b'{"note": "py-spy ', ERR + b"noise", OUT + b'is not installed"}\n', STATUS + b"{}")
    async with server.kube() as kube:
        assert await collected(kube) == [NotCollected("n0: py-spy is not installed")]
    ((pod, query),) = server.asked
    command = [value for name, value in query if name == "command"]
    assert (pod, command[:3], dict(query)["container"]) == ("seven-0", ["python3", "-I", "-c"], "main")
    assert json.loads(command[-1])["job"] == ""


@pytest.mark.parametrize(
    ("launch", "options", "count"), [(1, {"programs": False}, 0), (2, {}, 1), (1, {"attempt": 2}, 1)]
)
async def test_nothing_runs_without_the_switch_or_in_another_launch(
    launch: int, options: dict[str, Any], count: int
) -> None:
    """The result says why."""
    server = ApiServer()
    async with server.kube() as kube:
        assert len(await collected(kube, launch, **options)) == count
    assert server.asked == []


async def test_output_is_bounded_and_a_connection_that_ends_is_an_end() -> None:
    """Also without a status."""
    async with ApiServer(OUT + b"x" * 900, OUT + b"y" * 900).kube() as kube:
        text = await kube.execute("/api/v1/namespaces/train/pods/p/exec", "main", ["true"], 30.0, 1000)
    assert text == "x" * 900 + "y" * 100


async def test_a_refusal_names_its_status() -> None:
    """The right pods/exec is missing."""

    async def refuse(request: Any) -> JSONResponse:
        return JSONResponse({"message": "forbidden"}, 403)

    app = Starlette(routes=[Route("/exec", refuse)])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://cluster.test") as streams:
        with pytest.raises(Unavailable, match="HTTP 403"):
            await PlainKube(cast(Any, None), streams).execute("/exec", "main", ["true"], 30.0, 1000)
