"""A node that a plan took out is checked by pods before it is given back, against a double of the API server."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diagnoser.agent.node_query import load_table
from diagnoser.agent.return_check import ReturnCheck
from diagnoser.agent.uncordon import give_back
from diagnoser.model.errors import BadInput
from tests.integration.kubernetes.conftest import cluster_of
from tests.integration.kubernetes.double import Object, Server, State
from tests.integration.kubernetes.test_plans import PLAN, REASON

IMAGE = "registry.example/tools:1"
NODE = "gpu-01"
TABLE = load_table(None)
NVIDIA_SMI = """#!/bin/sh
case "$*" in
-L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1d0c)" ;;
*ecc.errors*) echo "0, 00000000:3B:00.0, {errors}" ;;
*) exit 2 ;;
esac
"""


@dataclass
class Kubelet:
    """Runs the queries of a pod here, and ends pods of the node check as ``loop`` says. meanwhile: what else happens
    while the first pod runs."""

    state: State
    tools: Path
    loop: str = "Succeeded"
    meanwhile: Callable[[], None] = lambda: None
    queries: list[Object] = field(default_factory=list)
    loops: list[Object] = field(default_factory=list)
    cordoned: list[bool] = field(default_factory=list)

    def take(self, pod: Object) -> None:
        node = self.state.get("nodes", NODE)
        self.cordoned.append(bool(node and node["spec"].get("unschedulable")))
        command = pod["spec"]["containers"][0]["command"]
        if "torch.distributed.run" in command:
            self.loops.append(pod)
            return self._end(pod, ["NCCL error: unhandled system error"], self.loop)
        self.queries.append(pod)
        self.meanwhile()
        words = [sys.executable, *(word.replace("$$(", "$(") for word in command[1:])]
        environment = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=True)
        return self._end(pod, done.stdout.splitlines(), "Succeeded")

    def _end(self, pod: Object, lines: list[str], phase: str) -> None:
        self.state.logs[pod["metadata"]["name"]] = lines
        self.state.put("pods", {**pod, "status": {"phase": phase, "podIP": "127.0.0.1"}})


@pytest.fixture
def kubelet(server: Server, tmp_path: Path) -> Kubelet:
    """Of a sound node of eight GPUs, which a plan took out for an ECC error."""
    driver_says(tmp_path, errors=0)
    node = server.state.get("nodes", NODE)
    assert node
    node["metadata"]["annotations"] = {PLAN: "p9", REASON: "diagnoser p9: ecc_error", "diagnoser.io/by": "me"}
    node["status"]["allocatable"] = {"nvidia.com/gpu": "8", "cpu": "128"}
    server.state.put("nodes", {**node, "spec": {"unschedulable": True}})
    made = Kubelet(server.state, tmp_path)
    server.state.on_pod = made.take
    return made


def driver_says(tools: Path, errors: int) -> None:
    (tools / "nvidia-smi").write_text(NVIDIA_SMI.format(errors=errors))
    (tools / "nvidia-smi").chmod(0o755)


async def back(server: Server) -> str:
    """What is said of the node that is given back. Raises BadInput."""
    async with cluster_of(server, program="all-gather", query_image=IMAGE, check_image=IMAGE) as cluster:
        (line,) = await give_back(cluster, [NODE], ReturnCheck(cluster, TABLE, TABLE.commands))
        return line


def is_out(server: Server) -> bool:
    """Whether the node is, and nobody has changed it."""
    node = server.state.get("nodes", NODE)
    assert node
    return bool(node["spec"].get("unschedulable")) and "PATCH nodes gpu-01" not in server.changes()


async def test_a_sound_node_comes_back(server: Server, kubelet: Kubelet) -> None:
    """Asked, then checked alone, by pods of the operator's image with all of its GPUs, cordoned all the while."""
    line = await back(server)
    assert "asked without a fault: gpu_present, gpu_ecc" in line and "the node check passed on it alone" in line
    assert kubelet.cordoned == [True] * len(kubelet.cordoned)
    for pod in (*kubelet.queries, *kubelet.loops):
        container = pod["spec"]["containers"][0]
        assert (container["image"], container["resources"]) == (IMAGE, {"limits": {"nvidia.com/gpu": "8"}})
        assert pod["metadata"]["namespace"] == "diagnoser-check"
    assert (len(kubelet.queries), len(kubelet.loops)) == (1, 1)
    assert "--nproc-per-node=8" in kubelet.loops[0]["spec"]["containers"][0]["command"]
    assert not is_out(server)
    assert [key for key in server.state.objects if key[0] == "pods"] == []


@pytest.mark.parametrize(
    ("errors", "loop", "loops", "why"),
    [
        pytest.param(3, "Succeeded", 0, "shows the fault still (gpu_ecc): 0, 00000000:3B:00.0, 3", id="a query"),
        pytest.param(0, "Failed", 1, "the node check failed on gpu-01 alone", id="the node check"),
    ],
)
async def test_a_node_that_shows_a_fault_stays_out(
    server: Server, kubelet: Kubelet, errors: int, loop: str, loops: int, why: str
) -> None:
    """It is not touched, and no pod is left."""
    driver_says(kubelet.tools, errors)
    kubelet.loop = loop
    with pytest.raises(BadInput, match="not given back") as refused:
        await back(server)
    assert why in str(refused.value)
    assert is_out(server) and len(kubelet.loops) == loops
    assert [key for key in server.state.objects if key[0] == "pods"] == []


async def test_a_node_of_which_pods_may_not_be_made_stays_out(server: Server, kubelet: Kubelet) -> None:
    """What could not be asked is no proof that it is sound."""
    server.state.refused["POST", "pods"] = 403
    with pytest.raises(BadInput, match="nothing could be asked of gpu-01"):
        await back(server)
    assert is_out(server) and not kubelet.queries


async def test_a_node_that_a_person_takes_while_it_is_checked_is_theirs(server: Server, kubelet: Kubelet) -> None:
    """The check has passed, and the person's cordon stands."""

    def take() -> None:
        node = server.state.get("nodes", NODE)
        assert node
        server.state.put("nodes", {**node, "metadata": {"name": NODE, "annotations": {}}})

    kubelet.meanwhile = take
    with pytest.raises(BadInput, match="gpu-01 was not cordoned by diagnoser"):
        await back(server)
    assert is_out(server) and len(kubelet.loops) == 1
