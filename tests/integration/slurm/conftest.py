"""Each test has a cluster, a service, a database and an agent of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import Service, service
from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import Cluster, until

NAME = "lab"


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Idle nodes, in a cluster of this test's own: it starts in a second or two, while a node that is resumed counts as
    silent until it has answered a ping, which may take a minute. A mark says how soon a node counts as dead."""
    if why := slurm.missing():
        pytest.skip(f"needs a real Slurm: {why}")
    mark = request.node.get_closest_marker("dead_after")
    with slurm.running(NAME, 5, *(mark.args if mark else ())) as found:
        yield found


@dataclass
class Agent:
    """``diagnoser agent slurm`` as its own process; ``start`` again goes on where it was."""

    folder: Path
    cluster: Cluster
    url: str
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, **variables: str) -> None:
        program = str(Path(sys.executable).with_name("diagnoser"))
        command = [program, "agent", "slurm", "--server", self.url, "--cluster", NAME, "--state", str(self.folder)]
        environment = {**self.cluster.environment, **variables}
        with (self.folder / "agent.log").open("ab") as log:
            command += ["--poll", "1", *self.options, *options]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()


@dataclass
class Site:
    """Cluster, service and agent, seen from outside."""

    cluster: Cluster
    service: Service
    agent: Agent
    client: httpx.Client

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(f"/api/v1{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def plans(self, job: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.get("/plans", job=f"slurm-{NAME}-{job}")["items"]
        return items

    def ended_plan(self, job: str, seconds: float = 180) -> dict[str, Any]:
        """The job's plan once it is reached or not."""
        ends = ("reached", "not_reached")
        try:
            until(lambda: [one for one in self.plans(job) if one["state"] in ends], "a plan has ended", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.plans(job)}\n{self.agent.log()[-4000:]}") from None
        return next(one for one in self.plans(job) if one["state"] in ends)


@contextmanager
def site(
    cluster: Cluster, folder: Path, *options: str, variables: Mapping[str, str] | None = None, **settings: str
) -> Iterator[Site]:
    """All three running. options, variables: of the agent. settings: of the service."""
    with ExitStack() as stack:
        for part in ("service", "agent"):
            (folder / part).mkdir()
        found = stack.enter_context(
            service(
                folder / "service",
                **{"DIAGNOSER_RECOVERY_MODE": "act", "DIAGNOSER_EXIT_GRACE_SECONDS": "1", **settings},
            )
        )
        client = found.start()
        agent = Agent(folder / "agent", cluster, found.url, options)
        stack.callback(_stop, agent)
        agent.start(**(variables or {}))
        until(lambda: "agent_started" in agent.log(), "the agent looks")
        yield Site(cluster, found, agent, client)


def _stop(agent: Agent) -> None:
    if agent.process and agent.process.poll() is None:
        agent.end()
    if shown := os.environ.get("SHOW_AGENT_LOG"):
        Path(shown).write_text(agent.log())
