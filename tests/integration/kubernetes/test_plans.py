"""Plans of every kind, carried out by the agent's process; API server and service are doubles that keep state."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from diagnoser.agent.kubernetes.kinds import KINDS, templates
from tests.e2e.service import until
from tests.integration.agent_process import Agent, ended
from tests.integration.kubernetes.conftest import agent_of, job, launched
from tests.integration.kubernetes.double import Server
from tests.integration.slurm.double import Plans, plans

POD = {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}
PLAN, REASON = "diagnoser.io/plan", "diagnoser.io/reason"


@pytest.fixture
def service() -> Iterator[Plans]:
    with plans() as found:
        yield found


@pytest.fixture
def agent(service: Plans, tmp_path: Path, kubeconfig: Path) -> Iterator[Agent]:
    with agent_of(tmp_path, service.base, kubeconfig, "--no-logs") as found:
        yield found


def _excluded(found: dict[str, Any]) -> list[str]:
    affinity = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [value for one in affinity["nodeSelectorTerms"][0]["matchFields"] for value in one["values"]]


def test_a_node_is_cordoned_and_the_job_made_anew_without_it(server: Server, service: Plans, agent: Agent) -> None:
    """Our marks are on the node, and the new Job is the old one but for its launch, its plan and its node."""
    known = launched(server, job("llama", backoffLimit=0))
    service.add("P1", known, nodes=["gpu-01"])
    agent.start()
    plan = ended(service, agent, "P1")
    assert (plan["state"], plan["requeued"]) == ("reached", known), plan
    node = server.state.get("nodes", "gpu-01")
    assert node and node["spec"]["unschedulable"] is True
    assert (node["metadata"]["annotations"][PLAN], node["metadata"]["annotations"][REASON]) == (
        "P1",
        "diagnoser P1: ecc_error",
    )
    assert server.changes() == ["PATCH nodes gpu-01", "POST configmaps", "DELETE jobs llama", "POST jobs",
                                "DELETE configmaps diagnoser-p1"]  # fmt: skip
    made = server.state.get("jobs", "llama")
    assert made and made["metadata"]["annotations"]["diagnoser.io/attempt"] == "2"
    pod = made["spec"]["template"]["spec"]
    assert _excluded(pod) == ["gpu-01"]
    assert pod["containers"][0]["env"] == [{"name": "A", "value": "b"}, {"name": "DIAGNOSER_PLAN", "value": "P1"}]
    assert {one["spec"]["nodeName"] for one in server.state.pods("llama")} == {"gpu-02", "gpu-03"}
    assert [step["command"].split()[0] for step in plan["steps"]] == ["PATCH", "POST", "DELETE", "POST", "DELETE"]
    assert {step["exit_code"] for step in plan["steps"]} == {0}


@pytest.mark.parametrize("before", ["DELETE jobs", "POST jobs"])
def test_an_agent_that_dies_half_way_is_taken_over(server: Server, service: Plans, agent: Agent, before: str) -> None:
    """Killed where the old Job is still there, and where it is gone: the next one makes it anew, exactly once."""
    known = launched(server, job("llama"))
    method, plural = before.split()
    server.state.refused[method, plural] = 503
    service.add("p1", known, nodes=["gpu-01"])
    agent.start()
    until(lambda: "command_failed" in agent.log(), "the step has begun")
    agent.end(signal.SIGKILL)
    del server.state.refused[method, plural]
    service.free()
    agent.start()
    assert ended(service, agent, "p1")["state"] == "reached"
    service.plans["p1"]["state"] = "sent"  # the report was lost: the plan is handed out once more
    service.free()
    assert ended(service, agent, "p1")["requeued"] == known
    done = ["PATCH nodes gpu-01", "POST configmaps", "DELETE jobs llama", "POST jobs", "DELETE configmaps diagnoser-p1"]
    assert server.changes() == done


def test_a_stored_copy_that_somebody_changed_is_not_made(server: Server, service: Plans, agent: Agent) -> None:
    """While the Job is only a copy, a tenant writes another workload into the ConfigMap: the next agent compares it
    with the plan's report, and creates nothing with its own rights."""
    known = launched(server, job("llama"))
    server.state.refused["POST", "jobs"] = 503
    service.add("p1", known, nodes=["gpu-01"])
    agent.start()
    until(lambda: "command_failed" in agent.log(), "the Job is only a copy")
    agent.end(signal.SIGKILL)
    del server.state.refused["POST", "jobs"]
    copy = server.state.get("configmaps", "diagnoser-p1")
    assert copy
    other = copy["data"]["workload.json"].replace('"name":"A","value":"b"', '"name":"A","value":"evil"')
    assert other != copy["data"]["workload.json"]
    server.state.put("configmaps", {**copy, "data": {"workload.json": other}})
    service.free()
    agent.start()
    plan = ended(service, agent, "p1")
    assert (plan["state"], "is not the one that the plan's report knows" in plan["detail"]) == ("not_reached", True)
    assert server.state.get("jobs", "llama") is None
    assert "POST jobs" not in server.changes()


