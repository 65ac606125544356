"""A node that dies under a job, on a real Slurm."""

from pathlib import Path

import pytest

from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, site

pytestmark = pytest.mark.xdist_group("slurm")

LONG = """#!/bin/bash
echo "launch ${SLURM_RESTART_COUNT:-0}"
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then exec sleep 300; fi
echo "Training completed"
"""


@pytest.mark.dead_after(4)
def test_a_dead_node_is_named_and_kept_out(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm itself requeues the job; the node that died is named, and drained so that it does not come back unseen."""
    with site(cluster, tmp_path) as found:
        job = cluster.submit(LONG, "--nodes=2", "--ntasks-per-node=1", "--requeue")
        until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs")
        bad = "gpu-02"
        assert cluster.state(job)[1] == "gpu-[01-02]"
        path = f"/api/v1/jobs/slurm-{NAME}-{job}"
        until(lambda: found.client.get(path).status_code == 200, "the agent has seen it run")
        cluster.end(bad, kill=True)
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job ran again and is complete")
        plan = found.ended_plan(job)
        assert (plan["state"], plan["action"], plan["nodes"]) == ("reached", "cordon_and_resubmit", [bad]), plan
        assert plan["attempt"] == 1
        assert [step["command"].split()[1] for step in plan["steps"]] == ["update"]
        assert cluster.node(bad)[1] == f"diagnoser {plan['id']}: node_failure"
        events = found.get(f"/jobs/slurm-{NAME}-{job}")["attempts"][0]["events"]
        assert [(one["kind"], one["reason"], one["node"]) for one in events][1:] == [("exit", "NODE_FAIL", bad)]
