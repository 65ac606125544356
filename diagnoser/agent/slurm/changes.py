"""Finds what is new about a job since the last look. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from diagnoser.agent.changes import STOPPED, Body, Changes, JobRegistration, LifecycleEvent, registration
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.slurm.parsing import GONE, JobRecord, rank_map
from diagnoser.agent.state_file import AgentState, JobCheckpoint, LogOffset

CODED = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
"""States whose exit code is the batch script's own; a job that was stopped may show a code of 0."""

SKEW_SECONDS = 5.0
"""Slurm's times are whole seconds of another clock: what ended shortly before the last look may not have been in it."""


def concerns(job: JobRecord, known: bool, since: float) -> bool:
    """Tell whether to look at the job: it runs, it is known, or it began and ended since the last look."""
    if known:
        return True
    if job.runs:
        return True
    if not job.finished:
        return False
    if not job.started:
        return False
    return job.ended >= since - SKEW_SECONDS


def diff(
    job: JobRecord, nodes: Mapping[str, NodeRecord], before: JobCheckpoint, cluster: str
) -> tuple[JobCheckpoint, Changes]:
    """Return the job's new checkpoint, and what to report."""
    changes: Changes = []
    checkpoint = before
    if checkpoint.attempt < job.attempt:
        if checkpoint.is_open:
            checkpoint = replace(checkpoint, ended=True)
            changes.append((_unseen_end(checkpoint, nodes), checkpoint))
        checkpoint = JobCheckpoint(checkpoint.job, job.attempt, earlier_nodes=checkpoint.all_nodes)
    if not checkpoint.started and job.has_begun:
        changes.append((_registration(job, cluster, checkpoint), checkpoint))
        checkpoint = replace(checkpoint, started=True, nodes=job.nodes, output=job.output, uid=job.uid)
        changes.append((_start(job), checkpoint))
    if not checkpoint.is_open:
        return checkpoint, changes
    if job.finished:
        checkpoint = replace(checkpoint, ended=True)
        changes.append((_end(job, nodes), checkpoint))
    elif checkpoint.suspended is not job.is_suspended:
        checkpoint = replace(checkpoint, suspended=job.is_suspended)
        kind = "suspended" if job.is_suspended else "resumed"
        changes.append((LifecycleEvent(job.attempt, {"kind": kind, "attempt": job.attempt}), checkpoint))
    return checkpoint, changes


def forgotten(known: JobCheckpoint, accounted: JobRecord) -> JobRecord:
    """Make the record of a job that the controller has forgotten. accounted: what the accounting says of its end."""
    return replace(accounted, restarts=known.attempt - 1, nodes=known.nodes, output=known.output, uid=known.uid)


def wait_reasons(jobs: Mapping[str, JobRecord], before: Mapping[str, str]) -> dict[str, str]:
    """Find why each job waits, or last waited for its present launch: Slurm forgets that when the job starts.

    before: the same of the last look.
    """
    reasons = {}
    for key, job in jobs.items():
        if job.state == "PENDING":
            reason = job.wait_reason or before.get(key, "")
        else:
            reason = "" if job.finished else before.get(key, "")
        if reason:
            reasons[key] = reason
    return reasons


def keep_logs(jobs: Mapping[str, JobRecord], state: AgentState) -> None:
    """Drop what is known of logs that no job has any more. An older version knew logs by their job, not by their file:
    those are known by their file from now on."""
    for key in state.logs.keys() & jobs.keys():
        state.logs[jobs[key].log_key] = replace(state.logs.pop(key), job=int(key))
    files = {job.log_key for job in jobs.values()}
    state.logs = {key: read for key, read in state.logs.items() if key in files or str(read.job) in jobs}


def share_logs(jobs: Mapping[str, JobRecord], state: AgentState) -> dict[str, JobRecord]:
    """Name one job for each log that several write to, such as the tasks of an array: nobody can tell whose a line is.

    A launch whose end was not reported goes before one that has ended; then the job whose lines were read last, which
    keeps the log to its end; then the one that began first.
    """

    def precedence(key: str) -> tuple[bool, bool, float, int]:
        job, is_over = jobs[key], key in state.jobs and not state.jobs[key].is_open
        reader = state.logs.get(job.log_key, LogOffset()).job
        return is_over, reader != job.number, job.started, job.number

    first: dict[str, int] = {}
    shared = dict(jobs)
    for key in sorted(jobs, key=precedence):
        job = jobs[key]
        owner = first.setdefault(job.log_key, job.number)
        if job.output and owner != job.number:
            shared[key] = replace(job, log_of=owner)
    return shared


def _start(job: JobRecord) -> LifecycleEvent:
    body: Body = {"kind": "started", "attempt": job.attempt, **_time(job.started)}
    if 0 < job.submitted <= job.started:
        body["submitted"] = job.submitted
    if job.wait_reason:
        body["reason"] = job.wait_reason
    if job.minutes:
        body["time_limit"] = job.minutes * 60
    return LifecycleEvent(job.attempt, body)


def _registration(job: JobRecord, cluster: str, known: JobCheckpoint) -> JobRegistration:
    gpus = job.gpus_per_node * len(job.nodes)
    labels = {"slurm_job": str(job.number), "user": job.user, "gpus": str(gpus or ""), **job.labels}
    if job.log_of:
        labels["log_shared_with"] = f"job {job.log_of}"
    return registration(known, cluster, job.name, job.nodes, rank_map(job), labels, job.tenant)


def _unseen_end(known: JobCheckpoint, nodes: Mapping[str, NodeRecord]) -> LifecycleEvent:
    down = _down(known.nodes, nodes)
    body: Body = {"kind": "cancelled", "attempt": known.attempt, "reason": "REQUEUED"}
    if down:
        body |= {"kind": "exit", "code": STOPPED, "reason": "NODE_FAIL", "node": down[0].name}
    return _end_event(known.attempt, body, down)


def _end_event(attempt: int, body: Body, down: Iterable[NodeRecord]) -> LifecycleEvent:
    """Make the event of a launch's end, with the scheduler's lines about its nodes that are down."""
    return LifecycleEvent(attempt, body, ends=True, lines=tuple(node.record for node in down))


def _end(job: JobRecord, nodes: Mapping[str, NodeRecord]) -> LifecycleEvent:
    kind = {"CANCELLED": "cancelled", "PREEMPTED": "preempted"}.get(job.state, "exit")
    body: Body = {"kind": kind, "attempt": job.attempt, "reason": job.state, **_time(job.ended)}
    if kind == "exit":
        body |= _signal_or_code(job)
    down = _down(job.nodes, nodes)
    if down and job.state == "NODE_FAIL":
        body["node"] = down[0].name
    return _end_event(job.attempt, body, down)


def _signal_or_code(job: JobRecord) -> dict[str, int]:
    """Give the signal or the exit code; nothing where neither is known."""
    if job.signal:
        return {"signal": job.signal}
    if job.state == GONE:
        return {}
    if job.state in CODED:
        return {"code": job.code}
    return {"code": job.code or STOPPED}


def _down(names: tuple[str, ...], nodes: Mapping[str, NodeRecord]) -> list[NodeRecord]:
    down = []
    for name in names:
        node = nodes.get(name)
        if node and not node.up:
            down.append(node)
    return down


def _time(seconds: float) -> dict[str, float]:
    return {"time": seconds} if seconds else {}
