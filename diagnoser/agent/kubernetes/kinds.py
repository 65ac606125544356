"""The kinds of workloads that are looked after, and where each keeps its pods' templates and its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diagnoser.agent.kubernetes import names
from diagnoser.agent.kubernetes.fields import conditions, entries, first_text, section, text
from diagnoser.model.errors import BadInput

Object = dict[str, Any]
Key = tuple[str, str, str]
"""(kind, namespace, name) of a workload."""


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """word: in ids of jobs. group: API group and version. done, failed: conditions that end it."""

    word: str
    name: str
    group: str
    plural: str
    done: str = "Complete"
    failed: str = "Failed"

    def path(self, namespace: str = "", name: str = "") -> str:
        """Address of one object, of a namespace's objects, or of all."""
        where = f"/apis/{self.group}"
        if namespace:
            where += f"/namespaces/{namespace}"
        return f"{where}/{self.plural}/{name}".rstrip("/")


JOB = WorkloadKind("job", "Job", "batch/v1", "jobs")
JOBSET = WorkloadKind("jobset", "JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets", done="Completed")
PYTORCHJOB = WorkloadKind("pytorchjob", "PyTorchJob", "kubeflow.org/v1", "pytorchjobs", done="Succeeded")
RAYJOB = WorkloadKind("rayjob", "RayJob", "ray.io/v1", "rayjobs")
KINDS = {kind.word: kind for kind in (JOB, JOBSET, PYTORCHJOB, RAYJOB)}


@dataclass(frozen=True, slots=True)
class WorkloadRef:
    kind: WorkloadKind
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        return self.kind.word, self.namespace, self.name

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name)

    def core(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}/{name}".rstrip("/")


def workload_ref(job: str, cluster: str) -> WorkloadRef:
    """job: its id at the service. Raises BadInput for a job of somewhere else."""
    word, namespace, name = names.workload_of(job, cluster)
    if word not in KINDS:
        raise BadInput(f"{word[:40]!r} is not a kind of workload: {', '.join(KINDS)}")
    return WorkloadRef(KINDS[word], namespace, name)


def templates(kind: WorkloadKind, manifest: Mapping[str, Any]) -> list[Object]:
    """List the pods' templates inside the object itself, the one of rank 0 first where the kind tells."""
    spec = section(manifest, "spec")
    if kind is JOB:
        return [spec["template"]]
    if kind is JOBSET:
        return [job["template"]["spec"]["template"] for job in entries(spec, "replicatedJobs")]
    if kind is PYTORCHJOB:
        return [replica["template"] for _, replica in sorted(section(spec, "pytorchReplicaSpecs").items())]
    # The head's first; without any where the RayJob uses a cluster that stands.
    cluster = section(spec, "rayClusterSpec")
    groups = list(entries(cluster, "workerGroupSpecs"))
    if cluster.get("headGroupSpec"):
        groups.insert(0, cluster["headGroupSpec"])
    return [group["template"] for group in groups]


def ending(kind: WorkloadKind, manifest: Mapping[str, Any]) -> tuple[str, str]:
    """("done" or "failed", why); empty while it goes on."""
    status = section(manifest, "status")
    if kind is RAYJOB:
        return _ray_ending(status)
    words = {kind.done: "done", kind.failed: "failed"}
    for name, condition in conditions(status).items():
        if name in words:
            return words[name], text(condition, "reason") or name
    return "", ""


def _ray_ending(status: Mapping[str, Any]) -> tuple[str, str]:
    word = text(status, "jobStatus")
    if word == "SUCCEEDED":
        return "done", word
    if status.get("jobDeploymentStatus") != "Failed" and word not in ("FAILED", "STOPPED"):
        return "", ""
    return "failed", first_text(status, "reason", "message", "jobStatus")
