"""Jobs of evaluation batches: their manifests, and what is read of them and of nodes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from diagnoser.agent.kubernetes import fields, names, parsing
from diagnoser.agent.kubernetes.check import SHARED_MEMORY, bound_to
from diagnoser.agent.kubernetes.kinds import JOB, Object
from diagnoser.evaluations.batch_folder import SchedulerJob
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model import yaml_loader
from diagnoser.model.evaluations import BatchKind
from diagnoser.ports import Order, OrderState

BATCH = names.DOMAIN + "trial-batch"
"""Label of a Job and its pod: id of the batch."""
PREFIX = "diagnoser-trial-"
KEEP_SECONDS = 600
"""How long a Job that has ended stays, for people to look at."""
MOST_GPUS = 1_000_000
DISRUPTED = "PodFailurePolicy"
"""Reason of a Job that failed by the only rule of its policy."""
_POLICY: Object = {
    "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
"""Its pod was preempted or evicted: the Job says so, and nobody has to look at pods. Servers before 1.26 drop it."""
_SCRIPT = 'exec "$@" >>"$0" 2>&1'
_REPELS = ("NoSchedule", "NoExecute")


class _Container(BaseModel):
    """A container of a template: as much as is read here."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Literal["trial"]
    resources: dict[str, dict[str, Any]] = Field(default={})


class _PodSpec(BaseModel):
    """Another container would keep the pod from ending."""

    model_config = ConfigDict(extra="allow", frozen=True)

    containers: list[_Container] = Field(default=[], max_length=1)
    tolerations: list[dict[str, Any]] = []


class _Template(yaml_loader.StrictModel):
    metadata: dict[str, Any] = Field(default={})
    spec: _PodSpec = _PodSpec()


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of all Jobs of a run.

    image: with Python and this package. user, group: that pods run as. volumes: path of a shared file system, which is
    the same everywhere -> the claim that has it, "" where it is a path of the nodes. gpu: the resource that nodes have,
    "" where they have none. queue: of Kueue. cpu, memory: that scoring asks for. memory_folder: of the nodes, in
    shared memory, for copies of weights; "" for memory of each pod. template: a PodTemplateSpec, below what is set
    here.
    """

    image: str = ""
    user: int = 0
    group: int = 0
    volumes: Mapping[str, str] = field(default_factory=dict)
    gpu: str = "nvidia.com/gpu"
    queue: str = ""
    cpu: str = "1"
    memory: str = "2Gi"
    memory_folder: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tolerations(self) -> Sequence[Mapping[str, Any]]:
        return fields.entries(self.template, "spec", "tolerations")


def job_name(batch: str) -> str:
    """Raises BadInput for what cannot be a name."""
    return names.valid(f"{PREFIX}{batch}", "Job")


def batch_job(order: Order, folder: str, settings: JobSettings, copies: CopyLimits) -> Object:
    """One pod, never a second one: a batch that is lost is cut anew, for the nodes that are left. Its output goes to
    the batch's folder, so that nobody needs the right to read logs."""
    name, labels = job_name(order.batch), {**names.MANAGED, BATCH: order.batch}
    runner = ("python3", "-P", "-m", "diagnoser.evaluations.runner", folder, "--owner", name)
    container: Object = {"command": ["/bin/sh", "-c", _SCRIPT, f"{folder}/runner.log", *runner], "resources": {}}
    if order.kind is BatchKind.INFER:
        if settings.gpu:
            container["resources"] = {"limits": {settings.gpu: str(order.gpus)}}
        return _job({"name": name}, labels, order.node, _pod(container, settings, copies), settings)
    container["resources"] = {"requests": {"cpu": settings.cpu, "memory": settings.memory}}
    container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]  # images of CUDA see all GPUs otherwise
    return _job({"name": name}, labels, "", _pod(container, settings, CopyLimits()), settings)


def clean_job(node: str, checkpoints: Sequence[str], settings: JobSettings, copies: CopyLimits) -> Object:
    """Drops the copies of these checkpoints on a node."""
    words = ["python3", "-P", "-m", "diagnoser.evaluations.weights", copies.folder, *checkpoints]
    pod = _pod({"command": words, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}, settings, copies)
    return _job({"generateName": f"{PREFIX}clean-"}, dict(names.MANAGED), node, pod, settings)


