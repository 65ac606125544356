"""What to do next for a plan, given what Slurm shows now. Pure.

There is no memory between two steps: what has been done is seen in Slurm itself (the reason of a drain, the number of
launches of a job, the comment of a resubmitted one). So an agent that died is taken over by any other.
"""

import re
from dataclasses import dataclass

from diagnoser.agent.cluster import Attempts, Command, Done, Held, NextStep, Run, Wait
from diagnoser.agent.plan_spec import OURS, PLAN_VARIABLE, PlanSpec
from diagnoser.agent.slurm.parsing import JobRecord
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action

RESERVED_MINUTES = 30


@dataclass(frozen=True, slots=True)
class SlurmState:
    """The plan's job, None when Slurm has forgotten it. copy: the job that was submitted for this plan.

    user: whom Slurm knows this process as. script: where the job's stored batch script may be written. busy: nodes on
    which other jobs run. reserved: nodes that are kept for the plan's check.
    """

    job: JobRecord | None
    copy: JobRecord | None = None
    user: str = "root"
    script: str = ""
    busy: frozenset[str] = frozenset()
    reserved: tuple[str, ...] = ()
    held: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.job.nodes if self.job else ()


def job_id(cluster: str, number: int) -> str:
    """What the service calls a job of this cluster."""
    return f"slurm-{cluster}-{number}"


def job_number(cluster: str, id: str) -> int:
    """Raises BadInput for a job of somewhere else."""
    head, _, number = id.rpartition("-")
    if head != f"slurm-{cluster}" or not re.fullmatch(r"[1-9]\d{0,9}", number):
        raise BadInput(f"{id[:100]!r} is no job of the Slurm cluster {cluster}")
    return int(number)


def comment(spec: PlanSpec) -> str:
    """Marks the job that was submitted for this plan."""
    return f"{OURS}plan {spec.id}"


def reservation(spec: PlanSpec) -> str:
    """Name of the reservation that keeps other jobs off the nodes while they are checked."""
    return "diagnoser_" + re.sub(r"[^A-Za-z0-9_]", "_", spec.id)[-60:]


def free(spec: PlanSpec) -> Command:
    """Ends the reservation."""
    return scontrol("delete", f"reservationname={reservation(spec)}")


def scontrol(*words: str) -> Command:
    return Command(("scontrol", *words))


def running(spec: PlanSpec, state: SlurmState) -> bool:
    """Whether the launch that failed still runs; a copy shows that a rollback is under way."""
    job = state.job
    if job is None or state.copy is not None or job.attempt != spec.attempt:
        return False
    return job.runs and not job.completing


def hold(spec: PlanSpec, state: SlurmState, attempts: Attempts) -> NextStep:
    """Get the job out of the way of a node check: requeued, and held until ``relaunch``, its nodes kept for us, but for
    those on which other jobs run: these are neither reserved nor checked.

    Where nodes cannot be reserved, other jobs may get them first, and the check tells so.
    """
    job = state.job
    if job is None or job.attempt < spec.attempt:
        return _forgotten(spec)
    number = str(job.number)
    if job.attempt > spec.attempt and job.requeueing:
        return Wait("the nodes of the job are being cleaned up")
    if job.attempt > spec.attempt and job.state != "PENDING":
        launch = f"launch {job.attempt} of the job is {job.state.lower()} already"
        return Done(False, f"{launch}; its nodes were not checked")
    if job.attempt > spec.attempt:
        command = scontrol("hold", number)
        if job.held or attempts.succeeded(command):
            return Held(state.reserved)
        return attempts.unless_refused(command, "Slurm refused to hold the job")
    if not state.busy.isdisjoint(state.reserved):  # a job began just before they were reserved
        delete = free(spec)
        return attempts.unless_refused(delete, "Slurm refused to give back nodes on which other jobs run")
    kept = tuple(node for node in job.nodes if node not in state.busy)
    reserve = _reserve(spec, job, kept, state.user)
    if kept and not state.reserved and not any(attempt.command == reserve for attempt in attempts):
        return Run(reserve)
    command = scontrol("requeuehold", number)
    if attempts.refusal(command) and job.finished and not job.completing:
        return Held(state.reserved)  # it is out of the way, and can only be submitted anew
    step = attempts.unless_refused(command, "Slurm refused to requeue the job")
    return step if isinstance(step, Done) else _wait_or_done(spec, job, attempts, command) or step


