"""The node check in pods: what they are asked for as, and what is made of their ends."""

import os
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import service as running_service
from tests.e2e.service import until
from tests.environments import TORCH
from tests.integration.kubernetes import cluster as real
from tests.integration.kubernetes.conftest import agent_of, job, launched
from tests.integration.kubernetes.double import Object, Server, State
from tests.ports import free_port

PROGRAM = Path(__file__).resolve().parents[3] / "deploy" / "checks" / "allgather.py"
BAD = "gpu-03"
IMAGE = "registry.example/check:1"
STALL = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, Timeout(ms)=600000)"


@dataclass
class Kubelets:
    """Ends the pods of a check, once all of a group are there."""

    state: State
    judge: Callable[[list[Object]], list[int]]
    groups: dict[str, list[Object]] = field(default_factory=lambda: defaultdict(list))
    asked: list[Object] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        self.state.logs.setdefault(name, [])
        self._show(pod, "Running")
        with self.lock:
            self.asked.append(pod)
            group = self.groups[name.rpartition("-")[0]]
            group.append(pod)
            whole = len(group) == int(_option(pod, "--nnodes"))
        if whole:
            for one, code in zip(group, self.judge(group), strict=True):
                self._show(one, "Failed" if code else "Succeeded")

    def _show(self, pod: Object, phase: str) -> None:
        if self.state.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"]):
            self.state.put("pods", {**pod, "status": {"phase": phase, "podIP": "127.0.0.1"}})


def _option(pod: Object, name: str) -> str:
    command = pod["spec"]["containers"][0]["command"]
    return next(str(word).partition("=")[2] for word in command if word.startswith(f"{name}="))


def _node(pod: Object) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


@contextmanager
def _checked(
    server: Server, folder: Path, kubeconfig: Path, judge: Callable[[list[Object]], list[int]], *options: str
) -> Iterator[tuple[httpx.Client, dict[str, Any], list[Object]]]:
    """(the service, the plan that ended or waits, the pods of the check): a job of four pods whose collectives stall,
    which names no node."""
    server.state.add_node("gpu-04")
    server.state.add_node("gpu-05")
    kubelets = Kubelets(server.state, judge)
    server.state.on_pod = kubelets.take
    (folder / "service").mkdir()
    with ExitStack() as stack:
        found = stack.enter_context(running_service(folder / "service", DIAGNOSER_RECOVERY_MODE="act"))
        client = found.start()
        agent = stack.enter_context(agent_of(folder, found.url, kubeconfig, "--check", str(PROGRAM), *options))
        name = launched(server, job("llama", pods=4, backoffLimit=0))
        for rank, pod in enumerate(server.state.pods("llama")):
            line = f"[rank{rank}]:[E1121 09:14:0{rank}.118 ProcessGroupNCCL.cpp:616] [Rank {rank}] {STALL} ran"
            server.state.logs[pod["metadata"]["name"]].append(f"2026-01-01T00:00:0{rank}.000000000Z {line}")
        agent.start()
        until(lambda: client.get(f"/api/v1/jobs/{name}").status_code == 200, "the job is known")
        for pod in server.state.pods("llama"):
            server.state.fail(pod["metadata"]["name"], 1)

        def ended() -> list[dict[str, Any]]:
            plans = client.get("/api/v1/plans").json()["items"]
            return [one for one in plans if one["state"] in ("reached", "not_reached", "waiting")]

        try:
            plan = until(ended, "the plan has ended", 900)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{agent.log()[-3000:]}") from None
        yield client, plan, kubelets.asked


def _with_bad(group: list[Object]) -> list[int]:
    return [int(BAD in map(_node, group))] * len(group)


def _hold(server: Server, plan: dict[str, Any]) -> None:
    """The bad node is out, and the job runs on the others."""
    assert (plan["state"], plan["action"], plan["nodes"]) == ("reached", "check_and_resubmit", [BAD]), plan
    assert server.state.objects["nodes", "", BAD]["spec"]["unschedulable"] is True
    made = server.state.get("jobs", "llama")
    assert made is not None
    assert made["metadata"]["annotations"]["diagnoser.io/excluded-nodes"] == BAD
    assert {pod["spec"]["nodeName"] for pod in server.state.pods("llama")} == {"gpu-01", "gpu-02", "gpu-04", "gpu-05"}
    left = [key for key in server.state.objects if key[0] in ("pods", "configmaps") and key[2].startswith("diagnoser-")]
    assert left == []


