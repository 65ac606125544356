"""What the agent tells of a cluster: workloads, their places and ends, logs, nodes. The service is the real one."""

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import node_fault, until
from tests.e2e.service import service as running_service
from tests.integration.agent_process import Agent
from tests.integration.kubernetes.conftest import agent_of, job, launched
from tests.integration.kubernetes.double import Server

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture
def site(tmp_path: Path, kubeconfig: Path) -> Iterator[tuple[httpx.Client, Agent]]:
    """A service that acts, and an agent that is not started yet."""
    (tmp_path / "service").mkdir()
    with running_service(tmp_path / "service", DIAGNOSER_RECOVERY_MODE="act") as found:
        client = found.start()
        with agent_of(tmp_path, found.url, kubeconfig) as agent:
            yield client, agent


def _stamped(lines: list[str], first: int = 0) -> list[str]:
    """As the kubelet gives them: a stamp before each line."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return [f"{now}.{first + number:09d}Z {line}" for number, line in enumerate(lines)]


def _attempts(client: httpx.Client, name: str) -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/jobs/{name}")
    found: list[dict[str, Any]] = answer.json().get("attempts", [])
    return found


def _events(client: httpx.Client, name: str) -> list[tuple[int, str, Any]]:
    return [(one["number"], event["kind"], event["code"]) for one in _attempts(client, name) for event in one["events"]]


def _lines(client: httpx.Client, name: str) -> list[int]:
    return [one["diagnosis"]["compression"]["lines_in"] for one in _attempts(client, name) if one["diagnosis"]]


def _memory(agent: Agent) -> str:
    path = agent.folder / "lab.json"
    return path.read_text() if path.exists() else ""


def test_a_failed_job_runs_again_without_its_broken_node(server: Server, site: tuple[httpx.Client, Agent]) -> None:
    """The whole loop: log and exit are shipped, the node is named and cordoned, the next launch is another attempt."""
    client, agent = site
    name = launched(server, job("llama"))
    [first, second] = server.state.pods("llama")
    server.state.logs[first["metadata"]["name"]] += _stamped([f"step {n} loss 2.1" for n in range(20)])
    agent.start()
    until(lambda: _events(client, name) == [(1, "started", None)], "the job is known")
    found = client.get(f"/api/v1/jobs/{name}").json()
    assert found["rank_nodes"] == {"0": "gpu-01", "1": "gpu-02"}
    assert found["labels"]["family"] == "llama"
    server.state.logs[second["metadata"]["name"]] += _stamped(
        ["Traceback (most recent call last):", "  File x.py", ECC]
    )
    node_fault(client, "gpu-02", "lab")
    server.state.fail(second["metadata"]["name"])
    plan = until(lambda: client.get("/api/v1/plans", params={"state": "reached"}).json()["items"], "a plan is reached")[
        0
    ]
    assert (plan["action"], plan["nodes"], plan["requeued"]) == ("cordon_and_resubmit", ["gpu-02"], name)
    until(lambda: (2, "started", None) in _events(client, name), "the second launch is known")
    assert _events(client, name)[1] == (1, "exit", 1)
    assert _lines(client, name)[0] == 23
    assert {pod["spec"]["nodeName"] for pod in server.state.pods("llama")} == {"gpu-01", "gpu-03"}
    for pod in server.state.pods("llama"):
        server.state.fail(pod["metadata"]["name"], code=0, why="Completed")
    server.state.end("llama", "Complete", "")
    until(lambda: (2, "exit", 0) in _events(client, name), "its good end is told")


def test_lines_count_once_through_restarts_of_the_agent(server: Server, site: tuple[httpx.Client, Agent]) -> None:
    """Killed while it follows a log, and again with its memory lost: no line is missing, none is there twice."""
    client, agent = site
    name = launched(server, job("llama", pods=1))
    [pod] = (one["metadata"]["name"] for one in server.state.pods("llama"))
    lines = _stamped([f"step {n} loss 2.1" for n in range(300)])
    server.state.logs[pod] += lines[:100]
    agent.start()
    until(lambda: '"lines":100' in _memory(agent), "the first lines are sent")
    agent.end(signal.SIGKILL)
    server.state.logs[pod] += lines[100:200]
    agent.start()
    until(lambda: '"lines":200' in _memory(agent), "more are sent")
    agent.end(signal.SIGKILL)
    (agent.folder / "lab.json").unlink()
    server.state.logs[pod] += lines[200:]
    agent.start()
    until(lambda: '"lines":300' in _memory(agent), "the last ones are sent")
    server.state.fail(pod, code=9)
    until(lambda: _lines(client, name), "it is diagnosed")
    assert _lines(client, name) == [300]
    assert _events(client, name) == [(1, "started", None), (1, "exit", 9)]


def test_a_watch_goes_on_where_it_was_and_lists_anew_when_forgotten(
    server: Server, site: tuple[httpx.Client, Agent]
) -> None:
    """A server that is away for a moment is asked for what came since; one that forgot is listed, in pages."""
    client, agent = site
    server.state.page = 2
    agent.start()
    until(lambda: server.listed >= 9, "all is listed")
    listed = server.listed
    server.state.down = True
    until(lambda: "watch_failed" in agent.log(), "the watch broke")
    server.state.down = False
    name = launched(server, job("llama"))
    until(lambda: _events(client, name) == [(1, "started", None)], "the job is found")
    assert server.listed == listed
    server.state.forget()
    other = launched(server, job("qwen"))
    until(lambda: _events(client, other) == [(1, "started", None)], "the next job is found")
    assert "watch_begins_anew" in agent.log()
    assert server.listed > listed


def test_a_token_that_was_replaced_is_read_again(
    server: Server, site: tuple[httpx.Client, Agent], kubeconfig: Path
) -> None:
    """Tokens of service accounts last an hour: watches, logs and requests go on with the next one."""
    client, agent = site
    agent.start()
    first = launched(server, job("llama"))
    until(lambda: _events(client, first), "the first job is known")
    kubeconfig.write_text(kubeconfig.read_text().replace("token: t", "token: u"))
    server.state.token = "u"
    server.state.forget()
    second = launched(server, job("qwen"))
    until(lambda: _events(client, second), "the second job is known")


ENDS = {
    "memory": ((137, "OOMKilled", {}), ("exit", 137, "OOMKilled")),
    "evicted": ((1, "Error", {"reason": "Evicted", "message": "The node was low on memory."}), ("exit", 1, "Evicted")),
    "preempted": ((143, "Error", {"reason": "Preempting"}), ("preempted", None, "Preempting")),
}


def test_an_end_is_told_in_the_clusters_words(server: Server, site: tuple[httpx.Client, Agent]) -> None:
    """Out of memory, evicted by the kubelet, preempted: with node and rank, and a line that a person can read."""
    client, agent = site
    jobs = {name: launched(server, job(name, pods=1, backoffLimit=0)) for name in ENDS}
    agent.start("--dry-run")
    for name, ((code, why, status), told) in ENDS.items():
        until(lambda known=jobs[name]: _events(client, known), "the job is known")
        [pod] = (one["metadata"]["name"] for one in server.state.pods(name))
        server.state.logs[pod] += _stamped(["step 1 loss 2.1"])
        server.state.fail(pod, code, why, **status)
        until(
            lambda known=jobs[name]: any(event[1] != "started" for event in _events(client, known)), "its end is told"
        )
        [event] = [event for event in _attempts(client, jobs[name])[0]["events"] if event["kind"] != "started"]
        assert (event["kind"], event["code"], event["reason"], event["node"], event["rank"]) == (*told, "gpu-01", 0)
    for known in jobs.values():
        until(lambda known=known: _lines(client, known) == [2], "the cluster's own line is there")


def test_a_lost_node_is_told_with_its_pods(server: Server, site: tuple[httpx.Client, Agent]) -> None:
    """NotReady is an event of the node and a line of its log; a pod that is deleted from it ends as NODE_FAIL."""
    client, agent = site
    name = launched(server, job("llama"))
    agent.start("--dry-run")
    until(lambda: _events(client, name), "the job is known")
    server.state.ready("gpu-02", "Unknown")
    until(lambda: client.get("/api/v1/nodes").json(), "the node is told")
    [node] = client.get("/api/v1/nodes").json()
    assert (node["node"], node["kind"], node["by"]) == ("gpu-02", "down", "diagnoser")
    [pod] = [one for one in server.state.pods("llama") if one["spec"]["nodeName"] == "gpu-02"]
    server.state.put(
        "pods", {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": pod["metadata"]["creationTimestamp"]}}
    )
    until(lambda: len(_events(client, name)) == 2, "the end is told")
    event = _attempts(client, name)[0]["events"][1]
    assert (event["kind"], event["reason"], event["node"], event["code"]) == ("exit", "NODE_FAIL", "gpu-02", 1)
    found = until(lambda: _attempts(client, name)[0]["diagnosis"], "it is diagnosed")
    assert found["type"] == "node_failure"


def test_a_person_who_cordons_or_uncordons_is_heard(server: Server, site: tuple[httpx.Client, Agent]) -> None:
    """Both are told as a person's doing, and our marks are taken off a node that a person gave back."""
    client, agent = site

    def told() -> dict[str, tuple[str, str]]:
        return {one["node"]: (one["kind"], one["by"]) for one in client.get("/api/v1/nodes").json()}

    marks = {"diagnoser.io/plan": "p9", "diagnoser.io/reason": "diagnoser p9: ecc_error", "diagnoser.io/by": "me"}
    node = server.state.get("nodes", "gpu-01")
    assert node
    node["metadata"]["annotations"] = dict(marks)
    server.state.put("nodes", {**node, "spec": {"unschedulable": True}})
    agent.start()
    until(lambda: _memory(agent), "the agent has looked")
    assert told() == {}
    server.state.put("nodes", {**server.state.objects["nodes", "", "gpu-01"], "spec": {}})
    server.state.put("nodes", {**server.state.objects["nodes", "", "gpu-02"], "spec": {"unschedulable": True}})
    until(lambda: told() == {"gpu-01": ("uncordoned", "person"), "gpu-02": ("cordoned", "person")}, "both are told")
    until(lambda: not server.state.objects["nodes", "", "gpu-01"]["metadata"]["annotations"], "the marks are off")
