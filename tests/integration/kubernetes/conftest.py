"""The agent's process against an API server, with the real service or a double of it."""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml

from diagnoser.agent.kubernetes.cluster import KubernetesCluster
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kube import ApiResponse, Kube
from diagnoser.agent.kubernetes.parsing import Workload
from tests.integration.agent_process import Agent
from tests.integration.kubernetes.double import Server, api_server

NAME = "lab"
NAMESPACE = "train"


@contextmanager
def agent_of(
    folder: Path, service: str, kubeconfig: Path, *options: str, namespace: str = NAMESPACE
) -> Iterator[Agent]:
    """An agent that is not started yet; ended at the end."""
    home = folder / "agent"
    home.mkdir()
    given = ["kubernetes", "--server", service, "--cluster", NAME, "--namespace", namespace, "--poll", "0.3", *options]
    found = Agent(home, given, {**os.environ, "KUBECONFIG": str(kubeconfig)})
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    """Three nodes in service."""
    with api_server() as found:
        for name in ("gpu-01", "gpu-02", "gpu-03"):
            found.state.add_node(name)
        yield found


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": server.base}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(found))
    return path


class PlainKube(Kube):
    """Without the client library, which leaves its connections open in the process of a test."""

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> ApiResponse:
        answer = await self.streams.request(method, path, json=body, params=query or {}, headers=self._headers())
        return ApiResponse(answer.status_code, answer.json())

    def _headers(self) -> dict[str, str]:
        return {"authorization": "Bearer t"}


@asynccontextmanager
async def cluster_of(
    server: Server, *, program: str = "", query_image: str = "", check_image: str = ""
) -> AsyncIterator[KubernetesCluster]:
    """The cluster as an agent acts on it, in the process of a test. A second passes with each look at its clock."""

    async def launch_of(workload: Workload) -> int:
        return 1

    seconds = count()
    async with httpx.AsyncClient(base_url=server.base) as client:
        kube, cache = PlainKube(cast(Any, None), client), InformerCache(0.0)
        images: dict[str, Any] = {"query_image": query_image, "check_image": check_image}
        yield KubernetesCluster(kube, "me", NAME, cache, program, launch_of, lambda: float(next(seconds)), **images)


def job(name: str, *, pods: int = 2, **spec: Any) -> dict[str, Any]:
    """A Job that asks for GPUs."""
    limits = {"nvidia.com/gpu": "1"}
    container = {
        "name": "main",
        "image": "trainer:1",
        "resources": {"limits": limits},
        "env": [{"name": "A", "value": "b"}],
    }
    template = {
        "metadata": {"labels": {"job-name": name}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    meta = {"name": name, "namespace": NAMESPACE, "labels": {"diagnoser.io/family": name}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"parallelism": pods, "completions": pods, "template": template, **spec},
    }


def launched(server: Server, found: dict[str, Any]) -> str:
    """A Job whose pods run; its id at the service."""
    name = found["metadata"]["name"]
    server.state.put("jobs", found)
    server.state.run(name)
    return f"k8s:{NAME}:job:{NAMESPACE}:{name}"