def test_a_job_that_its_controller_launched_again_only_moves(server: Server, service: Plans, agent: Agent) -> None:
    """Its pods leave the cordoned node by an eviction, of the older kind where the cluster has no other."""
    known = launched(server, job("llama", pods=1))
    server.state.evictions = ("policy/v1beta1",)
    agent.start()
    until(lambda: any("/events" in path for path, _ in service.said), "the first launch is known")
    [pod] = server.state.pods("llama")
    server.state.fail(pod["metadata"]["name"])
    until(lambda: sum("/events" in path for path, _ in service.said) == 2, "its end is told")
    server.state.run("llama")
    until(lambda: sum("/events" in path for path, _ in service.said) == 3, "the second launch is known")
    service.add("p1", known, nodes=["gpu-01"])
    plan = ended(service, agent, "p1")
    assert plan["state"] == "reached", plan
    told = [step["command"].partition(" ")[2] for step in plan["steps"]]
    assert [("policy/v1beta1" in line, "eviction" in line) for line in told] == [
        (False, False),
        (False, True),
        (True, True),
    ]
    [old, new] = sorted(server.state.pods("llama"), key=lambda one: one["status"]["phase"])
    assert (old["status"]["phase"], new["spec"]["nodeName"]) == ("Failed", "gpu-02")


def test_pods_of_a_lost_node_hold_up_nothing(server: Server, service: Plans, agent: Agent) -> None:
    """They would never end, and the old Job with them: the server is told to forget them."""
    known = launched(server, job("llama"))
    server.state.lingering = "gpu-02"
    server.state.ready("gpu-02", "Unknown")
    service.add("p1", known, nodes=["gpu-02"])
    agent.start()
    plan = ended(service, agent, "p1")
    assert plan["state"] == "reached", plan
    assert sum(change.startswith("DELETE pods llama-1") for change in server.changes()) == 1
    assert {pod["spec"]["nodeName"] for pod in server.state.pods("llama")} == {"gpu-01", "gpu-03"}


CUSTOM = {
    "jobset": {"replicatedJobs": [{"name": "workers", "template": {"spec": {"template": POD}}}]},
    "pytorchjob": {"pytorchReplicaSpecs": {"Master": {"template": POD}, "Worker": {"template": POD}}},
    "rayjob": {"rayClusterSpec": {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [{"template": POD}]}},
}


OWNER: dict[str, dict[str, Any]] = {
    "jobset": {"labels": {"jobset.sigs.k8s.io/jobset-name": "llama"}},
    "pytorchjob": {"ownerReferences": [{"kind": "PyTorchJob", "name": "llama", "uid": "u1"}]},
    "rayjob": {"labels": {"ray.io/cluster": "llama-ray"}},
}
"""How a pod says whose it is."""


@pytest.mark.parametrize("word", CUSTOM)
def test_custom_workloads_are_made_anew_as_well(server: Server, service: Plans, agent: Agent, word: str) -> None:
    """JobSet, PyTorchJob and RayJob: the object that is written keeps all of its pods off the node."""
    spec = json.loads(json.dumps(CUSTOM[word]))
    meta = {"name": "llama", "namespace": "train", "finalizers": ["theirs/stays"]}
    status = {"old": True, "rayClusterName": "llama-ray"}
    server.state.put(f"{word}s", {"kind": word, "metadata": meta, "spec": spec, "status": status})
    pod = {"name": "llama-0", "namespace": "train", "uid": "p1", **OWNER[word]}
    server.state.put("pods", {"metadata": pod, "spec": {"nodeName": "gpu-01"}, "status": {"phase": "Running"}})
    service.add("p1", f"k8s:lab:{word}:train:llama", nodes=["gpu-01"])
    agent.start()
    assert ended(service, agent, "p1")["state"] == "reached"
    made = server.state.get(f"{word}s", "llama")
    assert made is not None
    assert "status" not in made
    assert made["metadata"]["annotations"] == {
        "diagnoser.io/plan": "p1",
        "diagnoser.io/attempt": "2",
        "diagnoser.io/excluded-nodes": "gpu-01",
    }
    pods = templates(KINDS[word], made)
    assert len(pods) == len(templates(KINDS[word], {"spec": CUSTOM[word]}))
    assert [_excluded(one["spec"]) for one in pods] == [["gpu-01"]] * len(pods)
    assert server.changes()[2:4] == [f"DELETE {word}s llama", f"POST {word}s"]


