"""What the agent keeps of the cluster's objects: a few fields of each, so that a large cluster stays small. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from diagnoser.agent.kubernetes import names, ranks, restart
from diagnoser.agent.kubernetes.kinds import JOB, JOBSET, PYTORCHJOB, RAYJOB, Kind, ending, templates

TEXT_LENGTH = 500
LABELS = 40
LABEL_LENGTH = 200
QUEUE = "kueue.x-k8s.io/queue-name"
_OWNERS = {JOB.name: JOB.word, JOBSET.name: JOBSET.word, PYTORCHJOB.name: PYTORCHJOB.word, RAYJOB.name: RAYJOB.word}
_RAY_CLUSTER = "raycluster"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended. code is None when nobody saw it end."""

    code: int | None
    reason: str = ""
    time: float = 0.0
    signal: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Run:
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
    ended: Ended | None = None
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
    """owner: (kind, namespace, name) of the workload. leaving: it is being deleted. gone: it is no more."""

    uid: str
    namespace: str
    name: str
    owner: tuple[str, str, str]
    node: str = ""
    place: tuple[int, int] | None = None
    runs: tuple[Run, ...] = ()
    leaving: bool = False
    gone: bool = False

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
    version: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.word, self.namespace, self.name


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """plan: of ours that cordoned it, "" for none. version: of the object, for changes that must not cross another."""

    name: str
    ready: bool = True
    why: str = ""
    cordoned: bool = False
    plan: str = ""
    reason: str = ""
    version: str = ""

    @property
    def ours(self) -> bool:
        """Whether its marks say that a plan of ours cordoned it."""
        return bool(self.plan) and self.reason.startswith(names.OURS)


@dataclass(frozen=True, slots=True)
class Event:
    """What the cluster wrote about a pod (its uid) or a node (its name)."""

    pod: str
    node: str
    reason: str
    line: str
    time: float = 0.0


def node(found: Mapping[str, Any]) -> NodeRecord:
    meta, status = found["metadata"], found.get("status") or {}
    ready = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {"status": "True"})
    marks = meta.get("annotations") or {}
    return NodeRecord(
        name=meta["name"],
        ready=ready.get("status") == "True",
        why=f"{ready.get('reason', '')}: {ready.get('message', '')}"[:TEXT_LENGTH].strip(": "),
        cordoned=bool((found.get("spec") or {}).get("unschedulable")),
        plan=marks.get(names.PLAN, ""),
        reason=marks.get(names.REASON, ""),
        version=meta.get("resourceVersion", ""),
    )


def pod(found: Mapping[str, Any]) -> PodRecord | None:
    """None for a pod that no known kind of workload owns."""
    meta, spec = found["metadata"], found.get("spec") or {}
    owner = _owner(meta)
    if owner is None:
        return None
    record = PodRecord(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        owner=(owner[0], meta["namespace"], owner[1]),
        node=spec.get("nodeName") or "",
        place=ranks.place(found),
        leaving=bool(meta.get("deletionTimestamp")),
    )
    return replace(record, runs=_runs(record, found))


def gone(record: PodRecord, why: str) -> PodRecord:
    """The pod after it was deleted. why: what still ran then came to its end."""
    ended = Ended(None, why)
    runs = tuple(run if run.ended or run.before else replace(run, ended=ended) for run in record.runs)
    return replace(record, runs=runs, gone=True)


def event(found: Mapping[str, Any]) -> Event:
    """node is "" unless it is a warning about a node."""
    about, reason = found.get("involvedObject") or {}, str(found.get("reason") or "")
    told = " ".join(str(found.get("message") or "").split())[:TEXT_LENGTH]
    is_node = about.get("kind") == "Node" and (found.get("type") == "Warning" or reason == "NodeNotReady")
    name = str(about.get("name") or "") if is_node else ""
    time = seconds(found.get("lastTimestamp") or found.get("eventTime") or found["metadata"].get("creationTimestamp"))
    return Event(str(about.get("uid") or ""), name, reason, f"node {name}: {reason}: {told}", time)


def workload(kind: Kind, found: Mapping[str, Any]) -> Workload:
    meta, status = found["metadata"], found.get("status") or {}
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    attempt = str(marks.get(names.ATTEMPT, "0"))
    return Workload(
        word=kind.word,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        attempt=int(attempt) if attempt.isdecimal() and len(attempt) < 9 else 0,
        end=ending(kind, found),
        ended=seconds(status.get("completionTime") or status.get("endTime") or _last_change(status)),
        labels=_labels(meta),
        chosen=_chosen(kind, found, marks),
        cluster=str(status.get("rayClusterName") or ""),
        version=meta.get("resourceVersion", ""),
    )