def test_the_faulty_node_is_found_cordoned_and_left_out(server: Server, tmp_path: Path, kubeconfig: Path) -> None:
    """Pairs, then the suspects with healthy nodes; each pod asks for its node, with the operator's image and the job's
    devices."""
    with _checked(server, tmp_path, kubeconfig, _with_bad, "--check-image", IMAGE) as (_, plan, pods):
        _hold(server, plan)
    assert [(proof["node"], proof["kind"]) for proof in plan["proofs"]] == [(BAD, "check")]
    assert {pod["metadata"]["namespace"] for pod in pods} == {"diagnoser-check"}
    first = [sorted(_node(pod) for pod in pods if "-r1-" in pod["metadata"]["name"])]
    assert first == [["gpu-01", "gpu-02", "gpu-03", "gpu-04"]]
    assert any("-r2-" in pod["metadata"]["name"] for pod in pods)
    container = pods[0]["spec"]["containers"][0]
    assert container["image"] == IMAGE
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert pods[0]["spec"]["automountServiceAccountToken"] is False
    assert _option(pods[0], "--nproc-per-node") == "1"
    assert any("def verify" in word for word in container["command"])
    commands = [step["command"] for step in plan["steps"]]
    assert sum("/pods (" in command for command in commands) == len(pods)


def test_what_the_job_s_own_image_finds_waits_for_a_person(server: Server, tmp_path: Path, kubeconfig: Path) -> None:
    """A job whose image fails where it likes has no node of its own cordoned; refused, it runs again on all of them."""
    with _checked(server, tmp_path, kubeconfig, _with_bad) as (client, plan, pods):
        assert (plan["state"], plan["reason"], plan["nodes"]) == ("waiting", "unproven", [BAD])
        assert plan["proofs"] == []
        assert pods[0]["spec"]["containers"][0]["image"] == "trainer:1"
        assert not server.state.objects["nodes", "", BAD]["spec"].get("unschedulable")
        assert server.state.get("jobs", "llama") is None, "it is held for the person"
        assert client.post(f"/api/v1/plans/{plan['id']}/refuse", json={}).status_code == 200
        until(lambda: server.state.get("jobs", "llama"), "the job runs again")
    assert BAD in {pod["spec"]["nodeName"] for pod in server.state.pods("llama")}
    assert not server.state.objects["nodes", "", BAD]["spec"].get("unschedulable")


@pytest.mark.kubernetes
@pytest.mark.skipif(bool(TORCH.missing), reason=TORCH.missing)
def test_the_pods_command_runs_as_it_is_given(server: Server, tmp_path: Path, kubeconfig: Path) -> None:
    """The same with real torch processes, started by the pods' own commands; one node sends wrong data."""
    if why := real.missing():
        pytest.skip(f"runs with `make test-kubernetes`: {why}")

    def judge(group: list[Object]) -> list[int]:
        port, runs = free_port(), []
        for pod in group:
            words = [
                word.replace("$(POD_IP)", "127.0.0.1").replace("$$(", "$(")
                for word in pod["spec"]["containers"][0]["command"]
            ]
            words = [str(TORCH.python) if word == "python3" else word for word in words]
            words = [f"--master-port={port}" if word.startswith("--master-port") else word for word in words]
            corrupt = ["--corrupt-rank", _option(pod, "--node-rank")] if _node(pod) == BAD else []
            words += ["--mebibytes", "1", "--backend", "gloo", *corrupt]
            with (tmp_path / pod["metadata"]["name"]).open("wb") as log:
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
                runs.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment))
        codes = [run.wait(timeout=600) for run in runs]
        for pod in group:
            lines = (tmp_path / pod["metadata"]["name"]).read_text(errors="replace").splitlines()
            server.state.logs[pod["metadata"]["name"]] += lines
        return codes

    with _checked(server, tmp_path, kubeconfig, judge, "--check-image", IMAGE) as (_, plan, _):
        _hold(server, plan)
    told = [step["output"] for step in plan["steps"]]
    assert told
