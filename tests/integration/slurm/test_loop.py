"""The whole loop on a real Slurm: a job fails, its broken node is drained, the job runs again elsewhere.

What the job alone says about a node drains none.
"""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, Site, site

pytestmark = pytest.mark.xdist_group("slurm")

AGENT, NODES, PEOPLE = "agent-" + "a" * 16, "nodes-" + "n" * 16, "people-" + "p" * 16
MCE = "mce: Uncorrected hardware memory error in user-access at 7f2c1000"
DMESG = """#!/bin/sh
# In place of the kernel's log of this node: no machine is broken here.
cat {folder}/kernel-$SLURMD_NODENAME.log
"""


def broken_node(reported: Path) -> str:
    """A job whose node breaks in its first launch, at the third step. It says so, and fails, once the file is there: by
    then the node has reported.
    """
    return f"""#!/bin/bash
echo "launch ${{SLURM_RESTART_COUNT:-0}} on $SLURM_JOB_NODELIST"
for step in 1 2 3; do echo "step $step loss 2.$step"; done
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
  until [ -e {reported} ]; do sleep 0.1; done
  echo "$SLURMD_NODENAME kernel: {MCE}"
  echo "Traceback (most recent call last):"
  echo "  File \\"pretrain.py\\", line 91, in step"
  echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"
  exit 1
fi
for step in 4 5 6; do echo "step $step loss 1.$step"; sleep 0.3; done
echo "Training completed"
"""


def own_log(cluster: Cluster) -> dict[str, str]:
    """Variables of an agent whose nodes print the log that ``report_node`` gives them; the others' is short."""
    tools = cluster.folder / "tools"
    tools.mkdir()
    (tools / "dmesg").write_text(DMESG.format(folder=cluster.folder))
    (tools / "dmesg").chmod(0o755)
    for node in cluster.nodes:
        (cluster.folder / f"kernel-{node}.log").write_text(f"{stamp()} usb 1-1: new high-speed USB device\n")
    return {"PATH": f"{tools}:{cluster.environment['PATH']}"}


def stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace(".", ",")


def report_node(lab: Site, job: str, reported: Path, *, confirms: bool = True) -> None:
    """The node on which the job's script runs reports its fault once the service has the job's steps, then the job
    fails. confirms: whether the node's own log holds the line that was shipped as its."""
    until(lambda: bool(lab.cluster.state(job)[0] == "RUNNING" and steps_sent(lab, job)), "the job trains")
    host = lab.cluster.run("squeue", "-h", "-j", job, "-o", "%B").strip()
    if confirms:
        (lab.cluster.folder / f"kernel-{host}.log").write_text(f"{stamp()} {MCE}\n")
    lab.kernel_log(host, MCE)
    reported.touch()


def steps_sent(lab: Site, job: str) -> bool:
    answer = lab.client.get(f"/api/v1/jobs/slurm-{NAME}-{job}")
    attempts = answer.json()["attempts"] if answer.status_code == 200 else []
    return bool(attempts and attempts[0]["last_line"])


def test_a_failed_job_runs_again_without_its_broken_node(cluster: Cluster, tmp_path: Path) -> None:
    """The node's own log proves the fault, the node is drained for our reason, and the job completes.

    The agent's token may carry out, and no more.
    """
    tokens = f"agent:{AGENT},agent:{NODES},operate:{PEOPLE}"
    variables = {"DIAGNOSER_AGENT_TOKEN": AGENT, **own_log(cluster)}
    with site(cluster, tmp_path, variables=variables, DIAGNOSER_TOKENS=tokens) as lab:
        lab.client.headers["authorization"] = f"Bearer {NODES}"
        job = cluster.submit(broken_node(cluster.folder / "reported"), "--nodes=2", "--ntasks-per-node=1")
        report_node(lab, job, cluster.folder / "reported")
        lab.client.headers["authorization"] = f"Bearer {PEOPLE}"
        until(lambda: cluster.state(job)[0] == "FAILED", "the job has failed")
        until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs again")
        plan = lab.ended_plan(job)
        bad = plan["nodes"][0]
        assert (plan["state"], plan["action"]) == ("reached", "cordon_and_resubmit")
        assert [(proof["node"], proof["kind"], proof["text"]) for proof in plan["proofs"]] == [(bad, "node_log", MCE)]
        assert f"{bad} confirms it: " in plan["history"][-1]["why"]
        state, reason = cluster.node(bad)
        assert state.startswith("drain")
        assert reason.startswith(f"diagnoser {plan['id']}: ")
        assert plan["drained"] == [bad]
        commands = [step["command"].split()[1] for step in plan["steps"]]
        assert commands == ["--job-name=diagnoser-ask", "update", "requeue"]
        assert {step["exit_code"] for step in plan["steps"]} == {0}
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        assert bad not in cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%N")

        def launches() -> list[tuple[str, int]]:
            attempts = lab.get(f"/jobs/slurm-{NAME}-{job}")["attempts"]
            judged = [one["diagnosis"] for one in attempts if one["diagnosis"]]
            return [(one["outcome"], one["compression"]["lines_in"]) for one in judged]

        both = [("failed", 8), ("completed", 8)]
        until(lambda: launches() == both, f"each launch is judged by its own lines: {launches()}")


