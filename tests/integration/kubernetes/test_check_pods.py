"""What the pods of a node check have of the workload, and what their ends say, against a double of the API server."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from diagnoser.agent.kubernetes.reconcile import COPY_KEY, copy_name
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import Action
from tests.integration.kubernetes.conftest import NAME, NAMESPACE, cluster_of, job
from tests.integration.kubernetes.double import Object, Server

SPEC = PlanSpec("p1", Action.CHECK_AND_RESUBMIT, f"k8s:{NAME}:job:{NAMESPACE}:llama", 1)
IMAGE = "registry.example/check:1"
ROUND = {"round": 1, "pairs": [["gpu-01", "gpu-02"]], "timeout_seconds": 60}


@pytest.fixture
def workload(server: Server) -> Object:
    """What a job may ask for; it is held for the check."""
    held = job("llama")
    spec = held["spec"]["template"]["spec"]
    spec |= {
        "hostNetwork": True,
        "hostIPC": True,
        "serviceAccountName": "tenant",
        "imagePullSecrets": [{"name": "tenant-pull"}],
    }
    spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "tenant-data"}}]
    main = spec["containers"][0]
    main["env"] += [{"name": "NCCL_NET", "value": "tenant"}]
    main["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    main["resources"] = {
        "requests": {"cpu": "3", "rdma/hca": "1"},
        "limits": {"nvidia.com/gpu": "4", "memory": "1Mi", "rdma/hca": "1"},
    }
    main["securityContext"] = {"runAsUser": 4711, "capabilities": {"add": ["IPC_LOCK"]}}
    return held


def ending(server: Server, end: Callable[[Object], Object]) -> list[Object]:
    """The pods that are asked for; each ends at once with the status that ``end`` gives it."""
    pods: list[Object] = []

    def run(pod: Object) -> None:
        pods.append(pod)
        server.state.logs[pod["metadata"]["name"]] = ['{"seconds": 1.5}']
        server.state.put("pods", {**pod, "status": {"podIP": "10.0.0.1", **end(pod)}})

    server.state.on_pod = run
    return pods


async def check(server: Server, workload: Object, image: str = IMAGE) -> tuple[dict[str, Any], bool]:
    """(the result of the one pair, whether it is vouched for). Raises Unavailable."""
    copy = {"name": copy_name(SPEC), "namespace": NAMESPACE}
    server.state.put("configmaps", {"metadata": copy, "data": {COPY_KEY: json.dumps(workload)}})
    async with cluster_of(server, program="print()", check_image=image) as cluster:
        (result,) = (await cluster.check(SPEC, ROUND)).results
        return dict(result), cluster.check_is_vouched


async def test_the_operator_s_image_has_the_devices_of_the_workload_and_nothing_else(
    server: Server, workload: Object
) -> None:
    """Neither its image, account, volumes, environment, user nor its limit of memory, in which a check fails."""
    pods = ending(server, lambda pod: {"phase": "Succeeded"})
    result, vouched = await check(server, workload)
    assert (result["ok"], result["seconds"], vouched) == (True, 1.5, True)
    assert [pod["metadata"]["namespace"] for pod in pods] == ["diagnoser-check"] * 2
    spec = pods[0]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == IMAGE
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "4", "rdma/hca": "1"}}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert (spec["hostNetwork"], spec["automountServiceAccountToken"]) == (True, False)
    assert "--nproc-per-node=4" in container["command"]
    text = json.dumps(spec)
    assert "hostIPC" not in spec
    assert "tenant" not in text and "4711" not in text and "/data" not in text and "trainer:1" not in text
    assert [variable["name"] for variable in container["env"]] == ["POD_IP"]
    assert [key for key in server.state.objects if key[0] == "pods"] == []


async def test_without_one_it_is_the_workload_s_image_and_nobody_vouches_for_it(
    server: Server, workload: Object
) -> None:
    """With what its collectives need of its environment, in its own namespace."""
    pods = ending(server, lambda pod: {"phase": "Succeeded"})
    result, vouched = await check(server, workload, image="")
    assert (result["ok"], vouched) == (True, False)
    (container,) = pods[0]["spec"]["containers"]
    assert (container["image"], pods[0]["metadata"]["namespace"]) == ("trainer:1", NAMESPACE)
    assert container["resources"] == workload["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert [variable["name"] for variable in container["env"]] == ["POD_IP", "NCCL_NET"]
    assert pods[0]["spec"]["imagePullSecrets"] == [{"name": "tenant-pull"}]
    assert "serviceAccountName" not in pods[0]["spec"]


@pytest.mark.parametrize("reason", ["Preempting", "Evicted", "UnexpectedAdmissionError"])
async def test_a_pod_that_the_cluster_took_away_says_nothing_of_its_node(
    server: Server, workload: Object, reason: str
) -> None:
    """Whoever has a higher priority could else have a node cordoned."""

    def end(pod: Object) -> Object:
        failed = {"phase": "Failed", "reason": reason}
        return failed if pod["metadata"]["name"].endswith("-1") else {"phase": "Succeeded"}

    ending(server, end)
    with pytest.raises(Unavailable, match=f"lost its pod on gpu-02: {reason}"):
        await check(server, workload)


async def test_a_pod_that_is_deleted_says_nothing_of_its_node(server: Server, workload: Object) -> None:
    """Nobody who may delete pods decides which node is bad."""

    def take_away(pod: Object) -> None:
        server.state.drop("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])

    server.state.on_pod = take_away
    with pytest.raises(Unavailable, match="lost its pod on gpu-01: it was deleted"):
        await check(server, workload)
    assert [key for key in server.state.objects if key[0] == "pods"] == []


async def test_the_pod_that_fails_because_its_partner_is_taken_away_says_nothing(
    server: Server, workload: Object
) -> None:
    """The collective breaks on both: a pod that is being deleted has not failed by itself."""

    def end(pod: Object) -> Object:
        if pod["metadata"]["name"].endswith("-1"):
            return {"phase": "Failed"}
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return {"phase": "Running"}

    ending(server, end)
    with pytest.raises(Unavailable, match="lost its pod on gpu-01: it was deleted"):
        await check(server, workload)


async def test_a_node_that_goes_away_under_the_check_has_failed(server: Server, workload: Object) -> None:
    """Its pod is lost with it."""

    def end(pod: Object) -> Object:
        server.state.ready("gpu-02", "Unknown")
        return {"phase": "Failed", "reason": "NodeLost"}

    ending(server, end)
    with pytest.raises(Unavailable, match="gpu-01"):
        await check(server, workload)
    server.state.ready("gpu-02", "True")

    def only_second(pod: Object) -> Object:
        if not pod["metadata"]["name"].endswith("-1"):
            return {"phase": "Succeeded"}
        server.state.ready("gpu-02", "Unknown")
        return {"phase": "Failed", "reason": "NodeLost"}

    ending(server, only_second)
    result, _ = await check(server, workload)
    assert result["ok"] is False


async def test_a_program_that_fails_is_a_failed_pair(server: Server, workload: Object) -> None:
    """What it printed is the detail."""
    ending(server, lambda pod: {"phase": "Failed"})
    result, _ = await check(server, workload)
    assert (result["ok"], "1.5" in result["detail"]) == (False, True)