def relaunch(spec: PlanSpec, state: SlurmState, attempts: Attempts) -> NextStep:
    """Launch the job again."""
    job, copy = state.job, state.copy
    if copy is not None:  # it waits for the end of the job that it replaces
        if job is not None and (job.runs or (job.state == "PENDING" and job.attempt >= spec.attempt)):
            return Run(Command(("scancel", str(job.number))))
        requeued = f"{spec.job.rpartition('-')[0]}-{copy.number}"
        return Done(True, f"submitted anew as job {copy.number}: {copy.state.lower()}", requeued)
    if job is None or job.attempt < spec.attempt:
        return _forgotten(spec)
    if job.attempt > spec.attempt:
        return _after_requeue(spec, job, attempts)
    if job.state in ("COMPLETED", "CANCELLED"):
        end = "ended well" if job.state == "COMPLETED" else "was cancelled"
        return Done(False, f"the job {end}; it is not launched again")
    if not job.batch:
        return Done(False, "the job is no batch job: Slurm has no script to launch again")
    command = scontrol("requeue", str(job.number))
    hold_command = scontrol("requeuehold", str(job.number))
    if spec.variables or attempts.refusal(command) or attempts.refusal(hold_command):
        return _resubmit(spec, job, attempts, state.script)
    return _wait_or_done(spec, job, attempts, command) or Run(command)


def put_back(spec: PlanSpec, state: SlurmState, attempts: Attempts) -> NextStep:
    job = state.job
    if job is not None and job.held and job.requeueing:
        return Wait("the nodes of the job are being cleaned up")
    if job is None or not job.held or job.state != "PENDING" or job.attempt <= spec.attempt:
        return Done(True, "the job is not held")
    command = scontrol("release", str(job.number))
    if attempts.succeeded(command):
        return Done(True, "the job is released")
    return attempts.unless_refused(command, "Slurm refused to release the job")


def _forgotten(spec: PlanSpec) -> Done:
    return Done(False, f"Slurm knows launch {spec.attempt} of job {spec.job.rpartition('-')[2]} no more")


def _reserve(spec: PlanSpec, job: JobRecord, nodes: tuple[str, ...], user: str) -> Command:
    """It expires by itself, in case no agent is left to delete it. Slurm refuses nodes on which jobs run; only the job
    itself, if it still does, is no reason to."""
    where = (f"reservationname={reservation(spec)}", f"nodes={','.join(nodes)}")
    how = ("starttime=now", f"duration={RESERVED_MINUTES}", f"users={user}")
    return scontrol("create", "reservation", *where, *how, *(("flags=ignore_jobs",) if job.runs else ()))


def _wait_or_done(spec: PlanSpec, job: JobRecord, attempts: Attempts, command: Command) -> NextStep | None:
    """None when the job may be requeued now."""
    if attempts.succeeded(command):
        return Wait("Slurm requeues the job")
    if job.completing or job.state == "COMPLETING":
        return Wait("the nodes of the job are being cleaned up")
    if job.state == "PENDING":
        return Done(True, "the job waits for its start already", spec.job)
    return None


def _after_requeue(spec: PlanSpec, job: JobRecord, attempts: Attempts) -> NextStep:
    if spec.variables:
        return Done(False, f"launch {job.attempt} exists already, without the rollback")
    if job.requeueing:
        return Wait("the nodes of the job are being cleaned up")
    command = scontrol("release", str(job.number))
    was_held = job.held and job.state == "PENDING" and spec.action is Action.CHECK_AND_RESUBMIT
    if was_held and not attempts.succeeded(command):
        return attempts.unless_refused(command, "Slurm refused to release the job")
    ours = any(attempt.code == 0 and attempt.command.words[1] in ("requeue", "requeuehold") for attempt in attempts)
    how = "requeued" if ours else "found"
    return Done(True, f"launch {job.attempt} {how}: {job.state.lower()}", spec.job)


def _resubmit(spec: PlanSpec, job: JobRecord, attempts: Attempts, script: str) -> NextStep:
    for command in (scontrol("write", "batch_script", str(job.number), script), _sbatch(spec, job, script)):
        refused = attempts.refusal(command)
        if refused:
            earlier = [attempt.output for attempt in attempts if attempt.code and attempt != refused]
            return Done(False, "; ".join(("Slurm refused to submit the job anew", refused.output, *earlier)))
        if not attempts.succeeded(command):
            return Run(command)
    return Wait("Slurm lists the new job")


def _sbatch(spec: PlanSpec, job: JobRecord, script: str) -> Command:
    """The environment of this process stays here: the new job gets the named variables and its user's own.

    What the script's own #SBATCH lines ask for holds too; these options repeat what may have come from elsewhere.
    """
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
        "exclude": ",".join(spec.nodes),
        "uid": str(job.uid) if job.uid >= 0 else "",
        "gid": str(job.gid) if job.gid >= 0 else "",
        "dependency": f"afterany:{job.number}" if not job.finished else "",
        "comment": comment(spec),
        "export": ",".join(f"{name}={value}" for name, value in ((PLAN_VARIABLE, spec.id), *spec.variables)),
    }
    arguments = [f"--{name}={value}" for name, value in options.items() if value]
    return Command(("sbatch", "--parsable", "--requeue", *arguments, script))
