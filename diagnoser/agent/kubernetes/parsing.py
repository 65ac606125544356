"""Reads the cluster's objects into records: a few fields of each, so that a large cluster stays small. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from diagnoser.agent.kubernetes import fields, names, ranks, restart
from diagnoser.agent.kubernetes.kinds import JOB, JOBSET, KINDS, PYTORCHJOB, Key, WorkloadKind, ending, templates
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.places import from_labels
from diagnoser.model import job_contract

TEXT_LENGTH = 500
LABELS = 40
MOST_LAUNCHES = 99_999_999
LABEL_LENGTH = 200
QUEUE = "kueue.x-k8s.io/queue-name"
_OWNERS = {kind.name: kind.word for kind in KINDS.values()}
_RAY_CLUSTER = "raycluster"
_HEALTH = ("Gpu", "SysLogs", "NVSwitch", "DCGMError", "CSPMaintenance", "SyslogError")
"""How the types of the conditions begin that NVSentinel sets on a node before it cordons it."""
LONGEST_LIMIT = 10 * 366 * 86_400
"""Seconds: a longer limit, which its owner may write, says nothing."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """End of a container. code is None when nobody saw it end."""

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
        """Rank of the only process in it; -1 when there are several, or it is not known."""
        if self.place is None:
            return -1
        first, count = self.place
        return -1 if count != 1 else first


@dataclass(frozen=True, slots=True)
class PodRecord:
    """owner: key of the workload. leaving: it is being deleted. gone: it is no more. lost: its node is not ready, and
    will not end it. wait_reason: why no node took it at first."""

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
    wait_reason: str = ""

    @property
    def over(self) -> bool:
        if not self.runs:
            return False
        return self.runs[-1].over

    @property
    def alive(self) -> bool:
        if self.gone:
            return False
        return not self.over

    @property
    def never_ends(self) -> bool:
        if not self.leaving:
            return False
        return self.lost


@dataclass(frozen=True, slots=True)
class Workload:
    """attempt: as an annotation of ours says, 0 without one. end: (done or failed, why). ended: when, 0.0 not known.

    chosen: to be looked after. cluster: the RayCluster that a RayJob made. time_limit: seconds that its
    pods may run, 0 for no limit.
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
    created: float = 0.0
    time_limit: int = 0

    @property
    def key(self) -> Key:
        return self.word, self.namespace, self.name


def node(manifest: Mapping[str, Any]) -> NodeRecord:
    """Its reason is that of our marks, else why it is not ready, else what a health monitor says of it."""
    meta, fault, record = manifest["metadata"], "", ""
    up = True
    for condition in fields.entries(manifest, "status", "conditions"):
        if condition.get("type") != "Ready":
            continue
        if condition.get("status") != "True":
            up = False
            fault = f"{condition.get('reason', '')}: {condition.get('message', '')}"[:TEXT_LENGTH].strip(": ")
            record = f"node {meta['name']} NotReady: {fault}"
    return NodeRecord(
        name=meta["name"],
        up=up,
        cordoned=bool(fields.section(manifest, "spec").get("unschedulable")),
        reason=fields.section(meta, "annotations").get(names.REASON) or fault or _health(manifest),
        record=record,
        version=meta.get("resourceVersion", ""),
        places=from_labels(fields.section(meta, "labels")),
    )


def _health(manifest: Mapping[str, Any]) -> str:
    """The first condition by which a health monitor calls the node faulty; "" without any."""
    for name, condition in fields.conditions(fields.section(manifest, "status")).items():
        if name.startswith(_HEALTH):
            return f"{name}: {fields.text(condition, 'message')}"[:TEXT_LENGTH]
    return ""


def pod(manifest: Mapping[str, Any]) -> PodRecord | None:
    """None for a pod that no known kind of workload owns."""
    meta = manifest["metadata"]
    owner = _owner(meta)
    if owner is None:
        return None
    record = PodRecord(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        owner=(owner[0], meta["namespace"], owner[1]),
        node=fields.text(fields.section(manifest, "spec"), "nodeName"),
        place=ranks.place(manifest),
        leaving=bool(meta.get("deletionTimestamp")),
    )
    return replace(record, runs=_runs(record, manifest))


def gone(record: PodRecord, why: str) -> PodRecord:
    """Mark the pod as deleted. why: what still ran then came to its end."""
    runs = []
    for run in record.runs:
        if run.ended is None and not run.before:
            run = replace(run, ended=ContainerExit(None, why))
        runs.append(run)
    return replace(record, runs=tuple(runs), gone=True)


def workload(kind: WorkloadKind, manifest: Mapping[str, Any]) -> Workload:
    meta, status, marks = manifest["metadata"], fields.section(manifest, "status"), fields.marks(manifest)
    return Workload(
        word=kind.word,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        attempt=fields.count(marks.get(names.ATTEMPT, "0"), MOST_LAUNCHES),
        end=ending(kind, manifest),
        ended=seconds(fields.first_text(status, "completionTime", "endTime")) or _last_change(status),
        labels=_labels(meta),
        chosen=_chosen(kind, manifest, marks),
        cluster=fields.text(status, "rayClusterName"),
        created=seconds(meta.get("creationTimestamp")),
        time_limit=_time_limit(fields.section(manifest, "spec")),
    )


