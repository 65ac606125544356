"""Each test has a cluster, a service, a database and an agent of its own."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import Service, service
from tests.integration.agent_process import Agent
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


def slurm_agent(cluster: Cluster, folder: Path, url: str, *options: str) -> Agent:
    """One that is not started yet."""
    given = ["slurm", "--server", url, "--cluster", NAME, "--poll", "1", *options]
    return Agent(folder, given, cluster.environment)


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

    def kernel_log(self, node: str, line: str) -> None:
        """The node's own agent sends a line of its kernel log."""
        query = {"source": "kernel", "cluster": NAME, "node": node}
        headers = {"content-type": "text/plain"}
        answer = self.client.post("/api/v1/logs", params=query, content=f"{line}\n", headers=headers)
        assert answer.status_code == 204, answer.text

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
        agent = slurm_agent(cluster, folder / "agent", found.url, *options)
        stack.callback(_stop, agent)
        agent.start(**(variables or {}))
        until(lambda: "agent_started" in agent.log(), "the agent looks")
        yield Site(cluster, found, agent, client)


def _stop(agent: Agent) -> None:
    agent.stop()
    if shown := os.environ.get("SHOW_AGENT_LOG"):
        Path(shown).write_text(agent.log())
