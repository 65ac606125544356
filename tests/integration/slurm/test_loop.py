"""The whole loop on a real Slurm: a job fails, its node is drained, the job runs again elsewhere."""

from pathlib import Path

import pytest

from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, site

pytestmark = pytest.mark.xdist_group("slurm")

AGENT, PEOPLE = "agent-" + "a" * 16, "people-" + "p" * 16

BROKEN_NODE = """#!/bin/bash
echo "launch ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
for step in 1 2 3; do echo "step $step loss 2.$step"; done
sleep 1.5
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
  echo "$SLURMD_NODENAME kernel: mce: [Hardware Error]: Machine check events logged"
  echo "Traceback (most recent call last):"
  echo "  File \\"pretrain.py\\", line 91, in step"
  echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"
  exit 1
fi
for step in 4 5 6; do echo "step $step loss 1.$step"; sleep 0.3; done
echo "Training completed"
"""


def test_a_failed_job_runs_again_without_its_broken_node(cluster: Cluster, tmp_path: Path) -> None:
    """The log is shipped, the diagnosis names the node, the node is drained for our reason, and the job completes.

    The agent's token may carry out, and no more.
    """
    tokens = f"agent:{AGENT},operate:{PEOPLE}"
    with site(cluster, tmp_path, variables={"DIAGNOSER_AGENT_TOKEN": AGENT}, DIAGNOSER_TOKENS=tokens) as found:
        found.client.headers["authorization"] = f"Bearer {PEOPLE}"
        job = cluster.submit(BROKEN_NODE, "--nodes=2", "--ntasks-per-node=1")
        until(lambda: cluster.state(job)[0] == "FAILED", "the job has failed")
        until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs again")
        plan = found.ended_plan(job)
        bad = plan["nodes"][0]
        assert (plan["state"], plan["action"]) == ("reached", "cordon_and_resubmit")
        state, reason = cluster.node(bad)
        assert state.startswith("drain")
        assert reason.startswith(f"diagnoser {plan['id']}: ")
        assert plan["drained"] == [bad]
        assert [step["command"].split()[1] for step in plan["steps"]] == ["update", "requeue"]
        assert {step["exit_code"] for step in plan["steps"]} == {0}
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        assert bad not in cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%N")

        def launches() -> list[tuple[str, int]]:
            attempts = found.get(f"/jobs/slurm-{NAME}-{job}")["attempts"]
            judged = [one["diagnosis"] for one in attempts if one["diagnosis"]]
            return [(one["outcome"], one["compression"]["lines_in"]) for one in judged]

        both = [("failed", 8), ("completed", 8)]
        until(lambda: launches() == both, f"each launch is judged by its own lines: {launches()}")
