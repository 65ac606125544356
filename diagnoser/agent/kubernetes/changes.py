"""Finds what is new about a workload since the last look. Pure.

A launch (attempt) is one life of all of a workload's pods: it ends with the first of them that fails, or with the
workload, and what starts after that, because a controller or a plan started it, is the next launch.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from diagnoser.agent.changes import STOPPED, Body, Changes, JobRegistration, LifecycleEvent, registration
from diagnoser.agent.kubernetes.parsing import ContainerExit, ContainerRun, PodRecord, Workload
from diagnoser.agent.state_file import JobCheckpoint

ENDING_SECONDS = 5.0
"""How long the other pods of a launch may take to end by themselves after the first one failed."""

PREEMPTED = frozenset({"Preempted", "Preempting", "PreemptionByScheduler", "PreemptionByKubeScheduler",
                       "EvictionByEvictionAPI", "Shutdown", "NodeShutdown", "Terminated"})  # fmt: skip
"""Reasons of a pod that had to make room: nothing was wrong with it."""
LOST = frozenset({"NodeLost", "TaintManagerEviction", "DeletionByTaintManager", "DeletionByPodGC"})
CANCELLED = frozenset({"Deleted"})
PLAIN = frozenset({"", "Error", "Completed"})


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One look at one workload. workload: None once it was deleted. unread: whether a run's log still has
    lines to be sent."""

    workload: Workload | None
    pods: tuple[PodRecord, ...]
    now: float
    unread: Callable[[ContainerRun], bool] = lambda run: False


def runs_of(pods: Collection[PodRecord]) -> tuple[ContainerRun, ...]:
    """All runs, oldest first. One that is being deleted from a node that is lost will not end by itself."""
    runs: list[ContainerRun] = []
    for pod in pods:
        for run in pod.runs:
            if pod.never_ends and run.ended is None:
                run = replace(run, ended=ContainerExit(None, "NodeLost"))
            runs.append(run)
    return tuple(sorted(runs, key=lambda run: (run.created, run.pod, run.restarts)))


def diff(view: WorkloadView, before: JobCheckpoint, cluster: str) -> tuple[JobCheckpoint, Changes]:
    """Return the workload's new checkpoint, and what to report."""
    changes: Changes = []
    checkpoint, all_runs = before, runs_of(view.pods)
    if view.workload is None:
        if checkpoint.is_open:
            body: Body = {"kind": "cancelled", "attempt": checkpoint.attempt, "reason": "Deleted", "time": view.now}
            checkpoint = replace(checkpoint, ended=True)
            changes.append((LifecycleEvent(checkpoint.attempt, body, ends=True), checkpoint))
        return checkpoint, changes
    while True:
        if checkpoint.ended:
            after = _next_launch(all_runs, checkpoint)
            if after is None:
                return checkpoint, changes
            checkpoint = after
        runs = tuple(run for run in all_runs if run.key not in checkpoint.past)
        checkpoint = _joined(view, runs, checkpoint, cluster, changes)
        end = _end(view, view.workload, runs, checkpoint)
        if end is None:
            return checkpoint, changes
        checkpoint = replace(checkpoint, ended=True)
        changes.append((end, checkpoint))


def first_failure(runs: Collection[ContainerRun]) -> ContainerRun | None:
    """The run that failed first; one that nobody saw fail comes last. What never ran did not fail: a kubelet that is
    short of devices turns pods away."""
    return min(filter(_has_failed, runs), key=_when_failed, default=None)


def _has_failed(run: ContainerRun) -> bool:
    if not run.started:
        return False
    if run.ended is None:
        return False
    return run.ended.code != 0


def _when_failed(run: ContainerRun) -> tuple[bool, float, str]:
    assert run.ended is not None, "the caller has chosen runs that failed"
    return run.ended.code is None, run.ended.time, run.pod


def _next_launch(runs: Collection[ContainerRun], known: JobCheckpoint) -> JobCheckpoint | None:
    """None while nothing has started since the last one ended."""
    seen, started = set[str](), set[str]()
    for run in runs:
        seen.add(run.key)
        if run.started:
            started.add(run.key)
    done = {*known.past, *known.members}
    if started <= done:
        return None
    past = tuple(sorted(done & seen))
    return JobCheckpoint(known.job, known.attempt + 1, past=past, earlier_nodes=known.all_nodes)


def _joined(
    view: WorkloadView, runs: Collection[ContainerRun], known: JobCheckpoint, cluster: str, changes: Changes
) -> JobCheckpoint:
    """The launch with the runs that belong to it: all that were there before its first failure."""
    assert view.workload is not None, "the caller has looked"
    members = _members(runs, known)
    keys, started, named = set(known.members), list[ContainerRun](), set[str]()
    for run in members:
        keys.add(run.key)
        if run.started:
            started.append(run)
            named.add(run.node)
    after = replace(known, members=tuple(sorted(keys)))
    if not started:
        return after
    nodes = tuple(sorted(named - {""}))
    after = replace(after, nodes=nodes or known.nodes, started=True)
    if known.started and set(nodes) <= set(known.nodes):
        return after
    changes.append(
        (_registration(view.workload, known, members, nodes, cluster), replace(after, started=known.started))
    )
    if not known.started:
        changes.append((_start(view, view.workload, started, known), after))
    return after


