"""The kinds of workloads that are looked after, and where each keeps its pods' templates and its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diagnoser.agent.kubernetes import names
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
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{self.group}{where}/{self.plural}" + (f"/{name}" if name else "")


JOB = WorkloadKind("job", "Job", "batch/v1", "jobs")
JOBSET = WorkloadKind("jobset", "JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets", done="Completed")
PYTORCHJOB = WorkloadKind("pytorchjob", "PyTorchJob", "kubeflow.org/v1", "pytorchjobs", done="Succeeded")
RAYJOB = WorkloadKind("rayjob", "RayJob", "ray.io/v1", "rayjobs")
KINDS = {kind.word: kind for kind in (JOB, JOBSET, PYTORCHJOB, RAYJOB)}


@dataclass(frozen=True, slots=True)
class WorkloadRef:
    """One workload, by its name."""

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
        """Address of pods or ConfigMaps of its namespace."""
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


def workload_ref(job: str, cluster: str) -> WorkloadRef:
    """job: its id at the service. Raises BadInput for a job of somewhere else."""
    word, namespace, name = names.workload_of(job, cluster)
    if word not in KINDS:
        raise BadInput(f"{word[:40]!r} is not a kind of workload: {', '.join(KINDS)}")
    return WorkloadRef(KINDS[word], namespace, name)


def templates(kind: WorkloadKind, manifest: Mapping[str, Any]) -> list[Object]:
    """The pods' templates inside the object itself, the one of rank 0 first where the kind tells."""
    spec = manifest.get("spec") or {}
    if kind is JOB:
        return [spec["template"]]
    if kind is JOBSET:
        return [job["template"]["spec"]["template"] for job in spec.get("replicatedJobs") or ()]
    if kind is PYTORCHJOB:
        replicas = spec.get("pytorchReplicaSpecs") or {}
        return [replicas[name]["template"] for name in sorted(replicas)]
    return _ray_templates(spec.get("rayClusterSpec") or {})


def _ray_templates(cluster: Mapping[str, Any]) -> list[Object]:
    """The head's first; without any where the RayJob uses a cluster that stands."""
    groups = list(cluster.get("workerGroupSpecs") or ())
    if cluster.get("headGroupSpec"):
        groups.insert(0, cluster["headGroupSpec"])
    return [group["template"] for group in groups]


def ending(kind: WorkloadKind, manifest: Mapping[str, Any]) -> tuple[str, str]:
    """("done" or "failed", why); empty while it goes on."""
    status = manifest.get("status") or {}
    if kind is RAYJOB:
        return _ray_ending(status)
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in (kind.done, kind.failed):
            word = "done" if condition["type"] == kind.done else "failed"
            return word, str(condition.get("reason") or condition["type"])
    return "", ""


def _ray_ending(status: Mapping[str, Any]) -> tuple[str, str]:
    word = str(status.get("jobStatus") or "")
    if word == "SUCCEEDED":
        return "done", word
    if word in ("FAILED", "STOPPED") or status.get("jobDeploymentStatus") == "Failed":
        return "failed", str(status.get("reason") or status.get("message") or word)
    return "", ""
