"""The agent's process against an API server, with the real service or a double of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.kubernetes.double import Server, api_server

NAME = "lab"
NAMESPACE = "train"


@dataclass
class Agent:
    """``diagnoser agent kubernetes`` as its own process; ``start`` again goes on where it was."""

    folder: Path
    service: str
    kubeconfig: Path
    options: tuple[str, ...] = ()
    namespace: str = NAMESPACE
    process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        program = str(Path(sys.executable).with_name("diagnoser"))
        command = [program, "agent", "kubernetes", "--server", self.service, "--cluster", NAME]
        command += [
            "--namespace",
            self.namespace,
            "--state",
            str(self.folder),
            "--poll",
            "0.3",
            *self.options,
            *options,
        ]
        with (self.folder / "agent.log").open("ab") as log:
            environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()


@contextmanager
def agent_of(
    folder: Path, service: str, kubeconfig: Path, *options: str, namespace: str = NAMESPACE
) -> Iterator[Agent]:
    """An agent that is not started yet; ended at the end."""
    home = folder / "agent"
    home.mkdir()
    found = Agent(home, service, kubeconfig, options, namespace)
    try:
        yield found
    finally:
        if found.process and found.process.poll() is None:
            found.end()


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