def _time_limit(spec: Mapping[str, Any]) -> int:
    of_job = fields.number(spec, "activeDeadlineSeconds")
    limit = of_job or fields.number(fields.section(spec, "runPolicy"), "activeDeadlineSeconds")
    return min(limit, LONGEST_LIMIT)


def seconds(text: Any) -> float:
    """Since the epoch; 0.0 for what is no time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, TypeError):
        return 0.0


def _chosen(kind: WorkloadKind, manifest: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
    """Kinds made for training are looked after by themselves, a Job when it asks for GPUs; a mark of ours wins."""
    if names.WATCH in marks:
        return str(marks[names.WATCH]).lower() == "true"
    if kind is not JOB:
        return True
    owners = {owner.get("kind") for owner in fields.entries(manifest, "metadata", "ownerReferences")}
    if not owners.isdisjoint(_OWNERS):
        return False
    return any(ranks.gpus(fields.section(template, "spec")) for template in templates(kind, manifest))


def _owner(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """(kind, name). Ray's pods are owned by a RayCluster, which its RayJob names."""
    labels = fields.section(meta, "labels")
    if name := labels.get("jobset.sigs.k8s.io/jobset-name"):
        return JOBSET.word, name
    if name := labels.get("ray.io/cluster"):
        return _RAY_CLUSTER, name
    for owner in fields.entries(meta, "ownerReferences"):
        if owner.get("kind") in (JOB.name, PYTORCHJOB.name):
            return _OWNERS[owner["kind"]], owner["name"]
    return None


def _runs(record: PodRecord, manifest: Mapping[str, Any]) -> tuple[ContainerRun, ...]:
    """The lives of the pod's first container, at most two: the other containers are helpers."""
    containers, status = fields.entries(manifest, "spec", "containers"), fields.section(manifest, "status")
    if not containers:
        return ()
    name = containers[0]["name"]
    container = _container_status(status, name)
    restarts = fields.number(container, "restartCount")
    created = seconds(manifest["metadata"].get("creationTimestamp"))
    now = ContainerRun(record.uid, restarts, record.namespace, record.name, name, record.node, record.place, created)
    before = _run_before(now, container)
    if before is None:
        return (_present_run(now, fields.section(container, "state"), status, created),)
    if before.ended:
        now = replace(now, created=max(created, before.ended.time + 1.0))  # times are of whole seconds
    return before, _present_run(now, fields.section(container, "state"), status, created)


def _container_status(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Empty where the cluster says nothing of the container."""
    for entry in fields.entries(status, "containerStatuses"):
        if entry.get("name") == name:
            return dict(entry)
    return {}


def _run_before(now: ContainerRun, container: Mapping[str, Any]) -> ContainerRun | None:
    """The life of the container before the present one, where there was one. container: its status."""
    previous = fields.section(container, "lastState", "terminated")
    if not previous:
        return None
    if not now.restarts:
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
    running, terminated = fields.section(state, "running"), fields.section(state, "terminated")
    started = seconds((running or terminated).get("startedAt"))
    if not started and terminated:
        started = pod_created  # it ran, and nobody says since when
    return replace(run, started=started, ended=_end(terminated, status, run))


def _end(over: Mapping[str, Any], status: Mapping[str, Any], run: ContainerRun) -> ContainerExit | None:
    """Tell the container's own end, with what the cluster says about the pod. over: how the container ended."""
    disruption = fields.text(fields.conditions(status).get("DisruptionTarget", {}), "reason")
    phase, why = status.get("phase"), (fields.text(status, "reason") or disruption)[:TEXT_LENGTH]
    message = fields.text(status, "message")[:TEXT_LENGTH]
    if over:
        ended = _ended(over)
        if not why:
            return ended
        if phase == "Succeeded":
            return ended
        return replace(ended, reason=why, message=message)
    if phase == "Failed":
        return ContainerExit(None, why or "Failed", _last_change(status) or run.created, 0, message)
    return None


def _ended(terminated: Mapping[str, Any]) -> ContainerExit:
    """Without the container's termination message: the job writes it, and this is told as the cluster's word."""
    return ContainerExit(
        code=fields.number(terminated, "exitCode"),
        reason=fields.text(terminated, "reason")[:TEXT_LENGTH],
        time=seconds(terminated.get("finishedAt")),
        signal=fields.number(terminated, "signal"),
    )


def _last_change(status: Mapping[str, Any]) -> float:
    times = (condition.get("lastTransitionTime") for condition in fields.entries(status, "conditions"))
    return max(map(seconds, times), default=0.0)


def _labels(meta: Mapping[str, Any]) -> dict[str, str]:
    """The workload's own labels, by their last word, for the policy and the ledgers, and its contract."""
    own = [name for name in fields.section(meta, "labels") if name not in restart.JOBS_OWN]
    labels = {"partition": fields.text(fields.section(meta, "labels"), QUEUE)}
    for name in own[:LABELS]:
        if value := str(meta["labels"][name])[:LABEL_LENGTH]:
            labels[name.rpartition("/")[2]] = value
    if not labels["partition"]:
        del labels["partition"]
    written = fields.text(fields.section(meta, "annotations"), names.CONTRACT)[: 2 * job_contract.LENGTH]
    # An annotation may hold a NUL, which databases refuse; line breaks mean nothing in JSON.
    if contract := "".join(filter(str.isprintable, written)):
        labels[job_contract.LABEL] = contract[: job_contract.LENGTH + 1]
    return labels
