"""What the agent keeps of the cluster's objects: a few fields of each, so that a large cluster stays small. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from diagnoser.agent.kubernetes import names, ranks, restart
from diagnoser.agent.kubernetes.kinds import JOB, JOBSET, KINDS, PYTORCHJOB, Key, WorkloadKind, ending, templates
from diagnoser.agent.nodes import NodeRecord

TEXT_LENGTH = 500
LABELS = 40
LABEL_LENGTH = 200
QUEUE = "kueue.x-k8s.io/queue-name"
_OWNERS = {kind.name: kind.word for kind in KINDS.values()}
_RAY_CLUSTER = "raycluster"


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container ended. code is None when nobody saw it end."""

    code: int | None
    reason: str = ""
    time: float = 0.0
    signal: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One life of a pod's main container: a container that starts again is another run.

    place: (first rank, number of ranks), None when not known. created: when it could first exist. started: 0.0 before
    it ran. before: it is the life before the present one, so that its log is the "previous" one.
    """

    uid: str
    restarts: int
    namespace: str
    pod: str
    container: str
    node: str
    place: tuple[int, int] | None
    created: float
    started: float = 0.0
    ended: ContainerExit | None = None
    before: bool = False

    @property
    def key(self) -> str:
        return f"{self.uid}/{self.restarts}"

    @property
    def over(self) -> bool:
        return self.ended is not None

    @property
    def rank(self) -> int:
        """Of the only process in it; -1 when there are several, or it is not known."""
        return self.place[0] if self.place and self.place[1] == 1 else -1


@dataclass(frozen=True, slots=True)
class PodRecord:
    """owner: key of the workload. leaving: it is being deleted. gone: it is no more. lost: its node is not ready, and
    will not end it."""

    uid: str
    namespace: str
    name: str
    owner: Key
    node: str = ""
    place: tuple[int, int] | None = None
    runs: tuple[ContainerRun, ...] = ()
    leaving: bool = False
    gone: bool = False
    lost: bool = False

    @property
    def over(self) -> bool:
        return bool(self.runs) and self.runs[-1].over


@dataclass(frozen=True, slots=True)
class Workload:
    """attempt: as an annotation of ours says, 0 without one. end: (done or failed, why). ended: when, 0.0 not known.

    chosen: to be looked after. cluster: the RayCluster that a RayJob made.
    """

    word: str
    namespace: str
    name: str
    uid: str
    attempt: int = 0
    end: tuple[str, str] = ("", "")
    ended: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    chosen: bool = True
    cluster: str = ""

    @property
    def key(self) -> Key:
        return self.word, self.namespace, self.name


def node(manifest: Mapping[str, Any]) -> NodeRecord:
    """Its reason is that of our marks, else why it is not ready."""
    meta, status = manifest["metadata"], manifest.get("status") or {}
    conditions = status.get("conditions") or ()
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), {"status": "True"})
    up = ready.get("status") == "True"
    fault = "" if up else f"{ready.get('reason', '')}: {ready.get('message', '')}"[:TEXT_LENGTH].strip(": ")
    return NodeRecord(
        name=meta["name"],
        up=up,
        cordoned=bool((manifest.get("spec") or {}).get("unschedulable")),
        reason=(meta.get("annotations") or {}).get(names.REASON) or fault,
        record="" if up else f"node {meta['name']} NotReady: {fault}",
        version=meta.get("resourceVersion", ""),
    )


def pod(manifest: Mapping[str, Any]) -> PodRecord | None:
    """None for a pod that no known kind of workload owns."""
    meta, spec = manifest["metadata"], manifest.get("spec") or {}
    owner = _owner(meta)
    if owner is None:
        return None
    record = PodRecord(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        owner=(owner[0], meta["namespace"], owner[1]),
        node=spec.get("nodeName") or "",
        place=ranks.place(manifest),
        leaving=bool(meta.get("deletionTimestamp")),
    )
    return replace(record, runs=_runs(record, manifest))


def gone(record: PodRecord, why: str) -> PodRecord:
    """The pod after it was deleted. why: what still ran then came to its end."""
    ended = ContainerExit(None, why)
    runs = tuple(run if run.ended or run.before else replace(run, ended=ended) for run in record.runs)
    return replace(record, runs=runs, gone=True)


def workload(kind: WorkloadKind, manifest: Mapping[str, Any]) -> Workload:
    meta, status = manifest["metadata"], manifest.get("status") or {}
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    attempt = str(marks.get(names.ATTEMPT, "0"))
    return Workload(
        word=kind.word,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        attempt=int(attempt) if attempt.isdecimal() and len(attempt) < 9 else 0,
        end=ending(kind, manifest),
        ended=seconds(status.get("completionTime") or status.get("endTime")) or _last_change(status),
        labels=_labels(meta),
        chosen=_chosen(kind, manifest, marks),
        cluster=str(status.get("rayClusterName") or ""),
    )


def seconds(text: Any) -> float:
    """Since the epoch; 0.0 for what is no time."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0


