"""The node check on a real Slurm: srun starts real torch processes, and one node is made faulty."""

from pathlib import Path

import pytest

from tests.environments import TORCH
from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import site

pytestmark = pytest.mark.xdist_group("slurm")

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "deploy" / "checks" / "allgather.py"

COLLECTIVE_STALLS = """#!/bin/bash
sleep 1.5
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
  m="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, Timeout(ms)=600000)"
  for rank in 0 1 2 3; do
    echo "[rank$rank]:[E1121 09:14:0$rank.118 ProcessGroupNCCL.cpp:616] [Rank $rank] $m ran for 600041 milliseconds"
  done
  exit 1
fi
echo "Training completed"
"""

FAULT = """#!/bin/sh
# The tested program; on the faulty node its rank sends wrong data.
if [ "$SLURMD_NODENAME" = {node} ]; then set -- --corrupt-rank "$SLURM_PROCID"; fi
exec {python} {program} --mebibytes 1 --timeout 170 --backend gloo "$@"
"""


@pytest.mark.skipif(bool(TORCH.missing), reason=TORCH.missing)
def test_the_check_finds_the_faulty_node(cluster: Cluster, tmp_path: Path) -> None:
    """A failure that names no node: all are checked in pairs, the bad one is drained, and the job runs again."""
    assert PROGRAM.exists()
    program = cluster.folder / "check.sh"
    program.write_text(FAULT.format(node="gpu-02", python=TORCH.python, program=PROGRAM))
    program.chmod(0o755)
    with site(cluster, tmp_path, "--check", str(program)) as found:
        job = cluster.submit(COLLECTIVE_STALLS, "--nodes=4", "--ntasks-per-node=1")
        plan = found.ended_plan(job, seconds=400)
        assert (plan["state"], plan["action"]) == ("reached", "check_and_resubmit"), plan
        assert plan["drained"] == ["gpu-02"]
        assert cluster.node("gpu-02")[1].startswith(f"diagnoser {plan['id']}: nccl_")
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        assert cluster.run("scontrol", "show", "reservation") == "No reservations in the system"
        commands = [step["command"].split()[:2] for step in plan["steps"]]
        assert commands[:2] == [["scontrol", "create"], ["scontrol", "requeuehold"]]
        assert commands.count(["srun", "--job-name=diagnoser-check"]) == 4
        assert commands[-2:] == [["scontrol", "update"], ["scontrol", "release"]]