def test_a_node_whose_own_log_does_not_confirm_its_shipped_one_stays(cluster: Cluster, tmp_path: Path) -> None:
    """The line was shipped as the node's kernel log, by whoever has the token; the agent asks the node before it drains
    it."""
    with site(cluster, tmp_path, variables=own_log(cluster)) as lab:
        job = cluster.submit(broken_node(cluster.folder / "reported"), "--nodes=2", "--ntasks-per-node=1")
        report_node(lab, job, cluster.folder / "reported", confirms=False)
        plan = lab.ended_plan(job)
        assert (plan["state"], plan["reason"], plan["drained"]) == ("not_reached", "not_confirmed", [])
        assert [node for node in cluster.nodes if cluster.node(node)[0].startswith("drain")] == []
        assert cluster.state(job)[0] == "FAILED"


def test_the_job_s_word_alone_drains_no_node(cluster: Cluster, tmp_path: Path) -> None:
    """The same job without the node's own log: its nodes stay in service, the plan says what proof is missing and waits
    for a person, and on the person's no the job runs again as it was."""
    with site(cluster, tmp_path) as lab:
        (cluster.folder / "reported").touch()
        job = cluster.submit(broken_node(cluster.folder / "reported"), "--nodes=2", "--ntasks-per-node=1")
        until(lambda: cluster.state(job)[0] == "FAILED", "the job has failed")
        until(lambda: [plan for plan in lab.plans(job) if plan["state"] == "waiting"], "the plan waits for a person")
        (plan,) = lab.plans(job)
        assert (plan["action"], plan["reason"], plan["drained"]) == ("check_and_resubmit", "unproven", [])
        assert any("needs the node's own log or a node check" in change["why"] for change in plan["history"])
        assert cluster.state(job)[0] == "PENDING"
        lab.client.post(f"/api/v1/plans/{plan['id']}/refuse", json={"by": "ida"}).raise_for_status()
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        assert [node for node in cluster.nodes if cluster.node(node)[0].startswith("drain")] == []


DIVERGES = """#!/bin/bash
echo "from $DIAGNOSER_CHECKPOINT, skip $DIAGNOSER_SKIP_FROM to $DIAGNOSER_SKIP_TO"
for step in $(seq 1 60); do
  echo "step $step loss 2.$((step * 7919 % 97 / 10))"
  if [ $step = 40 ]; then echo "saved checkpoint to /ckpt/step_40"; fi
done
if [ -z "$DIAGNOSER_CHECKPOINT" ]; then
  for step in $(seq 61 9999); do echo "step $step loss 9$((step * 7919 % 97)).5"; sleep 0.5; done
fi
sleep 600
"""


def test_a_run_whose_loss_diverged_is_ended_once_a_person_approves(cluster: Cluster, tmp_path: Path) -> None:
    """It prints on and on; its verdict comes while it runs, and nothing touches it before the approval. The next launch
    knows the checkpoint and the steps to skip, and keeps what the job's comment says to diagnoser."""
    with site(cluster, tmp_path, DIAGNOSER_RECOVERY_MODE="policy") as lab:
        job = cluster.submit(DIVERGES, "--nodes=1", '--comment={"diagnoser": {"cadence": "30m"}}')
        until(lambda: lab.plans(job), "a plan waits", 120)
        [plan] = lab.plans(job)
        assert (plan["state"], plan["action"]) == ("waiting", "rollback_and_resubmit")
        assert plan["rollback"]["checkpoint"] == "/ckpt/step_40"
        assert plan["rollback"]["skip_from"] == 61
        assert cluster.state(job)[0] == "RUNNING"
        lab.client.post(f"/api/v1/plans/{plan['id']}/approve", json={"comment": "it diverged"}).raise_for_status()
        plan = lab.ended_plan(job)
        assert plan["state"] == "reached", plan
        assert cluster.state(job)[0] == "CANCELLED"
        new = plan["requeued"].rpartition("-")[2]
        until(lambda: "from /ckpt/step_40, skip 61 to " in cluster.log(new), "the new one knows where from")
        until(lambda: steps_sent(lab, new), "the service knows the new one")
        contracts = [lab.get(f"/jobs/slurm-{NAME}-{number}")["labels"]["contract"] for number in (job, new)]
        assert contracts == ['{"cadence":"30m"}'] * 2
