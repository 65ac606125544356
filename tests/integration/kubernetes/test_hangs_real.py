"""A run that stands still on a real control plane: two looks at its ranks agree, and it is launched again.

Its pods are processes of this machine (``kubelet.py``); the agent has the rights of the manifests, and no others.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.service import service, until
from tests.environments import TORCH
from tests.integration.agent_process import Agent
from tests.integration.kubernetes import cluster as real
from tests.integration.kubernetes.cluster import Cluster, path_of
from tests.integration.kubernetes.conftest import NAME, agent_of
from tests.integration.kubernetes.kubelet import LABEL, ProcessKubelet
from tests.integration.kubernetes.test_real import MANIFESTS, SPACE, agent_token, apply_manifests
from tests.ports import free_ports

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]

RANKS, ASLEEP, WORKERS = 4, 2, ("worker-01", "worker-02")
JOBS = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
TRAINER = """
import os, sys, time

FOLDER, RANKS, ASLEEP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def take_rank():
    # As a launcher: the first rank that is free in this launch.
    folder = os.path.join(FOLDER, os.environ.get("DIAGNOSER_PLAN", "first"))
    os.makedirs(folder, exist_ok=True)
    for rank in range(RANKS):
        try:
            os.mkdir(os.path.join(folder, str(rank)))
        except FileExistsError:
            continue
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "RANK": str(rank)})

def all_reduce(seconds):
    time.sleep(seconds)

def load_batch(seconds):
    time.sleep(seconds)

RANK = int(os.environ["RANK"]) if "RANK" in os.environ else take_rank()
LAST = 25 if "DIAGNOSER_PLAN" in os.environ else 15  # a run that fails at the same step is not launched again at all
for step in range(1, LAST if RANK == 0 else 2):
    print(f"rank {RANK}: step {step}/1000 loss {3 - step / 100:.3f}", flush=True)
    time.sleep(0.5)
load_batch(900) if RANK == ASLEEP else all_reduce(900)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With the manifests of the agent and the right to look into containers, and two nodes whose pods run."""
    if why := real.missing() or TORCH.missing:  # py-spy is installed beside torch
        pytest.skip(f"needs a real Kubernetes and py-spy: {why}")
    if os.geteuid():
        pytest.skip("namespaces of processes need root")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "py-spy").symlink_to(TORCH.folder / "bin/py-spy")
    path = f"{tools}:{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
    (tmp_path / "kubernetes").mkdir()
    with real.running(tmp_path / "kubernetes") as found, ExitStack() as stack:
        apply_manifests(found)
        for item in yaml.safe_load_all((MANIFESTS / "components/evidence/evidence.yaml").read_text()):
            assert found.ask("POST", path_of(item), item).status_code == 201
        for name, port in zip(WORKERS, free_ports(len(WORKERS)), strict=True):
            stack.enter_context(ProcessKubelet(found, name, port, path))
        yield found


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[httpx.Client, Agent]]:
    """A service that acts, and the agent as its service account, which may look into containers."""
    (tmp_path / "service").mkdir()
    with service(tmp_path / "service", DIAGNOSER_RECOVERY_MODE="act") as found:
        client = found.start()
        config = cluster.kubeconfig(tmp_path / "kubeconfig", agent_token(cluster))
        with agent_of(tmp_path, found.url, config, "--collect-evidence", namespace=SPACE) as agent:
            agent.start()
            yield client, agent


def stuck_job(trainer: Path) -> dict[str, Any]:
    """A Job of four ranks, one of which sleeps after its first step."""
    container = {
        "name": "main",
        "image": "trainer:1",
        "command": [sys.executable, str(trainer), str(trainer.parent / "ranks"), str(RANKS), str(ASLEEP)],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pod = {"restartPolicy": "Never", "nodeSelector": {LABEL: "true"}, "containers": [container]}
    spec = {"parallelism": RANKS, "completions": RANKS, "backoffLimit": 0, "template": {"spec": pod}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "stuck", "namespace": SPACE},
        "spec": spec,
    }


def pods_of(cluster: Cluster) -> dict[str, str]:
    """uid -> node of each running pod of the Job."""
    found = cluster.get(f"/api/v1/namespaces/{SPACE}/pods", labelSelector="job-name=stuck")["items"]
    running = [pod for pod in found if pod["status"]["phase"] == "Running"]
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in running}


def waiting(cluster: Cluster, client: httpx.Client, agent: Agent, reason: str, seconds: float) -> dict[str, Any]:
    """The plan with this reason, once there is one."""

    def plans() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = client.get("/api/v1/plans").json()["items"]
        return items

    def wanted() -> list[dict[str, Any]]:
        return [plan for plan in plans() if plan["reason"] == reason]

    try:
        until(wanted, f"a plan is {reason}", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{plans()}\n{pods_of(cluster)}\n{agent.log()[-4000:]}") from None
    return wanted()[0]


def test_a_hang_is_launched_again_once_an_hour(
    cluster: Cluster, site: tuple[httpx.Client, Agent], tmp_path: Path
) -> None:
    """Two looks in the containers agree on the rank that sleeps: what they saw is stored, the Job is made anew without
    a node left out, and runs. Where it hangs again it is left to a person, and goes on."""
    client, agent = site
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    assert cluster.ask("POST", JOBS, stuck_job(trainer)).status_code == 201
    until(lambda: len(pods_of(cluster)) == RANKS, "the pods run")
    before, known = pods_of(cluster), f"k8s:{NAME}:job:{SPACE}:stuck"

    once = waiting(cluster, client, agent, "one_look", 120)
    diagnosis = client.get(f"/api/v1/jobs/{known}").json()["attempts"][0]["diagnosis"]
    assert (diagnosis["outcome"], diagnosis["root_cause"]["rank"]) == ("hung", ASLEEP)
    assert (once["state"], once["action"]) == ("waiting", "resubmit")
    acts = waiting(cluster, client, agent, "may_act", 120)
    until(lambda: len(pods_of(cluster)) == RANKS and not pods_of(cluster).keys() & before.keys(), "it runs again")
    files = client.get(f"/api/v1/jobs/{known}/attempts/1/evidence").json()
    assert {file["rank"] for file in files if file["kind"] == "stacks"} == set(range(RANKS))
    assert {file["provenance"] for file in files} == {"runtime"}
    assert (acts["nodes"], acts["drained"]) == ([], [])
    assert all(not cluster.node(name)["spec"].get("unschedulable") for name in WORKERS)
    again = pods_of(cluster)

    left = waiting(cluster, client, agent, "hang_again", 180)
    assert (left["attempt"], left["state"]) == (2, "waiting")
    assert pods_of(cluster) == again
    reached = [plan for plan in client.get("/api/v1/plans").json()["items"] if plan["state"] == "reached"]
    assert [plan["id"] for plan in reached] == [acts["id"]]
