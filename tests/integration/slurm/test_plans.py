"""Plans of every kind, carried out by the agent's process on a real Slurm; the service is a double that keeps state."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from tests.e2e.service import SECRET
from tests.integration.agent_process import Agent, ended
from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, slurm_agent
from tests.integration.slurm.double import Plans, plans
from tests.ports import free_port

pytestmark = pytest.mark.xdist_group("slurm")

FAILS_ONCE = """#!/bin/bash
echo "launch ${SLURM_RESTART_COUNT:-0} with [$DIAGNOSER_CHECKPOINT $DIAGNOSER_SKIP_FROM-$DIAGNOSER_SKIP_TO]"
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ] && [ -z "$DIAGNOSER_PLAN" ]; then exit 3; fi
sleep 300
"""

RUNS = "#!/bin/bash\nsleep 300\n"

SLOW_REQUEUE = """#!/bin/sh
# Stops before the requeue until it is killed, as a machine does that loses power there.
if [ "$1" = requeue ]; then touch {flag}; exec sleep 60; fi
exec /usr/bin/scontrol "$@"
"""


@contextmanager
def _agent(cluster: Cluster, folder: Path, found: Plans) -> Iterator[Agent]:
    """An agent that is not started yet; ended at the end."""
    agent = slurm_agent(cluster, folder, found.base)
    try:
        yield agent
    finally:
        agent.stop()


def _failed_job(cluster: Cluster, script: str = FAILS_ONCE, *options: str) -> str:
    job = cluster.submit(script, "--nodes=1", *options)
    until(lambda: cluster.state(job)[0] == "FAILED", "the job has failed")
    return job


def _priority(cluster: Cluster, job: str) -> str:
    """0 is what a held job has."""
    return cluster.run("squeue", "-h", "-j", job, "-o", "%Q")


def test_an_agent_that_dies_before_the_requeue_is_taken_over(cluster: Cluster, tmp_path: Path) -> None:
    """Killed between drain and requeue: the next one finds the drain, and requeues exactly once."""
    flag, tools = tmp_path / "stopped", tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(SLOW_REQUEUE.format(flag=flag))
    (tools / "scontrol").chmod(0o755)
    job = _failed_job(cluster)
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p1", f"slurm-{NAME}-{job}", nodes=["gpu-01"])
        agent.start(PATH=f"{tools}:{cluster.environment['PATH']}")
        until(flag.exists, "the requeue has begun")
        agent.end(signal.SIGKILL)
        assert cluster.node("gpu-01")[1] == "diagnoser p1: ecc_error"
        assert cluster.state(job)[0] == "FAILED"
        found.free()
        agent.start()
        plan = ended(found, agent, "p1")
        assert plan["state"] == "reached"
        assert [step["command"].split()[1] for step in plan["steps"]] == ["update", "requeue"]
        found.plans["p1"]["state"] = "sent"  # the report was lost: the plan is handed out once more
        found.free()
        assert ended(found, agent, "p1")["requeued"] == f"slurm-{NAME}-{job}"
        assert len(plan["steps"]) == 2
        assert "Restarts=1 " in cluster.run("scontrol", "-o", "show", "job", job)


ONE_TASK_FAILS = """#!/bin/bash
if [ "$SLURM_ARRAY_TASK_ID" = 2 ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then exit 3; fi
sleep 300
"""


def test_a_task_of_an_array_is_launched_again_and_the_others_run_on(cluster: Cluster, tmp_path: Path) -> None:
    """Its job has the number of the whole array."""
    array = cluster.submit(ONE_TASK_FAILS, "--array=0-2", "--ntasks=1")

    def tasks() -> list[str]:
        return sorted(cluster.run("squeue", "-h", "-t", "all", "-j", array, "-o", "%K %T").splitlines())

    until(lambda: tasks() == ["0 RUNNING", "1 RUNNING", "2 FAILED"], "a task has failed")
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p1", f"slurm-{NAME}-{array}", "resubmit")
        agent.start()
        assert ended(found, agent, "p1")["state"] == "reached"
        until(lambda: tasks() == ["0 RUNNING", "1 RUNNING", "2 RUNNING"], "it runs again")
        shown = cluster.run("scontrol", "-o", "show", "job", array)
        assert (shown.count("Restarts=0 "), shown.count("Restarts=1 ")) == (2, 1)


def test_the_next_link_of_a_chain_goes_on_alone(cluster: Cluster, tmp_path: Path) -> None:
    """A job that was queued with ``afterany`` runs once the first has failed: that one does not run beside it."""
    job = cluster.submit(FAILS_ONCE.replace("exit 3", "sleep 3; exit 3"), "--nodes=1", "--job-name=train")
    link = cluster.submit(RUNS, "--nodes=1", "--job-name=train", f"--dependency=afterany:{job}")
    until(lambda: cluster.state(link)[0] == "RUNNING", "the next link runs")
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p1", f"slurm-{NAME}-{job}", "resubmit")
        agent.start()
        assert ended(found, agent, "p1")["state"] == "not_reached"
        assert (cluster.state(job)[0], cluster.state(link)[0]) == ("FAILED", "RUNNING")


def test_a_job_that_waits_for_the_success_of_another_waits_for_its_next_launch(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Queued with ``afterok``, Slurm would never start it once the first launch has failed, although the next one ends
    well. What else it waits for stays."""
    job = cluster.submit(FAILS_ONCE.replace("exit 3", "sleep 3; exit 3").replace("300", "2"), "--nodes=1")
    later = cluster.submit(RUNS, "--nodes=1", "--begin=now+1hour")
    waits = [f"afterok:{job}", f"afterok:{job},afterany:{later}"]
    links = [cluster.submit(RUNS, "--nodes=1", f"--dependency={dependency}") for dependency in waits]
    reason = ("squeue", "-h", "-j", ",".join(links), "-o", "%r")
    until(lambda: cluster.run(*reason).split() == ["DependencyNeverSatisfied"] * 2, "Slurm would never start them")
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p1", f"slurm-{NAME}-{job}", "resubmit")
        agent.start()
        steps = [step["command"] for step in ended(found, agent, "p1")["steps"]]
        renewed = [
            f"scontrol update jobid={link} dependency={dependency}"
            for link, dependency in zip(links, waits, strict=True)
        ]
        assert sorted(steps) == sorted([f"scontrol requeue {job}", *renewed])
        until(lambda: cluster.state(links[0])[0] == "RUNNING", "the next link runs")
        assert (cluster.state(job)[0], cluster.state(links[1])[0]) == ("COMPLETED", "PENDING")


def test_a_job_that_cannot_be_requeued_is_submitted_anew(cluster: Cluster, tmp_path: Path) -> None:
    """With the stored script, without the bad node, as the same user, with the same output pattern."""
    job = _failed_job(cluster, FAILS_ONCE, "--no-requeue", "--job-name=seven b")
    link = cluster.submit(RUNS, "--nodes=1", f"--dependency=afterok:{job}")
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p2", f"slurm-{NAME}-{job}", nodes=["gpu-01"])
        agent.start()
        plan = ended(found, agent, "p2")
        assert plan["state"] == "reached", plan["detail"]
        new = plan["requeued"].rpartition("-")[2]
        assert new != job
        until(lambda: cluster.state(new)[0] == "RUNNING", "the new job runs")
        assert cluster.state(new)[1] != "gpu-01"
        told = cluster.run("scontrol", "-o", "show", "job", new)
        assert "JobName=seven b " in told
        assert "ExcNodeList=gpu-01 " in told
        assert cluster.run("squeue", "-h", "-j", new, "-o", "%u") == cluster.run("id", "-un", user=cluster.job_user)
        until(lambda: "launch 0 with [ -]" in cluster.log(new), "it writes its own log")
        assert cluster.run("squeue", "-h", "-j", link, "-o", "%E") == f"afterok:{new}(unfulfilled)"


def test_a_rollback_reaches_the_next_launch_as_variables(cluster: Cluster, tmp_path: Path) -> None:
    """A diverged job is stopped, and submitted anew with the checkpoint and the batches to skip."""
    job = cluster.submit(
        RUNS.replace(
            "sleep", 'echo "from $DIAGNOSER_CHECKPOINT, skip $DIAGNOSER_SKIP_FROM to $DIAGNOSER_SKIP_TO"\nsleep'
        )
    )
    until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs")
    back = {"checkpoint": "/ckpt/step 4000", "step": 4000, "skip_from": 4001, "skip_to": 4120}
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p3", f"slurm-{NAME}-{job}", "rollback_and_resubmit", rollback=back)
        agent.start()
        new = ended(found, agent, "p3")["requeued"].rpartition("-")[2]
        until(lambda: cluster.state(job)[0] == "CANCELLED", "the old job is stopped")
        until(lambda: "from /ckpt/step 4000, skip 4001 to 4120" in cluster.log(new), "the new one knows where from")


def test_a_job_that_slurm_shows_running_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    """Unless the verdict is a hang: it is neither requeued nor held for a check, and no node is drained."""
    job = cluster.submit(RUNS, "--nodes=1")
    until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs")
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.outcome = "failed"
        found.add("drains", f"slurm-{NAME}-{job}", nodes=["gpu-01"])
        found.add("checks", f"slurm-{NAME}-{job}", "check_and_resubmit")
        agent.start("--check", "/bin/true")
        details = {name: ended(found, agent, name)["detail"] for name in found.plans}
        assert {plan["state"] for plan in found.plans.values()} == {"not_reached"}
        assert [plan["steps"] for plan in found.plans.values()] == [[], []]
        assert all("still runs, and it does not hang" in detail for detail in details.values())
        refusals = [body["refused"] for _, body in found.said if isinstance(body, dict) and body.get("refused")]
        assert refusals == ["still_running", "still_running"]
        assert (cluster.state(job)[0], cluster.node("gpu-01")[0]) == ("RUNNING", "mixed")
        assert "Restarts=0 " in cluster.run("scontrol", "-o", "show", "job", job)


def test_what_cannot_be_reached_is_said_and_nothing_is_done(cluster: Cluster, tmp_path: Path) -> None:
    """A node that Slurm does not know, a job that is gone, a plan of another cluster, one that has expired."""
    job = _failed_job(cluster)
    past = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("unknown", f"slurm-{NAME}-{job}", nodes=["gpu-01", "gpu-77"])
        found.add("option", f"slurm-{NAME}-{job}", nodes=["--all"])
        found.add("gone", f"slurm-{NAME}-99999", "resubmit")
        found.add("elsewhere", f"slurm-other-{job}", "resubmit")
        found.add("expired", f"slurm-{NAME}-{job}", "resubmit", expires=past)
        agent.start()
        details = {name: ended(found, agent, name)["detail"] for name in found.plans}
        assert {plan["state"] for plan in found.plans.values()} == {"not_reached"}
        assert [plan["steps"] for plan in found.plans.values()] == [[]] * 5
        assert "gpu-77" in details["unknown"]
        assert "--all" in details["option"]
        assert "no more" in details["gone"]
        assert "no job of" in details["elsewhere"]
        assert "expired" in details["expired"]
        assert cluster.node("gpu-01")[0] == "idle"
        assert cluster.state(job)[0] == "FAILED"


def test_an_agent_without_a_check_leaves_no_job_held(cluster: Cluster, tmp_path: Path) -> None:
    """The job runs again, and the plan says that its nodes were not checked."""
    job = _failed_job(cluster)
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.pairs = [["gpu-01"]]
        found.add("p5", f"slurm-{NAME}-{job}", "check_and_resubmit")
        agent.start()
        plan = ended(found, agent, "p5")
        assert (plan["state"], "--check" in plan["detail"]) == ("not_reached", True)
        assert _priority(cluster, job) != "0"
        assert cluster.run("scontrol", "show", "reservation") == "No reservations in the system"


def test_a_refused_check_leaves_no_job_held(cluster: Cluster, tmp_path: Path) -> None:
    """The breaker wants a person's word after the check; the person says no after the agent was killed and started
    again, and the job runs again as it is."""
    job = _failed_job(cluster)
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p6", f"slurm-{NAME}-{job}", "check_and_resubmit")
        agent.start("--check", "/bin/true")
        until(lambda: found.plans["p6"]["state"] == "waiting", "the plan waits")
        until(lambda: "plan_taken_away" in agent.log(), "the agent knows")
        until(lambda: '"p6"' in (tmp_path / f"{NAME}.json").read_text(), "it is saved")
        agent.end(signal.SIGKILL)
        agent.start("--check", "/bin/true")
        assert _priority(cluster, job) == "0"
        found.plans["p6"]["state"] = "refused"
        until(lambda: _priority(cluster, job) != "0", "the job is released")
        until(lambda: '"p6"' not in (tmp_path / f"{NAME}.json").read_text(), "the plan is forgotten")
        assert agent.log().count(f"'scontrol release {job}'") == 1


def test_a_controller_that_is_down_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """The plan is carried out once slurmctld is back, and nothing is done twice."""
    job = _failed_job(cluster)
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        cluster.end("slurmctld")
        found.add("p4", f"slurm-{NAME}-{job}", "resubmit")
        agent.start()
        until(lambda: "scheduler_away" in agent.log(), "the agent has noticed")
        assert found.ended("p4") is None
        cluster.start_controller()
        plan = ended(found, agent, "p4")
        assert plan["state"] == "reached"
        assert [step["command"] for step in plan["steps"] if step["exit_code"] == 0] == [f"scontrol requeue {job}"]


def test_a_signed_webhook_wakes_the_agent(cluster: Cluster, tmp_path: Path) -> None:
    """Without a long poll: the plan is carried out when the delivery comes. A forged one is refused."""
    job, port = _failed_job(cluster), free_port()
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        agent.start("--listen", f"127.0.0.1:{port}", DIAGNOSER_AGENT_WEBHOOK_SECRET=SECRET)
        until(lambda: listens(port), f"the agent listens: {agent.log()}")
        until(lambda: found.claims, "the agent has asked, and there was nothing")
        found.add("p8", f"slurm-{NAME}-{job}", "resubmit")
        assert deliver(port, "whsec_" + "Zm9yZ2Vk" * 4) == 401
        asked = found.claims
        assert found.ended("p8") is None
        assert deliver(port, SECRET) == 204
        assert ended(found, agent, "p8")["state"] == "reached"
        assert asked == 1
        assert agent.end() == 0


def deliver(port: int, secret: str) -> int:
    """Status of a delivery that is signed with this secret."""
    body, at = '{"type": "recovery.plan"}', datetime.now(UTC)
    signature = Webhook(secret).sign("plan-1", at, body)
    headers = {"webhook-id": "plan-1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
    return httpx.post(f"http://127.0.0.1:{port}/", content=body, headers=headers).status_code


def listens(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").status_code == 405
    except httpx.TransportError:
        return False


def test_only_our_drains_are_resumed(cluster: Cluster, tmp_path: Path) -> None:
    """``slurm-resume`` gives back what a plan took out, and refuses what a person did."""
    program = str(Path(sys.executable).with_name("diagnoser"))

    def resume(*nodes: str) -> subprocess.CompletedProcess[str]:
        command = [program, "agent", "slurm-resume", *nodes]
        return subprocess.run(command, env=cluster.environment, capture_output=True, text=True, check=False)

    cluster.run("scontrol", "update", "nodename=gpu-01", "state=drain", "reason=diagnoser p9: ecc_error")
    cluster.run("scontrol", "update", "nodename=gpu-02", "state=drain", "reason=cables, ask Ida")
    refused = resume("gpu-01", "gpu-02")
    assert refused.returncode == 1
    assert "cables, ask Ida" in refused.stderr
    assert cluster.node("gpu-01")[0] == "drained"
    assert resume("gpu-01").returncode == 0
    until(lambda: cluster.node("gpu-01")[0].startswith("idle"), "the node is back")


def test_a_check_leaves_nodes_alone_on_which_other_jobs_run(cluster: Cluster, tmp_path: Path) -> None:
    """Two jobs share gpu-01, one of them fails: only gpu-02 is kept for the check. The other runs on, and new jobs may
    join it."""
    other = cluster.submit(RUNS, "--nodes=1", "--ntasks=1", "--nodelist=gpu-01")
    until(lambda: cluster.state(other)[0] == "RUNNING", "the other job runs")
    job = cluster.submit(RUNS, "--nodes=2", "--ntasks-per-node=1", "--nodelist=gpu-01,gpu-02")
    until(lambda: cluster.state(job)[0] == "RUNNING", "the job, which hangs, runs beside it")
    checked, program = cluster.folder / "jobs" / "checked", cluster.folder / "check.sh"
    program.write_text(f"#!/bin/sh\necho $SLURMD_NODENAME >> {checked}\nsleep 2\n")
    program.chmod(0o755)
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p9", f"slurm-{NAME}-{job}", "check_and_resubmit")
        found.checks, found.nodes = True, ["gpu-01", "gpu-02"]
        agent.start("--check", str(program))
        reserved = ("scontrol", "-o", "show", "reservation", "diagnoser_p9")
        until(lambda: "Nodes=gpu-02 " in cluster.run(*reserved, check=False), "a node is reserved")
        joins = cluster.submit(RUNS, "--nodes=1", "--ntasks=1", "--nodelist=gpu-01")
        until(lambda: cluster.state(joins)[0] == "RUNNING", "a new job joins the other one")
        plan = ended(found, agent, "p9")
        assert plan["state"] == "reached", plan["detail"]
        assert "other jobs run on gpu-01, which the check left alone" in plan["detail"]
        assert [cluster.state(one)[0] for one in (other, joins)] == ["RUNNING", "RUNNING"]
        assert set(checked.read_text().split()) == {"gpu-02"}
        assert cluster.run("scontrol", "show", "reservation") == "No reservations in the system"


def test_a_check_of_nodes_that_are_all_shared_is_left_out(cluster: Cluster, tmp_path: Path) -> None:
    """The job is launched again, and the plan says why its node was not checked."""
    other = cluster.submit(RUNS, "--nodes=1", "--ntasks=1", "--nodelist=gpu-01")
    until(lambda: cluster.state(other)[0] == "RUNNING", "the other job runs")
    job = _failed_job(cluster, FAILS_ONCE, "--ntasks=1", "--nodelist=gpu-01")
    with plans() as found, _agent(cluster, tmp_path, found) as agent:
        found.add("p10", f"slurm-{NAME}-{job}", "check_and_resubmit")
        found.checks, found.nodes = True, ["gpu-01"]
        agent.start("--check", "/bin/false")
        plan = ended(found, agent, "p10")
        assert plan["state"] == "not_reached"
        assert "the nodes were not checked: other jobs run on gpu-01, and are not disturbed" in plan["detail"]
        assert not [step for step in plan["steps"] if step["command"].startswith(("srun", "scontrol create"))]
        assert _priority(cluster, job) != "0"
        assert cluster.state(other)[0] == "RUNNING"