def test_a_rollback_reaches_the_next_launch_as_variables(server: Server, service: Plans, agent: Agent) -> None:
    """No node is touched; all containers get the checkpoint and the batches to skip."""
    known = launched(server, job("llama"))
    back = {"checkpoint": "/ckpt/step 4000", "step": 4000, "skip_from": 4001, "skip_to": 4120}
    service.add("p1", known, "rollback_and_resubmit", rollback=back)
    agent.start()
    assert ended(service, agent, "p1")["state"] == "reached"
    made = server.state.get("jobs", "llama")
    assert made
    variables = {one["name"]: one["value"] for one in made["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert variables == {"A": "b", "DIAGNOSER_PLAN": "p1", "DIAGNOSER_CHECKPOINT": "/ckpt/step 4000",
                         "DIAGNOSER_CHECKPOINT_STEP": "4000", "DIAGNOSER_SKIP_FROM": "4001",
                         "DIAGNOSER_SKIP_TO": "4120"}  # fmt: skip
    assert not any(change.startswith("PATCH") for change in server.changes())


def test_what_cannot_be_reached_is_said_and_nothing_is_done(server: Server, service: Plans, agent: Agent) -> None:
    """An unknown node, a job that is gone, one of another cluster, one that ended well, one that says no, expiry."""
    known = launched(server, job("llama"))
    done = launched(server, job("done"))
    server.state.end("done", "Complete", "")
    stays = job("stays")
    stays["metadata"]["annotations"] = {"diagnoser.io/restart": "false"}
    past = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    service.add("unknown", known, nodes=["gpu-01", "gpu-77"])
    service.add("path", known, nodes=["../pods"])
    service.add("gone", known.replace("llama", "other"), "resubmit")
    service.add("elsewhere", known.replace("lab", "west"), "resubmit")
    service.add("well", done, "resubmit")
    service.add("no", launched(server, stays), "resubmit")
    service.add("expired", known, "resubmit", expires=past)
    agent.start()
    details = {name: ended(service, agent, name)["detail"] for name in service.plans}
    assert {plan["state"] for plan in service.plans.values()} == {"not_reached"}
    assert server.changes() == []
    words = {"unknown": "gpu-77", "path": "../pods", "gone": "is gone", "elsewhere": "no job of", "well": "ended well",
             "no": "diagnoser.io/restart", "expired": "expired"}  # fmt: skip
    assert {name: word for name, word in words.items() if word not in details[name]} == {}


STEPS = [
    ("PATCH nodes", "llama"),
    ("DELETE jobs", "llama"),
    ("POST jobs", "diagnoser-p1"),
]


@pytest.mark.parametrize(("step", "left"), STEPS)
def test_what_the_cluster_refuses_is_a_clear_end(
    server: Server, service: Plans, agent: Agent, step: str, left: str
) -> None:
    """A role without that right: the answer is on the plan, and the workload or its copy is still there."""
    known = launched(server, job("llama"))
    method, plural = step.split()
    server.state.refused[method, plural] = 403
    service.add("p1", known, nodes=["gpu-01"])
    agent.start()
    plan = ended(service, agent, "p1")
    assert plan["state"] == "not_reached"
    assert "HTTP 403: refused" in plan["detail"]
    assert plan["steps"][-1]["exit_code"] == 403
    assert any(server.state.get(kind, left) for kind in ("jobs", "configmaps"))


def test_a_job_that_somebody_made_anew_is_left_alone(server: Server, service: Plans, agent: Agent) -> None:
    """While the old one made room, a person used its name."""
    known = launched(server, job("llama"))
    server.state.refused["DELETE", "jobs"] = 409
    service.add("p1", known, "resubmit")
    agent.start()
    until(lambda: "HTTP 409" in agent.log(), "the deletion was asked for")
    server.state.drop("jobs", "train", "llama")
    launched(server, {**job("llama"), "metadata": {"name": "llama", "namespace": "train", "uid": "theirs"}})
    plan = ended(service, agent, "p1")
    assert (plan["state"], "somebody else" in plan["detail"]) == ("not_reached", True)
    found = server.state.get("jobs", "llama")
    assert found and found["metadata"]["uid"] == "theirs"


def test_an_api_server_that_is_down_is_waited_for(server: Server, service: Plans, agent: Agent) -> None:
    """The plan is carried out once it is back, and nothing is done twice."""
    known = launched(server, job("llama"))
    agent.start()
    until(lambda: service.said, "the agent looks")
    server.state.down = True
    service.add("p1", known, "resubmit")
    until(lambda: "scheduler_away" in agent.log(), "the agent has noticed")
    assert service.ended("p1") is None
    server.state.down = False
    assert ended(service, agent, "p1")["state"] == "reached"
    assert server.changes().count("POST jobs") == 1


def test_a_check_without_a_program_leaves_no_job_away(server: Server, service: Plans, agent: Agent) -> None:
    """The job runs again, and the plan says that its nodes were not checked."""
    known = launched(server, job("llama"))
    service.add("p1", known, "check_and_resubmit")
    agent.start()
    plan = ended(service, agent, "p1")
    assert (plan["state"], "--check" in plan["detail"]) == ("not_reached", True)
    assert server.state.get("jobs", "llama")
    assert server.state.get("configmaps", "diagnoser-p1") is None


def test_a_refused_check_brings_the_job_back_as_it_was(
    server: Server, service: Plans, agent: Agent, tmp_path: Path
) -> None:
    """The breaker wants a person's word; the person says no, and the job that was held is launched as it was."""
    known = launched(server, job("llama"))
    (tmp_path / "check.py").write_text("print('checked')\n")
    service.add("p1", known, "check_and_resubmit")
    agent.start("--check", str(tmp_path / "check.py"))
    until(lambda: "plan_taken_away" in agent.log(), "the agent knows")
    assert server.state.get("jobs", "llama") is None
    service.plans["p1"]["state"] = "refused"
    until(lambda: server.state.get("jobs", "llama"), "the job is back")
    until(lambda: server.state.get("configmaps", "diagnoser-p1") is None, "its copy is gone")
    made = server.state.get("jobs", "llama")
    assert made and "affinity" not in made["spec"]["template"]["spec"]


def test_a_dry_run_changes_nothing(server: Server, service: Plans, agent: Agent) -> None:
    """It says what would be done."""
    known = launched(server, job("llama"))
    service.add("p1", known, nodes=["gpu-01"])
    agent.start("--dry-run")
    plan = ended(service, agent, "p1")
    assert plan["state"] == "not_reached"
    assert "PATCH /api/v1/nodes/gpu-01" in plan["detail"]
    assert server.asked == []


def test_only_our_cordons_are_taken_back(server: Server, kubeconfig: Path) -> None:
    """``kubernetes-uncordon`` gives back what a plan took out, without its marks, and refuses what a person did."""
    marks = {PLAN: "p9", REASON: "diagnoser p9: ecc_error", "diagnoser.io/by": "me", "theirs": "kept"}
    for name, given in (("gpu-01", marks), ("gpu-02", {})):
        node = server.state.get("nodes", name)
        assert node
        node["metadata"]["annotations"] = dict(given)
        server.state.put("nodes", {**node, "spec": {"unschedulable": True}})

    def uncordon(*nodes: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("diagnoser"))
        command = [program, "agent", "kubernetes-uncordon", *nodes]
        variables = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    refused = uncordon("gpu-01", "gpu-02")
    assert (refused.returncode, "gpu-02 was not cordoned by diagnoser" in refused.stderr) == (1, True)
    assert server.asked == []
    assert uncordon("gpu-01").returncode == 0
    node = server.state.get("nodes", "gpu-01")
    assert node and not node["spec"].get("unschedulable")
    assert json.dumps(node["metadata"]["annotations"]) == '{"theirs": "kept"}'
