"""What to do next for a plan, given what the cluster looks like now. Pure.

There is no memory between two steps: what has been done already is seen in the cluster itself (the reason of a drain,
the number of launches of a job, the comment of a resubmitted one). So an executor that died is taken over by any other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnoser.agent.plan import End, Ready, Wait, checked_id, checked_type, rollback_variables
from diagnoser.agent.slurm.records import JobRecord, NodeRecord, valid_node
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action

OURS = "diagnoser "
"""How the reason of every drain of ours begins."""

RESERVED_MINUTES = 30
_VALUE = re.compile(r"[^,'\"\\\x00-\x1f\x7f]{1,1000}")
"""Of a variable of sbatch: other characters would end it early."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A plan, checked. attempt: the launch that failed. kind: type of the failure. variables: for the next launch."""

    id: str
    action: Action
    job: int
    attempt: int
    nodes: tuple[str, ...] = ()
    kind: str = "unknown"
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def reason(self) -> str:
        return f"{OURS}{self.id}: {self.kind}"

    @property
    def comment(self) -> str:
        """Marks the job that was submitted for this plan."""
        return f"{OURS}plan {self.id}"


@dataclass(frozen=True, slots=True)
class View:
    """What the cluster looks like. copy: the job that was submitted for this plan."""

    job: JobRecord | None
    copy: JobRecord | None
    nodes: Mapping[str, NodeRecord]


@dataclass(frozen=True, slots=True)
class Tried:
    """A command that has been run. code is None when it got no answer."""

    command: tuple[str, ...]
    code: int | None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Do:
    """Run this. drains: the node that it takes out."""

    command: tuple[str, ...]
    drains: str = ""


Next = Do | Wait | Ready | End


def wanted(plan: Mapping[str, Any], cluster: str, kind: str) -> Wanted:
    """Raises BadInput for a plan that this cluster cannot carry out."""
    number = job_number(cluster, plan["job"])
    return Wanted(
        id=checked_id(plan),
        action=Action(plan["action"]),
        job=number,
        attempt=int(plan["attempt"]),
        nodes=tuple(valid_node(name) for name in plan["nodes"]),
        kind=checked_type(kind),
        variables=rollback_variables(plan, _VALUE) if plan["action"] == Action.ROLLBACK_AND_RESUBMIT else (),
    )


def job_id(cluster: str, number: int) -> str:
    """What the service calls a job of this cluster."""
    return f"slurm-{cluster}-{number}"


def job_number(cluster: str, id: str) -> int:
    head, _, number = id.rpartition("-")
    if head != f"slurm-{cluster}" or not re.fullmatch(r"[1-9]\d{0,9}", number):
        raise BadInput(f"{id[:100]!r} is no job of the Slurm cluster {cluster}")
    return int(number)


def reservation(want: Wanted) -> str:
    """Name of the reservation that keeps other jobs off the nodes while they are checked."""
    return "diagnoser_" + re.sub(r"[^A-Za-z0-9_]", "_", want.id)[-60:]


def hold(want: Wanted, view: View, tried: Sequence[Tried], user: str) -> Next:
    """Get the job out of the way of a node check: requeued, and held until ``relaunch``, its nodes kept for ``user``.

    Where nodes cannot be reserved, other jobs may get them first, and the check tells so.
    """
    job = view.job
    if job is None or job.attempt < want.attempt:
        return End(False, _gone(want))
    if job.attempt > want.attempt:
        return _hold_waiting(job, tried)
    reserve = _reserve(want, job, user)
    if job.nodes and not any(one.command == reserve for one in tried):
        return Do(reserve)
    command = ("scontrol", "requeuehold", str(job.number))
    refused = _refused(tried, command)
    if refused and job.finished and not job.completing:
        return Ready()  # it is out of the way, and can only be submitted anew
    if refused:
        return End(False, f"Slurm refused to requeue the job: {refused.output}")
    return _asked(job, tried, command) or Do(command)


def drain(want: Wanted, view: View, tried: Sequence[Tried]) -> Next | None:
    """Take the plan's nodes out; None when they are. A node that is drained already is left as it is."""
    unknown = [name for name in want.nodes if name not in view.nodes]
    if unknown:
        return End(False, f"Slurm knows no node {', '.join(unknown)}; nothing was done")
    for name in want.nodes:
        command = ("scontrol", "update", f"nodename={name}", "state=drain", f"reason={want.reason}")
        refused = _refused(tried, command)
        if refused:
            return End(False, f"{name} could not be drained: {refused.output}")
        if not view.nodes[name].drained and not _did(tried, command):
            return Do(command, drains=name)
    return None


def ours(want: Wanted, view: View) -> tuple[str, ...]:
    """The plan's nodes that are out for its reason."""
    known = (view.nodes[name] for name in want.nodes if name in view.nodes)
    return tuple(node.name for node in known if node.drained and node.reason == want.reason)