def seconds(text: Any) -> float:
    """Since the epoch; 0.0 for what is no time."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0


def asks_for_gpus(found: Iterable[Mapping[str, Any]]) -> bool:
    return any(ranks.gpus(one.get("spec") or {}) for one in found)


def _chosen(kind: Kind, found: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
    """Kinds made for training are looked after by themselves, a Job when it asks for GPUs; a mark of ours wins."""
    if names.WATCH in marks:
        return str(marks[names.WATCH]).lower() == "true"
    if kind is not JOB:
        return True
    owned = any(one.get("kind") in _OWNERS for one in found["metadata"].get("ownerReferences") or ())
    return not owned and asks_for_gpus(templates(kind, found))


def _owner(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """(kind, name). Ray's pods are owned by a RayCluster, which its RayJob names."""
    labels = meta.get("labels") or {}
    if name := labels.get("jobset.sigs.k8s.io/jobset-name"):
        return JOBSET.word, name
    if name := labels.get("ray.io/cluster"):
        return _RAY_CLUSTER, name
    owners = (one for one in meta.get("ownerReferences") or () if one.get("kind") in (JOB.name, PYTORCHJOB.name))
    return next(((_OWNERS[one["kind"]], one["name"]) for one in owners), None)


def _runs(record: PodRecord, found: Mapping[str, Any]) -> tuple[Run, ...]:
    """Of the pod's first container: the others are helpers."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    containers = spec.get("containers") or ()
    if not containers:
        return ()
    name = containers[0]["name"]
    shown: Mapping[str, Any] = next(
        (one for one in status.get("containerStatuses") or () if one.get("name") == name), {}
    )
    restarts, made = int(shown.get("restartCount") or 0), seconds(found["metadata"].get("creationTimestamp"))
    now = Run(record.uid, restarts, record.namespace, record.name, name, record.node, record.place, made)
    runs = []
    state, last = shown.get("state") or {}, (shown.get("lastState") or {}).get("terminated")
    if last and restarts:
        before = replace(now, restarts=restarts - 1, before=True, started=seconds(last.get("startedAt")) or made)
        ended = _ended(last)
        runs.append(replace(before, ended=ended))
        now = replace(now, created=max(made, ended.time + 1.0))  # times are of whole seconds
    running, over = state.get("running"), state.get("terminated")
    begun = seconds((running or over or {}).get("startedAt"))
    return (*runs, replace(now, started=begun or (made if over else 0.0), ended=_end(over, status, now, running)))


def _end(over: Mapping[str, Any] | None, status: Mapping[str, Any], run: Run, running: object) -> Ended | None:
    """The container's own end, with what the cluster says about the pod."""
    phase, why = status.get("phase"), str(status.get("reason") or _disruption(status))[:TEXT_LENGTH]
    told = str(status.get("message") or "")[:TEXT_LENGTH]
    if over:
        ended = _ended(over)
        return replace(ended, reason=why, message=told or ended.message) if why and phase != "Succeeded" else ended
    if phase == "Failed":
        return Ended(None, why or "Failed", _last_change(status, as_seconds=True) or run.created, 0, told)
    return None


def _ended(found: Mapping[str, Any]) -> Ended:
    return Ended(
        code=int(found.get("exitCode") or 0),
        reason=str(found.get("reason") or "")[:TEXT_LENGTH],
        time=seconds(found.get("finishedAt")),
        signal=int(found.get("signal") or 0),
        message=str(found.get("message") or "")[:TEXT_LENGTH],
    )


def _disruption(status: Mapping[str, Any]) -> str:
    """Why the cluster itself took the pod away."""
    conditions = status.get("conditions") or ()
    found = (one for one in conditions if one.get("type") == "DisruptionTarget" and one.get("status") == "True")
    return next((str(one.get("reason") or "") for one in found), "")


def _last_change(status: Mapping[str, Any], as_seconds: bool = False) -> Any:
    times = [str(one.get("lastTransitionTime") or "") for one in status.get("conditions") or ()]
    newest = max(times, default="")
    return seconds(newest) if as_seconds else newest


def _labels(meta: Mapping[str, Any]) -> dict[str, str]:
    """The workload's own labels, by their last word, for the policy and the ledgers."""
    given = {name: value for name, value in (meta.get("labels") or {}).items() if name not in restart.JOBS_OWN}
    found = {name.rpartition("/")[2]: str(value)[:LABEL_LENGTH] for name, value in list(given.items())[:LABELS]}
    queue = str(given.get(QUEUE) or "")
    return {**({"partition": queue} if queue else {}), **{name: value for name, value in found.items() if value}}
