"""What is new about workloads and nodes since the last look. Pure.

A launch (attempt) is one life of all of a workload's pods: it ends with the first of them that fails, or with the
workload, and what starts after that, because a controller or a plan started it, is the next launch.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from diagnoser.agent.kubernetes.records import Ended, NodeRecord, PodRecord, Run, Workload

Body = dict[str, object]

SETTLE_SECONDS = 5.0
"""How long the other pods of a launch may take to end by themselves after the first one failed."""

STOPPED = 1
"""Exit code of a launch that failed where nobody saw a code."""

PREEMPTED = frozenset(
    {
        "Preempted",
        "Preempting",
        "PreemptionByScheduler",
        "PreemptionByKubeScheduler",
        "EvictionByEvictionAPI",
        "Shutdown",
        "NodeShutdown",
        "Terminated",
    }
)
"""Reasons of a pod that had to make room: nothing was wrong with it."""
LOST = frozenset({"NodeLost", "TaintManagerEviction", "DeletionByTaintManager", "DeletionByPodGC"})
CANCELLED = frozenset({"Deleted"})
PLAIN = frozenset({"", "Error", "Completed"})


@dataclass(frozen=True, slots=True)
class Tracked:
    """What the service has been told about a workload. members: keys of the runs of the present launch; past: of
    earlier ones that can still be seen.

    ended: when the launch ended, by the cluster's clock; None while it runs.
    """

    job: str
    attempt: int
    nodes: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    started: bool = False
    ended: float | None = None
    past: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """To be registered, with this body."""

    body: Body


@dataclass(frozen=True, slots=True)
class Happened:
    """An event. lines: what the cluster wrote about the end."""

    attempt: int
    body: Body
    lines: tuple[str, ...] = ()


Told = list[tuple[Registered | Happened, Tracked]]
"""What to tell, in order; each with the workload as it is tracked once the service knows."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node stood. kind: up, cordoned or down. ours: the cordon was."""

    kind: str = "up"
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at one workload sees. unread: whether a run's log still has lines to be sent."""

    work: Workload
    runs: tuple[Run, ...]
    now: float
    cluster: str
    unread: Callable[[Run], bool] = field(default=lambda run: False)


def runs_of(pods: Collection[PodRecord], nodes: Mapping[str, NodeRecord]) -> tuple[Run, ...]:
    """All runs, oldest first. One that is being deleted from a node that is lost will not end by itself."""
    found: list[Run] = []
    for pod in pods:
        node = nodes.get(pod.node)
        lost = pod.leaving and node is not None and not node.ready
        for run in pod.runs:
            found.append(replace(run, ended=Ended(None, "NodeLost")) if lost and run.ended is None else run)
    return tuple(sorted(found, key=lambda run: (run.created, run.pod, run.restarts)))


def news(look: Look, tracked: Tracked) -> tuple[Tracked, Told]:
    """The workload as it is tracked from now on, and what to tell."""
    told: Told = []
    while True:
        if tracked.ended is not None:
            after = _next_launch(look.runs, tracked)
            if after is None:
                return tracked, told
            tracked = after
        runs = tuple(run for run in look.runs if run.key not in tracked.past)
        tracked = _joined(look, runs, tracked, told)
        end = _end(look, runs, tracked)
        if end is None:
            return tracked, told
        time = end.body["time"]
        assert isinstance(time, float), "every end has one"
        tracked = replace(tracked, ended=time)
        told.append((end, tracked))


def vanished(tracked: Tracked, now: float) -> Happened | None:
    """What to tell of a workload that was deleted."""
    if not tracked.started or tracked.ended is not None:
        return None
    body: Body = {"kind": "cancelled", "attempt": tracked.attempt, "reason": "Deleted", "time": now}
    return Happened(tracked.attempt, body)


def node_news(
    before: Mapping[str, Standing], nodes: Collection[NodeRecord]
) -> tuple[dict[str, Standing], list[tuple[str, Body]]]:
    """How the nodes stand now, and (node, event) for each that changed. Cordons of ours are told with their plan."""
    now = {node.name: _standing(node) for node in nodes}
    events: list[tuple[str, Body]] = []
    for node in nodes:
        event = _node_event(before.get(node.name, Standing()), now[node.name])
        if event:
            reason = node.reason or node.why
            events.append((node.name, {"kind": event[0], "by": event[1], "reason": reason[:500]}))
    return now, events


def stale(node: NodeRecord) -> bool:
    """Somebody uncordoned a node of ours: our marks must not make the next cordon look like ours."""
    return bool(node.plan) and not node.cordoned


def first_failure(runs: Collection[Run]) -> Run | None:
    """The run that failed first; one that nobody saw fail comes last. What never ran did not fail: a kubelet that is
    short of devices turns pods away."""
    failed = [run for run in runs if run.started and run.ended and (run.ended.code is None or run.ended.code != 0)]
    return min(failed, key=_when_failed, default=None)


def _when_failed(run: Run) -> tuple[bool, float, str]:
    assert run.ended is not None, "the caller has chosen runs that failed"
    return run.ended.code is None, run.ended.time, run.pod