def _start(
    view: WorkloadView, work: Workload, started: Collection[ContainerRun], known: JobCheckpoint
) -> LifecycleEvent:
    """started: runs of the launch that have started."""
    body: Body = {"kind": "started", "attempt": known.attempt, "time": min(run.started for run in started)}
    submitted = work.created
    if known.past:  # the workload has launched before
        submitted = min(run.created for run in started)
    if submitted:
        body["submitted"] = submitted
    if work.time_limit:
        body["time_limit"] = work.time_limit
    for pod in view.pods:
        if pod.wait_reason:
            body["reason"] = pod.wait_reason
    return LifecycleEvent(known.attempt, body)


def _members(runs: Collection[ContainerRun], known: JobCheckpoint) -> list[ContainerRun]:
    """Runs of the launch: those that are known to be, and all that were created before its first failure.

    Times are of whole seconds: one that appears within the second of the failure replaces the run that failed, unless
    an unknown launch failed within the second of its creation.
    """
    failure = first_failure(runs)
    until = _failed_at(failure) or math.inf
    if not known.started and failure and failure.created >= until:
        until += 0.5
    return [run for run in runs if run.key in known.members or run.created < until]


def _failed_at(failure: ContainerRun | None) -> float:
    """0.0 without a failure, or where nobody saw when it was."""
    if failure is None:
        return 0.0
    if failure.ended is None:
        return 0.0
    return failure.ended.time


def _end(
    view: WorkloadView, work: Workload, runs: Collection[ContainerRun], known: JobCheckpoint
) -> LifecycleEvent | None:
    """None while the launch goes on, or while its last lines are still being read."""
    if not known.started:
        return None
    members = [run for run in runs if run.key in known.members]
    failure, how = first_failure(members), work.end[0]
    since = view.now - work.ended
    if failure:
        since = view.now - _failed_at(failure)
        if not how and not _is_over(members, runs, since):
            return None
    elif not how:
        return None
    if _is_being_read(members, view, since):
        return None
    if failure is None or how == "done":
        return _end_of_workload(view, work, known)
    return _failed(failure, members, known, view.now)


def _is_over(members: Collection[ContainerRun], runs: Collection[ContainerRun], since: float) -> bool:
    """Tell whether a launch that failed has ended: the next one has begun, all of its pods have ended, or had the time
    to.

    members: runs of the launch, of ``runs``.
    since: seconds since its first failure.
    """
    if len(members) < len(runs):
        return True
    if since > ENDING_SECONDS:
        return True
    return all(run.ended for run in members)


def _is_being_read(members: Collection[ContainerRun], view: WorkloadView, since: float) -> bool:
    """Tell whether a log of the launch has lines to be sent, and there still is time for them."""
    if since > 2 * ENDING_SECONDS:
        return False
    return any(view.unread(run) for run in members if run.ended)


def _end_of_workload(view: WorkloadView, work: Workload, known: JobCheckpoint) -> LifecycleEvent:
    (how, why), code, lines = work.end, STOPPED, []
    if how == "done":
        code = 0
    elif how == "failed":
        lines.append(f"{work.word} {work.name} {how}: {why}")
    body: Body = {"kind": "exit", "attempt": known.attempt, "code": code}
    body |= {"reason": why, "time": float(work.ended or view.now)}
    return LifecycleEvent(known.attempt, body, ends=True, lines=tuple(lines))


def _failed(run: ContainerRun, members: Collection[ContainerRun], known: JobCheckpoint, now: float) -> LifecycleEvent:
    assert run.ended is not None, "the caller has chosen a run that failed"
    ended, reason = run.ended, run.ended.reason
    if reason in LOST:
        reason = "NODE_FAIL"
    kind = _kind_of_end(reason)
    body: Body = {"kind": kind, "attempt": known.attempt, "reason": reason, "time": float(ended.time or now)}
    if kind == "exit":
        if ended.signal:
            body["signal"] = ended.signal
        else:
            body["code"] = ended.code or STOPPED
    if run.node:
        body["node"] = run.node
    if run.rank >= 0:
        body["rank"] = run.rank
    lines = tuple(filter(None, map(_line, members)))
    return LifecycleEvent(known.attempt, body, ends=True, lines=lines)


def _kind_of_end(reason: str) -> str:
    if reason in PREEMPTED:
        return "preempted"
    if reason in CANCELLED:
        return "cancelled"
    return "exit"


def _line(run: ContainerRun) -> str:
    """The end of a run in the words of the cluster, where they say more than an exit code."""
    ended = run.ended
    if ended is None:
        return ""
    if ended.reason in PLAIN | CANCELLED:
        return ""
    if ended.reason in LOST:
        return f"node {run.node} NotReady: pod {run.pod} was lost with it"
    line = f"pod {run.pod} on {run.node}: terminated, reason: {ended.reason}"
    if ended.code is not None:
        line += f", exit code {ended.code}"
    if message := " ".join(ended.message.split()):
        line += f": {message}"
    return line


def _registration(
    work: Workload, known: JobCheckpoint, members: Collection[ContainerRun], nodes: tuple[str, ...], cluster: str
) -> JobRegistration:
    ranks: dict[int, str] = {}
    for run in members:
        if not run.node:
            continue
        if run.place:
            first, count = run.place
            ranks |= dict.fromkeys(range(first, first + count), run.node)
    labels = {**work.labels, "namespace": work.namespace, "kind": work.word, "uid": work.uid}
    return registration(known, cluster, work.name, nodes, ranks, labels, work.namespace)
