"""Jobs of evaluation batches: what they ask for, what they may do, and what is read of them and of nodes."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from diagnoser.agent.kubernetes.batch_jobs import (
    JobSettings,
    batch_job,
    clean_job,
    is_suspended,
    job_name,
    read_status,
    read_template,
    usable_gpus,
)
from diagnoser.agent.kubernetes.kinds import JOB
from diagnoser.agent.kubernetes.parsing import workload
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.errors import BadInput, RuleFaults
from diagnoser.model.evaluations import BatchKind
from diagnoser.ports import Command, Order, OrderState

INFER = Order(
    "r1-b1", BatchKind.INFER, "gpu-01", 0, 2, "/ckpt/a", "/runs/r1/$(b1)", "/suite", (Command(("x",), {}, "/out"),)
)
SCORE = replace(INFER, kind=BatchKind.SCORE, node="", gpus=0, checkpoint="")
SETTINGS = JobSettings("eval:1", 1000, 100, {"/runs": "runs", "/ckpt": ""})
COPIES = CopyLimits("/mnt/memory/copies-1000")
Object = dict[str, Any]


def pod(order: Order, settings: JobSettings = SETTINGS, copies: CopyLimits = COPIES) -> Object:
    found: Object = batch_job(order, order.folder, settings, copies)["spec"]["template"]["spec"]
    return found


def test_a_job_is_one_pod_that_is_never_started_again() -> None:
    """Named by its batch, and gone some minutes after its end; the agent leaves it alone."""
    job = batch_job(INFER, INFER.folder, replace(SETTINGS, queue="eval"), COPIES)
    assert job["metadata"]["name"] == "diagnoser-trial-r1-b1" == job_name("r1-b1")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "eval"
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["suspend"], spec["ttlSecondsAfterFinished"]) == (0, False, 600)
    [rule] = spec["podFailurePolicy"]["rules"]
    assert rule == {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "parallelism" not in spec and "completions" not in spec
    meta = {**job["metadata"], "namespace": "evaluation", "uid": "u"}
    assert workload(JOB, {**job, "metadata": meta}).chosen is False
    assert "kueue.x-k8s.io/queue-name" not in batch_job(INFER, "/f", SETTINGS, COPIES)["metadata"]["labels"]


def test_the_runner_writes_to_the_folder_of_its_batch() -> None:
    """The path as it is: Kubernetes would read $( in it as a variable."""
    [container] = pod(INFER)["containers"]
    command = container["command"]
    assert command[:3] == ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1']
    assert command[3] == "/runs/r1/$$(b1)/runner.log"
    assert command[4:] == [
        *("python3", "-P", "-m", "diagnoser.evaluations.runner", "/runs/r1/$$(b1)"),
        *("--owner", "diagnoser-trial-r1-b1"),
    ]


def test_inference_goes_to_its_node_and_scoring_anywhere() -> None:
    """By affinity, so that the scheduler respects cordons and counts GPUs; scoring sees no GPU."""
    infer, score = pod(INFER), pod(SCORE)
    [term] = infer["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-01"]}]}
    assert infer["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert "affinity" not in score and "nodeName" not in infer
    assert score["containers"][0]["resources"] == {"requests": {"cpu": "1", "memory": "2Gi"}}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in score["containers"][0]["env"]
    assert pod(INFER, replace(SETTINGS, gpu=""))["containers"][0]["resources"] == {}


@pytest.mark.parametrize("order", [INFER, SCORE], ids=["infer", "score"])
def test_a_pod_meets_the_restricted_standard(order: Order) -> None:
    """Not root, nothing to gain, no token of the API server, and a root file system that cannot be written."""
    settings = replace(SETTINGS, volumes={"/runs": "runs"})
    found = pod(order, settings)
    assert found["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 100,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert (found["automountServiceAccountToken"], found["enableServiceLinks"]) == (False, False)
    [container] = found["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    kinds = {kind for volume in found["volumes"] for kind in volume if kind != "name"}
    assert kinds == {"emptyDir", "persistentVolumeClaim"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(found)


def test_shared_folders_are_mounted_where_the_coordinator_has_them() -> None:
    """A claim, or a path of the nodes that has to be there."""
    found = pod(INFER)
    volumes = {volume["name"]: volume for volume in found["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in found["containers"][0]["volumeMounts"]}
    assert mounts["/runs"]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert mounts["/ckpt"]["hostPath"] == {"path": "/ckpt", "type": "Directory"}
    assert mounts["/tmp"]["emptyDir"] == {}


def test_copies_of_weights_are_in_memory_of_the_node_or_of_the_pod() -> None:
    """Or nowhere; scoring has none."""
    shared = replace(SETTINGS, memory_folder="/dev/shm")
    for settings, wanted in (
        (shared, {"hostPath": {"path": "/dev/shm", "type": "Directory"}}),
        (SETTINGS, {"emptyDir": {"medium": "Memory"}}),
    ):
        found = pod(INFER, settings)
        assert {"name": "weights", **wanted} in found["volumes"]
        assert {"name": "weights", "mountPath": "/mnt/memory"} in found["containers"][0]["volumeMounts"]
    for found in (pod(INFER, shared, CopyLimits()), pod(SCORE, shared)):
        assert "weights" not in {volume["name"] for volume in found["volumes"]}
    clean = clean_job("gpu-01", ["/ckpt/a"], shared, COPIES)
    assert "name" not in clean["metadata"] and clean["metadata"]["generateName"].startswith("diagnoser-trial-")
    [container] = clean["spec"]["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["/mnt/memory/copies-1000", "/ckpt/a"]


def test_a_template_adds_and_takes_nothing_away() -> None:
    """Its variables, volumes, tolerations and resources are there; what makes a pod safe, and its node, stay ours."""
    template: Object = {
        "metadata": {"labels": {"team": "eval"}},
        "spec": {
            "serviceAccountName": "puller",
            "automountServiceAccountToken": True,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}},
                "podAntiAffinity": {"x": 1},
            },
            "securityContext": {"runAsUser": 0, "fsGroup": 7},
            "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "hostPath": {"path": "/"}}],
            "containers": [
                {
                    "name": "trial",
                    "image": "other:1",
                    "env": [{"name": "HF_HOME", "value": "/cache"}, {"name": "HOME", "value": "/root"}],
                    "resources": {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
                    "securityContext": {"readOnlyRootFilesystem": False},
                    "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                }
            ],
        },
    }
    assert read_template("pod.yaml", yaml.safe_dump(template)) == template
    settings = replace(SETTINGS, template=template)
    job = batch_job(INFER, INFER.folder, settings, COPIES)
    assert job["spec"]["template"]["metadata"]["labels"] == {**job_labels(job), "team": "eval"}
    found = job["spec"]["template"]["spec"]
    [container] = found["containers"]
    assert (container["image"], found["automountServiceAccountToken"]) == ("eval:1", False)
    assert found["securityContext"]["runAsUser"] == 1000 and found["securityContext"]["fsGroup"] == 7
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "HF_HOME", "value": "/cache"} in container["env"]
    assert [one["value"] for one in container["env"] if one["name"] == "HOME"] == ["/tmp"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "64Gi"}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/cache", "/runs", "/tmp"}
    terms = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms[0]["matchFields"][0]["values"] == ["gpu-01"] and len(terms) == 1
    assert found["affinity"]["podAntiAffinity"] == {"x": 1}
    assert found["tolerations"] == template["spec"]["tolerations"]
    score = pod(SCORE, settings)["containers"][0]["resources"]
    assert score == {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "64Gi"}}
    assert batch_job(INFER, INFER.folder, settings, COPIES) == job, "the template itself is as it was"


def job_labels(job: Object) -> Object:
    return {
        name: job["metadata"]["labels"][name] for name in ("app.kubernetes.io/managed-by", "diagnoser.io/trial-batch")
    }


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("kind: Pod", "pod.yaml:1: kind: unknown key"),
        ("spec: []", "pod.yaml:1: spec"),
        ("spec:\n  containers:\n    - name: main", "pod.yaml:3: spec.containers.0.name: Input should be 'trial'"),
        ("spec: {containers: [{name: trial}, {name: trial}]}", "at most 1 item"),
        ("spec: {tolerations: x}", "spec.tolerations"),
        ("a: [", "not YAML"),
    ],
)
def test_a_file_that_is_no_template_is_refused(template: str, why: str) -> None:
    """With the line; a second container would keep the pod from ending."""
    with pytest.raises(RuleFaults) as refused:
        read_template("pod.yaml", template)
    assert why in str(refused.value)


def condition(kind: str, **more: str) -> Object:
    return {"type": kind, "status": "True", **more}


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, OrderState.QUEUED),
        ({"active": 1, "ready": 0}, OrderState.QUEUED),
        ({"active": 1, "ready": 1}, OrderState.RUNNING),
        ({"conditions": [condition("Failed", reason="BackoffLimitExceeded")]}, OrderState.LOST),
        ({"active": 1, "conditions": [condition("FailureTarget", reason="x")]}, OrderState.LOST),
        ({"conditions": [condition("FailureTarget", reason="PodFailurePolicy")]}, OrderState.PREEMPTED),
        ({"conditions": [condition("Complete")], "completionTime": "2026-01-01T00:00:00Z"}, OrderState.ENDED),
        ({"conditions": [{"type": "Failed", "status": "False"}]}, OrderState.QUEUED),
        ({"conditions": [condition("Suspended")]}, OrderState.QUEUED),
    ],
)
def test_a_status_says_how_far_a_job_is(status: Object, state: OrderState) -> None:
    """A failed Job with the reason; one that waits for a node, an image or a quota is queued."""
    found = read_status({"metadata": {}, "spec": {}, "status": status})
    assert found.state is state
    if state is OrderState.ENDED:
        assert found.ended == 1767225600.0
    if state is OrderState.LOST:
        assert status["conditions"][0]["reason"] in found.detail
    assert is_suspended({"spec": {"suspend": True}}) and not is_suspended({"spec": {}})


READY = {"type": "Ready", "status": "True"}


def node(taints: list[Object] | None = None, ready: str = "True", gpus: str = "8", **spec: Any) -> Object:
    status = {"conditions": [{**READY, "status": ready}], "allocatable": {"nvidia.com/gpu": gpus}}
    return {"metadata": {"name": "gpu-01"}, "spec": {"taints": taints or [], **spec}, "status": status}


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Object:
    return {"key": key, "effect": effect, "value": value}


@pytest.mark.parametrize(
    ("found", "gpus"),
    [
        (node(), 8),
        (node(unschedulable=True), 0),
        (node(ready="Unknown"), 0),
        (node(gpus="0"), 0),
        (node([taint("nvidia.com/gpu")]), 8),
        (node([taint("maintenance")]), 0),
        (node([taint("maintenance", "NoExecute")]), 0),
        (node([taint("maintenance", "PreferNoSchedule")]), 8),
        (node([taint("team", value="eval")]), 8),
        (node([taint("team", value="other")]), 0),
        (node([taint("spot", "NoExecute")]), 8),
        (node([taint("spot", "NoSchedule")]), 0),
    ],
)
def test_a_node_that_takes_no_pods_has_no_gpus(found: Object, gpus: int) -> None:
    """Down, cordoned, or tainted by what the template does not tolerate."""
    tolerations = [{"key": "team", "value": "eval"}, {"key": "spot", "operator": "Exists", "effect": "NoExecute"}]
    settings = replace(SETTINGS, template={"spec": {"tolerations": tolerations}})
    assert usable_gpus(found, settings) == gpus


def test_nodes_without_gpus_are_counted_by_whoever_names_them() -> None:
    """Where GPUs are no resource, a node takes pods or takes none."""
    settings = replace(SETTINGS, gpu="", template={"spec": {"tolerations": [{"operator": "Exists"}]}})
    assert usable_gpus(node([taint("any")]), settings) is None
    assert usable_gpus(node(unschedulable=True), settings) == 0


def test_a_batch_whose_id_is_no_name_is_refused() -> None:
    """It becomes part of an address."""
    with pytest.raises(BadInput):
        job_name("../pods")