def _next_launch(runs: Collection[Run], tracked: Tracked) -> Tracked | None:
    """None while nothing has started since the last one ended."""
    done = {*tracked.past, *tracked.members}
    if not any(run.started for run in runs if run.key not in done):
        return None
    return Tracked(tracked.job, tracked.attempt + 1, past=tuple(sorted(done & {run.key for run in runs})))


def _joined(look: Look, runs: Collection[Run], tracked: Tracked, told: Told) -> Tracked:
    """The launch with the runs that belong to it: all that were there before its first failure.

    Times are of whole seconds: one that appears within the second of the failure of a launch that is known replaces it.
    """
    failure = first_failure(runs)
    until = failure.ended.time if failure and failure.ended and failure.ended.time else math.inf
    until += 0.0 if tracked.started else 0.5
    members = [run for run in runs if run.key in tracked.members or run.created < until]
    started = [run for run in members if run.started]
    nodes = tuple(sorted({run.node for run in started if run.node}))
    keys = tuple(sorted({*tracked.members, *(run.key for run in members)}))
    after = replace(tracked, members=keys, nodes=nodes or tracked.nodes, started=tracked.started or bool(started))
    if started and (not tracked.started or not set(nodes) <= set(tracked.nodes)):
        told.append((Registered(_registration(look, tracked, members, nodes)), replace(after, started=tracked.started)))
    if started and not tracked.started:
        begun = min(run.started for run in started)
        told.append((Happened(tracked.attempt, {"kind": "started", "attempt": tracked.attempt, "time": begun}), after))
    return after


def _end(look: Look, runs: Collection[Run], tracked: Tracked) -> Happened | None:
    """None while the launch goes on, or while its last lines are still being read."""
    members = [run for run in runs if run.key in tracked.members]
    failure, how = first_failure(members), look.work.end[0]
    if not tracked.started or not (how or failure):
        return None
    at = failure.ended.time if failure and failure.ended else look.work.ended
    since = look.now - at
    over = bool(how) or len(members) < len(runs) or all(run.ended for run in members) or since > SETTLE_SECONDS
    if not over or (since <= 2 * SETTLE_SECONDS and any(run.ended and look.unread(run) for run in members)):
        return None
    if failure is None or how == "done":
        return _end_of_workload(look, tracked)
    return _failed(failure, members, tracked, look.now)


def _end_of_workload(look: Look, tracked: Tracked) -> Happened:
    how, why = look.work.end
    body: Body = {"kind": "exit", "attempt": tracked.attempt, "code": 0 if how == "done" else STOPPED}
    body |= {"reason": why, "time": float(look.work.ended or look.now)}
    lines = (f"{look.work.word} {look.work.name} {how}: {why}",) if how == "failed" else ()
    return Happened(tracked.attempt, body, lines)


def _failed(run: Run, members: Collection[Run], tracked: Tracked, now: float) -> Happened:
    assert run.ended is not None, "the caller has chosen a run that failed"
    ended, reason = run.ended, "NODE_FAIL" if run.ended.reason in LOST else run.ended.reason
    kind = "preempted" if reason in PREEMPTED else "cancelled" if reason in CANCELLED else "exit"
    body: Body = {"kind": kind, "attempt": tracked.attempt, "reason": reason, "time": float(ended.time or now)}
    if kind == "exit":
        body |= {"signal": ended.signal} if ended.signal else {"code": ended.code or STOPPED}
    if run.node:
        body["node"] = run.node
    if run.rank >= 0:
        body["rank"] = run.rank
    lines = tuple(line for one in members if (line := _line(one)))
    return Happened(tracked.attempt, body, lines)


def _line(run: Run) -> str:
    """The end of a run in the words of the cluster, where they say more than an exit code."""
    ended = run.ended
    if ended is None or ended.reason in PLAIN | CANCELLED:
        return ""
    if ended.reason in LOST:
        return f"node {run.node} NotReady: pod {run.pod} was lost with it"
    code = "" if ended.code is None else f", exit code {ended.code}"
    told = " ".join(ended.message.split())
    return f"pod {run.pod} on {run.node}: terminated, reason: {ended.reason}{code}{': ' if told else ''}{told}"


def _registration(look: Look, tracked: Tracked, members: Collection[Run], nodes: tuple[str, ...]) -> Body:
    work = look.work
    ranks = {str(rank): run.node for run in members if run.node and run.place for rank in _ranks(run.place)}
    labels = {**work.labels, "namespace": work.namespace, "kind": work.word, "uid": work.uid}
    return {
        "id": tracked.job,
        "cluster": look.cluster,
        "name": work.name[:200],
        "nodes": nodes,
        "rank_nodes": ranks,
        "labels": {name[:200]: value for name, value in labels.items() if value},
    }


def _ranks(place: tuple[int, int]) -> range:
    return range(place[0], place[0] + place[1])


def _standing(node: NodeRecord) -> Standing:
    """A node that is cordoned and down is cordoned: somebody knows about it."""
    if node.cordoned:
        return Standing("cordoned", node.ours)
    return Standing() if node.ready else Standing("down")


def _node_event(old: Standing, new: Standing) -> tuple[str, str] | None:
    if old == new or (new.kind == "cordoned" and new.ours):
        return None
    if new.kind == "cordoned":
        return "cordoned", "person"
    if old.kind == "cordoned":
        return "uncordoned", "person"
    return ("down", "diagnoser") if new.kind == "down" else ("resumed", "diagnoser")