def read_status(job: Mapping[str, Any]) -> SchedulerJob:
    """Read the status of a Job. RUNNING once its pod is ready, which servers before 1.24 do not say."""
    status = fields.section(job, "status")
    conditions = fields.conditions(status)
    failed = conditions.get("Failed") or conditions.get("FailureTarget")
    if failed:
        if failed.get("reason") == DISRUPTED:
            return SchedulerJob(OrderState.PREEMPTED)
        why = ": ".join(str(failed[part]) for part in ("reason", "message") if failed.get(part))
        return SchedulerJob(OrderState.LOST, detail=f"its Job failed: {why[: parsing.TEXT_LENGTH]}")
    if "Complete" in conditions:
        return SchedulerJob(OrderState.ENDED, parsing.seconds(status.get("completionTime")), "its Job ended")
    if status.get("ready"):
        return SchedulerJob(OrderState.RUNNING)
    return SchedulerJob(OrderState.QUEUED)


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Tell whether Kueue has suspended the Job: until it is admitted, or after it was preempted."""
    return bool(fields.section(job, "spec").get("suspend"))


def usable_gpus(node: Mapping[str, Any], settings: JobSettings) -> int | None:
    """That pods of the run may ask for: 0 where the node takes none of them. None where GPUs are no resource."""
    if not parsing.node(node).takes_jobs:
        return 0
    if _repels(node, settings):
        return 0
    if not settings.gpu:
        return None
    return fields.count(fields.section(node, "status", "allocatable").get(settings.gpu), MOST_GPUS)


def _repels(node: Mapping[str, Any], settings: JobSettings) -> bool:
    taints = [taint for taint in fields.entries(node, "spec", "taints") if taint.get("effect") in _REPELS]
    return not all(_is_tolerated(taint, settings) for taint in taints)


def read_template(path: str, text: str) -> Object:
    """A PodTemplateSpec in YAML. path: for faults. Raises RuleFaults, with all of them."""
    return yaml_loader.load(path, text, _Template).model_dump(exclude_unset=True)


def _pod(container: Object, settings: JobSettings, copies: CopyLimits) -> Object:
    """copies: where the pod finds them, below the folder that is mounted."""
    volumes: list[Object] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},  # loaders of data and ranks of a model share tensors there
    ]
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": SHARED_MEMORY}]  # noqa: S108 - of the pod
    for place, (path, claim) in enumerate(settings.volumes.items()):
        source: Object = _of_host(path)
        if claim:
            source = {"persistentVolumeClaim": {"claimName": claim}}
        volumes.append({"name": f"shared-{place}", **source})
        mounts.append({"name": f"shared-{place}", "mountPath": path})
    if copies.folder:
        memory: Object = {"emptyDir": {"medium": "Memory"}}
        if settings.memory_folder:
            memory = _of_host(settings.memory_folder)
        volumes.append({"name": "weights", **memory})
        mounts.append({"name": "weights", "mountPath": copies.folder.rpartition("/")[0]})
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.group,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                **container,
                "name": "trial",
                "image": settings.image,
                "command": [word.replace("$(", "$$(") for word in container["command"]],
                "env": [{"name": "HOME", "value": "/tmp"}, *container.get("env", ())],  # noqa: S108 - of the pod
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _job(meta: Object, labels: Mapping[str, str], node: str, pod: Object, settings: JobSettings) -> Object:
    """Not looked after by the agent: what fails is tried again by the run."""
    if node:
        pod = bound_to(node, pod)
    template = _merged(settings.template, {"metadata": {"labels": dict(labels)}, "spec": pod})
    if not node:
        [container] = template["spec"]["containers"]
        for amounts in container["resources"].values():
            amounts.pop(settings.gpu, None)
    meta = {**meta, "labels": {**labels, names.WATCH: "false"}}
    if settings.queue:
        meta["labels"][parsing.QUEUE] = settings.queue
    ends = {"backoffLimit": 0, "podFailurePolicy": _POLICY, "ttlSecondsAfterFinished": KEEP_SECONDS}
    spec = {"suspend": False, **ends, "template": template}
    return {"apiVersion": JOB.group, "kind": JOB.name, "metadata": meta, "spec": spec}


def _of_host(path: str) -> Object:
    return {"hostPath": {"path": path, "type": "Directory"}}


def _merged(under: Any, ours: Any) -> Any:
    """Ours wins. Lists whose items have names are merged by these; of others ours takes the place."""
    match under, ours:
        case dict(), dict():
            return {**under, **{name: _merged(under.get(name), value) for name, value in ours.items()}}
        case list(), list() if all(map(_identity, ours)):
            return _merged_items(under, ours)
    return ours


def _merged_items(under: list[Any], ours: list[Any]) -> list[Any]:
    known = {_identity(item): item for item in under}
    merged = {_identity(item): _merged(known.get(_identity(item)), item) for item in ours}
    return [*(item for item in under if _identity(item) not in merged), *merged.values()]


def _identity(item: Any) -> str:
    if not isinstance(item, Mapping):
        return ""
    return fields.text(item, "mountPath") or fields.text(item, "name")


def _is_tolerated(taint: Mapping[str, Any], settings: JobSettings) -> bool:
    """Tell whether the template tolerates the taint. Admission adds what tolerates a taint of the resource's name to
    pods that ask for it."""
    if taint.get("key") == settings.gpu:
        return True
    return any(_tolerates(toleration, taint) for toleration in settings.tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key = toleration.get("key")
    exists: bool = toleration.get("operator") == "Exists"
    if not key:
        return exists  # it is for every key
    if key != taint.get("key"):
        return False
    if exists:
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))