def relaunch(want: Wanted, view: View, tried: Sequence[Tried], script: str) -> Next:
    """Launch the job again. script: where the stored batch script may be written, for a resubmission."""
    if view.copy is not None:
        return _after_copy(want, view.copy, view.job)
    job = view.job
    if job is None or job.attempt < want.attempt:
        return End(False, _gone(want))
    if job.attempt > want.attempt:
        return _after_requeue(want, job, tried)
    if job.state in ("COMPLETED", "CANCELLED"):
        what = "ended well" if job.state == "COMPLETED" else "was cancelled"
        return End(False, f"the job {what}; it is not launched again")
    if not job.batch:
        return End(False, "the job is no batch job: Slurm has no script to launch again")
    if want.variables:
        return _resubmit(want, job, tried, script)
    command = ("scontrol", "requeue", str(job.number))
    if _refused(tried, command) or _refused(tried, ("scontrol", "requeuehold", str(job.number))):
        return _resubmit(want, job, tried, script)
    return _asked(job, tried, command) or Do(command)


def _reserve(want: Wanted, job: JobRecord, user: str) -> tuple[str, ...]:
    """It ends by itself, should nobody be left to end it."""
    return (
        "scontrol",
        "create",
        "reservation",
        f"reservationname={reservation(want)}",
        f"nodes={','.join(job.nodes)}",
        "starttime=now",
        f"duration={RESERVED_MINUTES}",
        f"users={user}",
        "flags=ignore_jobs",
    )


def _hold_waiting(job: JobRecord, tried: Sequence[Tried]) -> Next:
    if job.state != "PENDING":
        return End(False, f"launch {job.attempt} of the job is {job.state.lower()} already; its nodes were not checked")
    command = ("scontrol", "hold", str(job.number))
    refused = _refused(tried, command)
    if refused:
        return End(False, f"Slurm refused to hold the job: {refused.output}")
    return Ready() if job.held or _did(tried, command) else Do(command)


def _asked(job: JobRecord, tried: Sequence[Tried], command: tuple[str, ...]) -> Next | None:
    """Whether there is nothing to do but wait; None when the job may be requeued."""
    if _did(tried, command):
        return Wait("Slurm requeues the job")
    if job.completing or job.state == "COMPLETING":
        return Wait("the nodes of the job are being cleaned up")
    if job.state == "PENDING":
        return End(True, "the job waits for its start already", str(job.number))
    return None


def _after_requeue(want: Wanted, job: JobRecord, tried: Sequence[Tried]) -> Next:
    if want.variables:
        return End(False, f"launch {job.attempt} exists already, without the rollback")
    command = ("scontrol", "release", str(job.number))
    if job.held and job.state == "PENDING" and want.action is Action.CHECK_AND_RESUBMIT and not _did(tried, command):
        refused = _refused(tried, command)
        return End(False, f"Slurm refused to release the job: {refused.output}") if refused else Do(command)
    by = "requeued" if any(one.command[1] in ("requeue", "requeuehold") for one in tried if one.code == 0) else "found"
    return End(True, f"launch {job.attempt} {by}: {job.state.lower()}", str(job.number))


def _after_copy(want: Wanted, copy: JobRecord, job: JobRecord | None) -> Next:
    """The copy waits for the end of the job that it replaces."""
    if job is not None and (job.runs or (job.state == "PENDING" and job.attempt >= want.attempt)):
        return Do(("scancel", str(job.number)))
    return End(True, f"submitted anew as job {copy.number}: {copy.state.lower()}", str(copy.number))


def _resubmit(want: Wanted, job: JobRecord, tried: Sequence[Tried], script: str) -> Next:
    write = ("scontrol", "write", "batch_script", str(job.number), script)
    submit = _sbatch(want, job, script)
    for command in (write, submit):
        refused = _refused(tried, command)
        if refused:
            before = [one.output for one in tried if one.code and one.command[0] == "scontrol" and one != refused]
            return End(False, "; ".join(("Slurm refused to submit the job anew", refused.output, *before)))
        if not _did(tried, command):
            return Do(command)
    return Wait("Slurm lists the new job")


def _sbatch(want: Wanted, job: JobRecord, script: str) -> tuple[str, ...]:
    """The environment of this process stays here: the new job gets the named variables and its user's own.

    What the script's own #SBATCH lines ask for holds too; these options repeat what may have come from elsewhere.
    """
    variables = [("DIAGNOSER_PLAN", want.id), *want.variables]
    options = {
        "job-name": job.name,
        "partition": job.labels.get("partition", ""),
        "account": job.labels.get("account", ""),
        "qos": job.labels.get("qos", ""),
        "nodes": str(job.node_count or ""),
        "ntasks": str(job.tasks or ""),
        "time": str(job.minutes or ""),
        "gres": job.gres.replace("gres:", ""),
        "chdir": job.folder,
        "output": job.pattern,
        "exclude": ",".join(want.nodes),
        "uid": str(job.uid) if job.uid >= 0 else "",
        "gid": str(job.gid) if job.gid >= 0 else "",
        "dependency": f"afterany:{job.number}" if not job.finished else "",
        "comment": want.comment,
        "export": ",".join(f"{name}={value}" for name, value in variables),
    }
    return (
        "sbatch",
        "--parsable",
        "--requeue",
        *(f"--{name}={value}" for name, value in options.items() if value),
        script,
    )


def _gone(want: Wanted) -> str:
    return f"Slurm knows launch {want.attempt} of job {want.job} no more"


def _did(tried: Sequence[Tried], command: tuple[str, ...]) -> bool:
    return any(one.command == command and one.code == 0 for one in tried)


def _refused(tried: Sequence[Tried], command: tuple[str, ...]) -> Tried | None:
    return next((one for one in tried if one.command == command and one.code != 0), None)
