"""The agent's process against an API server, with the real service or a double of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

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
