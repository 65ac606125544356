"""What is new about jobs and nodes since the last look. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from diagnoser.agent.slurm.records import GONE, JobRecord, NodeRecord, rank_map
from diagnoser.agent.slurm.steps import OURS
from diagnoser.agent.tail import Mark

NEW = Mark()
CODED = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
"""States whose exit code is the batch script's own; a job that was stopped may show a code of 0."""

SKEW = 5.0
"""Slurm's times are whole seconds of another clock: what ended shortly before the last look may not have been in it."""

STOPPED = 1
"""Exit code of an attempt that Slurm stopped because something failed, where Slurm gives none."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """What the service has been told about a job. mark: how far its log has been read. output, uid: of its log."""

    attempt: int
    nodes: tuple[str, ...] = ()
    started: bool = False
    ended: bool = False
    mark: Mark = NEW
    output: str = ""
    uid: int = -1


@dataclass(frozen=True, slots=True)
class Registered:
    """To be registered, with this body."""

    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Happened:
    """An event. ends: the attempt writes no more after it. records: what Slurm wrote about its nodes that are down."""

    attempt: int
    body: Mapping[str, object]
    ends: bool = False
    records: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node stood. kind: up, drained or down. ours: the drain was."""

    kind: str = "up"
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What the agent knows from its last look; kept over a restart."""

    time: float
    jobs: Mapping[int, Tracked] = field(default_factory=dict)
    nodes: Mapping[str, Standing] = field(default_factory=dict)


def concerns(job: JobRecord, tracked: Tracked | None, since: float) -> bool:
    """Whether to look at the job: it runs, it is known, or it began and ended since the last look."""
    return tracked is not None or job.runs or (job.finished and job.started > 0 and job.ended >= since - SKEW)


def news(
    job: JobRecord, before: Tracked | None, nodes: Mapping[str, NodeRecord], cluster: str, id: str
) -> tuple[Tracked, list[Registered | Happened]]:
    """The job as it is tracked from now on, and what to tell, in order."""
    told: list[Registered | Happened] = []
    tracked = before or Tracked(job.attempt)
    if tracked.attempt < job.attempt:
        if tracked.started and not tracked.ended:
            told.append(_lost(tracked, nodes))
        tracked = Tracked(job.attempt, mark=replace(tracked.mark, first=True))
    if not tracked.started and (job.runs or job.finished) and job.nodes:
        told.append(Registered(_registration(job, cluster, id)))
        told.append(Happened(job.attempt, {"kind": "started", "attempt": job.attempt, **_time(job.started)}))
        tracked = replace(tracked, started=True, nodes=job.nodes, output=job.output, uid=job.uid)
    if job.finished and tracked.started and not tracked.ended:
        told.append(_end(job, nodes))
        tracked = replace(tracked, ended=True)
    return tracked, told


def forgotten(tracked: Tracked, found: JobRecord) -> JobRecord:
    """A job that the controller has forgotten, as far as it is known. found: what the accounting says of its end."""
    return replace(found, restarts=tracked.attempt - 1, nodes=tracked.nodes, output=tracked.output, uid=tracked.uid)


def node_news(
    before: Mapping[str, Standing], nodes: Collection[NodeRecord]
) -> tuple[dict[str, Standing], list[tuple[str, dict[str, object]]]]:
    """How the nodes stand now, and (node, event) for each that changed. Drains of ours are told with their plan."""
    now = {node.name: _standing(node) for node in nodes}
    events: list[tuple[str, dict[str, object]]] = []
    for node in nodes:
        old, new = before.get(node.name, Standing()), now[node.name]
        event = _node_event(old, new)
        if event:
            kind, by = event
            events.append((node.name, {"kind": kind, "by": by, "reason": node.reason[:500]}))
    return now, events


def _standing(node: NodeRecord) -> Standing:
    """A node that is drained and down is drained: somebody knows about it."""
    if node.drained:
        return Standing("drained", node.reason.startswith(OURS))
    return Standing("down") if node.down else Standing()


def _node_event(old: Standing, new: Standing) -> tuple[str, str] | None:
    if old == new or (new.kind == "drained" and new.ours):
        return None
    if new.kind == "drained":
        return "cordoned", "person"
    if old.kind == "drained":
        return "uncordoned", "person"
    return ("down", "diagnoser") if new.kind == "down" else ("resumed", "diagnoser")


def _registration(job: JobRecord, cluster: str, id: str) -> dict[str, object]:
    ranks = {str(rank): node for rank, node in rank_map(job).items()}
    labels = {"slurm_job": str(job.number), "user": job.user, **job.labels}
    return {
        "id": id,
        "cluster": cluster,
        "name": job.name[:200],
        "nodes": job.nodes,
        "rank_nodes": ranks,
        "labels": {name: value for name, value in labels.items() if value},
    }


def _lost(tracked: Tracked, nodes: Mapping[str, NodeRecord]) -> Happened:
    """An attempt whose end was never seen: Slurm requeued the job, at once."""
    down = [nodes[name] for name in tracked.nodes if name in nodes and nodes[name].down]
    body: dict[str, object] = {"kind": "cancelled", "attempt": tracked.attempt, "reason": "REQUEUED"}
    if down:
        body |= {"kind": "exit", "code": STOPPED, "reason": "NODE_FAIL", "node": down[0].name}
    return Happened(tracked.attempt, body, ends=True, records=tuple(node.text for node in down))


def _end(job: JobRecord, nodes: Mapping[str, NodeRecord]) -> Happened:
    kind = {"CANCELLED": "cancelled", "PREEMPTED": "preempted"}.get(job.state, "exit")
    body: dict[str, object] = {"kind": kind, "attempt": job.attempt, "reason": job.state, **_time(job.ended)}
    if kind == "exit" and job.signal:
        body["signal"] = job.signal
    elif kind == "exit" and job.state != GONE:
        body["code"] = job.code if job.state in CODED else job.code or STOPPED
    down = [nodes[name] for name in job.nodes if name in nodes and nodes[name].down]
    if down and job.state == "NODE_FAIL":
        body["node"] = down[0].name
    return Happened(job.attempt, body, ends=True, records=tuple(node.text for node in down))


def _time(seconds: float) -> dict[str, float]:
    return {"time": seconds} if seconds else {}