def _chosen(kind: WorkloadKind, manifest: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
    """Kinds made for training are looked after by themselves, a Job when it asks for GPUs; a mark of ours wins."""
    if names.WATCH in marks:
        return str(marks[names.WATCH]).lower() == "true"
    if kind is not JOB:
        return True
    owned = any(owner.get("kind") in _OWNERS for owner in manifest["metadata"].get("ownerReferences") or ())
    return not owned and any(ranks.gpus(template.get("spec") or {}) for template in templates(kind, manifest))


def _owner(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """(kind, name). Ray's pods are owned by a RayCluster, which its RayJob names."""
    labels = meta.get("labels") or {}
    if name := labels.get("jobset.sigs.k8s.io/jobset-name"):
        return JOBSET.word, name
    if name := labels.get("ray.io/cluster"):
        return _RAY_CLUSTER, name
    owners = (owner for owner in meta.get("ownerReferences") or () if owner.get("kind") in (JOB.name, PYTORCHJOB.name))
    return next(((_OWNERS[owner["kind"]], owner["name"]) for owner in owners), None)


def _runs(record: PodRecord, manifest: Mapping[str, Any]) -> tuple[ContainerRun, ...]:
    """The lives of the pod's first container, at most two: the other containers are helpers."""
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    containers = spec.get("containers") or ()
    if not containers:
        return ()
    name = containers[0]["name"]
    container = _container_status(status, name)
    restarts, created = int(container.get("restartCount") or 0), seconds(manifest["metadata"].get("creationTimestamp"))
    now = ContainerRun(record.uid, restarts, record.namespace, record.name, name, record.node, record.place, created)
    before = _run_before(now, container)
    if before and before.ended:
        now = replace(now, created=max(created, before.ended.time + 1.0))  # times are of whole seconds
    now = _present_run(now, container.get("state") or {}, status, created)
    return (before, now) if before else (now,)


def _container_status(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Empty where the cluster says nothing of the container."""
    entries = status.get("containerStatuses") or ()
    return next((entry for entry in entries if entry.get("name") == name), {})


def _run_before(now: ContainerRun, container: Mapping[str, Any]) -> ContainerRun | None:
    """The life of the container before the present one, where there was one. container: its status."""
    previous = (container.get("lastState") or {}).get("terminated")
    if not previous or not now.restarts:
        return None
    started = seconds(previous.get("startedAt")) or now.created
    return replace(now, restarts=now.restarts - 1, before=True, started=started, ended=_ended(previous))


def _present_run(
    run: ContainerRun, state: Mapping[str, Any], status: Mapping[str, Any], pod_created: float
) -> ContainerRun:
    """The run with its start and its end.

    state: of the container.
    status: of the pod.
    """
    running, terminated = state.get("running"), state.get("terminated")
    started = seconds((running or terminated or {}).get("startedAt"))
    if not started and terminated:
        started = pod_created  # it ran, and nobody says since when
    return replace(run, started=started, ended=_end(terminated, status, run, running))


def _end(
    over: Mapping[str, Any] | None, status: Mapping[str, Any], run: ContainerRun, running: object
) -> ContainerExit | None:
    """The container's own end, with what the cluster says about the pod."""
    phase, why = status.get("phase"), str(status.get("reason") or _disruption(status))[:TEXT_LENGTH]
    message = str(status.get("message") or "")[:TEXT_LENGTH]
    if over:
        ended = _ended(over)
        return replace(ended, reason=why, message=message or ended.message) if why and phase != "Succeeded" else ended
    if phase == "Failed":
        return ContainerExit(None, why or "Failed", _last_change(status) or run.created, 0, message)
    return None


def _ended(terminated: Mapping[str, Any]) -> ContainerExit:
    """Without the container's termination message: the job writes it, and this is told as the cluster's word."""
    return ContainerExit(
        code=int(terminated.get("exitCode") or 0),
        reason=str(terminated.get("reason") or "")[:TEXT_LENGTH],
        time=seconds(terminated.get("finishedAt")),
        signal=int(terminated.get("signal") or 0),
    )


def _disruption(status: Mapping[str, Any]) -> str:
    """Why the cluster itself took the pod away."""
    conditions = status.get("conditions") or ()
    targets = (condition for condition in conditions if condition.get("type") == "DisruptionTarget")
    return next((str(target.get("reason") or "") for target in targets if target.get("status") == "True"), "")


def _last_change(status: Mapping[str, Any]) -> float:
    times = (condition.get("lastTransitionTime") for condition in status.get("conditions") or ())
    return max(map(seconds, times), default=0.0)


def _labels(meta: Mapping[str, Any]) -> dict[str, str]:
    """The workload's own labels, by their last word, for the policy and the ledgers."""
    own = {name: value for name, value in (meta.get("labels") or {}).items() if name not in restart.JOBS_OWN}
    shortened = {name.rpartition("/")[2]: str(value)[:LABEL_LENGTH] for name, value in list(own.items())[:LABELS]}
    queue = str(own.get(QUEUE) or "")
    return {**({"partition": queue} if queue else {}), **{name: value for name, value in shortened.items() if value}}
