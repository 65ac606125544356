"""The agent over a real slurmrestd with a JWT: Slurm's listing commands are not there at all."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, site, slurm_agent
from tests.integration.slurm.double import plans
from tests.integration.slurm.test_loop import broken_node, report_node

pytestmark = pytest.mark.xdist_group("slurm")

ABSENT = "#!/bin/sh\nexit 127\n"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if why := slurm.missing() or slurm.missing_rest():
        pytest.skip(f"needs a real Slurm with REST: {why}")
    with slurm.running(NAME, 4, rest=True) as found:
        yield found


def without_listings(folder: Path, cluster: Cluster) -> dict[str, str]:
    """Variables of an agent on a host whose squeue and sinfo do not work."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("squeue", "sinfo"):
        (tools / name).write_text(ABSENT)
        (tools / name).chmod(0o755)
    return {"PATH": f"{tools}:{cluster.environment['PATH']}", "SLURM_JWT": cluster.token()}


def test_the_loop_runs_over_rest(cluster: Cluster, tmp_path: Path) -> None:
    """Jobs, their logs and ends, and the nodes are seen over REST; the plan is carried out, and the job completes."""
    rest = f"http://127.0.0.1:{cluster.rest}"
    with site(cluster, tmp_path, "--rest", rest, variables=without_listings(tmp_path, cluster)) as found:
        job = cluster.submit(broken_node(cluster.folder / "reported"), "--nodes=2", "--ntasks-per-node=1")
        report_node(found, job, cluster.folder / "reported")
        plan = found.ended_plan(job)
        assert (plan["state"], plan["action"]) == ("reached", "cordon_and_resubmit"), plan
        assert cluster.node(plan["nodes"][0])[1].startswith(f"diagnoser {plan['id']}: ")
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        assert plan["nodes"][0] not in cluster.state(job)[1]
        cluster.run("scontrol", "update", "nodename=gpu-04", "state=drain", "reason=cables, ask Ida")

        def last() -> list[tuple[str, str, str]]:
            return [(one["node"], one["kind"], one["reason"]) for one in found.get("/nodes", cluster=NAME)]

        until(lambda: ("gpu-04", "cordoned", "cables, ask Ida") in last(), f"the drain is told: {last()}")


def test_a_job_is_ended_over_rest(cluster: Cluster, tmp_path: Path) -> None:
    """What the daemon can do, it does: the step says so. While the token is refused the agent waits for another."""
    job = cluster.submit("#!/bin/bash\nsleep 300\n")
    until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs")
    given = tmp_path / "token"
    given.write_text(f"SLURM_JWT={cluster.token()}\n")
    with plans() as double:
        agent = slurm_agent(cluster, tmp_path, double.base)
        variables = {"PATH": without_listings(tmp_path, cluster)["PATH"]}
        agent.start("--rest", f"http://127.0.0.1:{cluster.rest}", "--rest-token-file", str(given), **variables)
        try:
            until(lambda: "agent_started" in agent.log(), f"the agent looks: {agent.log()}")
            given.write_text("expired")
            until(lambda: "look_failed" in agent.log(), "the token has run out")
            back = {"checkpoint": "/ckpt/4000", "step": 4000, "skip_from": 4001, "skip_to": 4120}
            double.add("p1", f"slurm-{NAME}-{job}", "rollback_and_resubmit", rollback=back)
            given.write_text(cluster.token())
            until(lambda: double.ended("p1"), "the plan has ended")
        finally:
            agent.end(signal.SIGTERM)
        (ended,) = [step for step in double.plans["p1"]["steps"] if step["command"] == f"scancel {job}"]
        assert (ended["exit_code"], ended["output"]) == (0, "by slurmrestd")
        until(lambda: cluster.state(job)[0] == "CANCELLED", "the old job is stopped")
