"""Decides what to do next for a plan, given what Slurm shows now. Pure.

There is no memory between two steps: what has been done is seen in Slurm itself (the reason of a drain, the number of
launches of a job, the comment of a resubmitted one). So an agent that died is taken over by any other.
"""

import re
from dataclasses import dataclass

from diagnoser.agent.cluster import Attempts, Command, Done, Held, NextStep, Run, Wait
from diagnoser.agent.plan_spec import OURS, PLAN_VARIABLE, PlanSpec
from diagnoser.agent.slurm.parsing import JobRecord
from diagnoser.model import job_contract
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action

RESERVED_MINUTES = 30
_CLEANING = Wait("the nodes of the job are being cleaned up")


@dataclass(frozen=True, slots=True)
class SlurmState:
    """The plan's job, None when Slurm has forgotten it. copy: the job that was submitted for this plan.

    user: whom Slurm knows this process as. script: where the job's stored batch script may be written. busy: nodes on
    which other jobs run. reserved: nodes that are kept for the plan's check. next_link: the job that its user queued to
    go on where this one ends. renewals: commands for jobs that its user queued to begin once it has succeeded.
    """

    job: JobRecord | None
    copy: JobRecord | None = None
    user: str = "root"
    script: str = ""
    busy: frozenset[str] = frozenset()
    reserved: tuple[str, ...] = ()
    held: str = ""
    next_link: JobRecord | None = None
    renewals: tuple[Command, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        if self.job is None:
            return ()
        return self.job.nodes


def job_id(cluster: str, number: int) -> str:
    return f"slurm-{cluster}-{number}"


def job_number(cluster: str, id: str) -> int:
    """Raises BadInput for a job of somewhere else."""
    match = re.fullmatch(rf"slurm-{re.escape(cluster)}-([1-9]\d{{0,9}})", id)
    if match is None:
        raise BadInput(f"{id[:100]!r} is no job of the Slurm cluster {cluster}")
    return int(match[1])


def mark(spec: PlanSpec) -> str:
    """Begins the comment of the job that was submitted for this plan."""
    return f"{OURS}plan {spec.id}"


def is_copy(job: JobRecord, spec: PlanSpec) -> bool:
    """Tell whether the job was submitted for this plan: its own contract may follow the mark."""
    return job.comment.partition(" {")[0] == mark(spec)


def comment_of_copy(spec: PlanSpec, job: JobRecord) -> str:
    """Make the comment of a job that is submitted for the plan: the mark, and the contract of the job it replaces."""
    contract = job.labels.get(job_contract.LABEL)
    if not contract:
        return mark(spec)
    return f'{mark(spec)} {{"diagnoser": {contract}}}'


def reservation(spec: PlanSpec) -> str:
    """Name of the reservation that keeps other jobs off the nodes while they are checked."""
    return "diagnoser_" + re.sub(r"[^A-Za-z0-9_]", "_", spec.id)[-60:]


def loan(spec: PlanSpec, user: str) -> Command:
    """Keeps a node for the check of its return, without an end: an agent that dies must not give it back by that."""
    where = (f"reservationname={reservation(spec)}", f"nodes={','.join(spec.nodes)}")
    how = ("starttime=now", "duration=UNLIMITED", f"users={user}", "flags=maint,ignore_jobs")
    return scontrol("create", "reservation", *where, *how)


def free(spec: PlanSpec) -> Command:
    return scontrol("delete", f"reservationname={reservation(spec)}")


def scontrol(*words: str) -> Command:
    return Command(("scontrol", *words))


def running(spec: PlanSpec, state: SlurmState) -> bool:
    """Tell whether the launch that failed still runs; a copy shows that a rollback is under way."""
    job = state.job
    if job is None:
        return False
    if state.copy is not None:
        return False
    if job.attempt != spec.attempt:
        return False
    if job.completing:
        return False
    return job.runs


def hold(spec: PlanSpec, state: SlurmState, attempts: Attempts) -> NextStep:
    """Get the job out of the way of a node check: requeued, and held until ``relaunch``, its nodes kept for us, but for
    those on which other jobs run: these are neither reserved nor checked.

    Where nodes cannot be reserved, other jobs may get them first, and the check tells so.
    """
    job = state.job
    if job is None:
        return _forgotten(spec)
    if job.attempt < spec.attempt:
        return _forgotten(spec)
    if job.attempt > spec.attempt:
        return _hold_next_launch(spec, job, state, attempts)
    if why := _left_alone(job, state.next_link):
        return Done(False, why)
    if not state.busy.isdisjoint(state.reserved):  # a job began just before they were reserved
        return attempts.unless_refused(free(spec), "Slurm refused to give back nodes on which other jobs run")
    reserve = _reserve_once(spec, job, state, attempts)
    return reserve if reserve else _requeue_and_hold(spec, job, state.reserved, attempts)


def _hold_next_launch(spec: PlanSpec, job: JobRecord, state: SlurmState, attempts: Attempts) -> NextStep:
    """Hold the launch after the one that failed: the nodes can only be checked where it has not begun."""
    if job.requeueing:
        return _CLEANING
    if job.state != "PENDING":
        launch = f"launch {job.attempt} of the job is {job.state.lower()} already"
        return Done(False, f"{launch}; its nodes were not checked")
    command = scontrol("hold", job.target)
    if job.held:
        if _held_by_us(spec, job, state, attempts):
            return Held(state.reserved)
        return Done(False, f"launch {job.attempt} of the job is held by somebody else; its nodes were not checked")
    if attempts.succeeded(command):
        return Held(state.reserved)
    return attempts.unless_refused(command, "Slurm refused to hold the job")


def _held_by_us(spec: PlanSpec, job: JobRecord, state: SlurmState, attempts: Attempts) -> bool:
    """Tell whether an agent held the job for this plan: a hold of its user, or of an operator, is theirs to end. One
    that died before it reported its hold has reserved nodes."""
    if state.reserved:
        return True
    for verb in ("hold", "requeuehold"):
        hold = scontrol(verb, job.target)
        if attempts.succeeded(hold):
            return True
        if hold.line in spec.done:
            return True
    return False


def _reserve_once(spec: PlanSpec, job: JobRecord, state: SlurmState, attempts: Attempts) -> Run | None:
    """Reserve the job's nodes that no other job is on; None when that was tried, or there are none.

    A refusal is no reason to stop: the nodes are checked without a reservation then.
    """
    nodes = tuple(node for node in job.nodes if node not in state.busy)
    if not nodes:
        return None
    if state.reserved:
        return None
    reserve = _reserve(spec, job, nodes, state.user)
    return None if attempts.codes(reserve) else Run(reserve)


def _requeue_and_hold(spec: PlanSpec, job: JobRecord, reserved: tuple[str, ...], attempts: Attempts) -> NextStep:
    command = scontrol("requeuehold", job.target)
    if attempts.refusal(command) and job.is_out_of_way:
        return Held(reserved)  # it can only be submitted anew
    step = attempts.unless_refused(command, "Slurm refused to requeue the job")
    if isinstance(step, Done):
        return step
    return _wait_or_done(spec, job, attempts, command) or step


def renewal(waiting: JobRecord, job: JobRecord, copy: JobRecord | None) -> Command | None:
    """Have a job of the same user, queued with ``afterok``, wait for the new launch; None for any other job.

    Slurm does not look again at a dependency that has failed, whatever comes of a requeue, unless it is set anew.
    """
    if (waiting.state, waiting.uid) != ("PENDING", job.uid):
        return None
    launched, lost = (copy.number, r"\w+") if copy else (job.target, "failed")
    renewed, count = re.subn(rf"\bafterok:{job.target}\({lost}\)", f"afterok:{launched}", waiting.dependency)
    dependency = re.sub(r"\(\w+\)", "", renewed)
    return scontrol("update", f"jobid={waiting.number}", f"dependency={dependency}") if count else None


def _renew(state: SlurmState, attempts: Attempts, end: Done) -> NextStep:
    """Renew what waits for the job's success once it is launched; one that Slurm refuses is shown with the steps."""
    return next((Run(command) for command in state.renewals if not attempts.codes(command)), end)


def relaunch(spec: PlanSpec, state: SlurmState, attempts: Attempts) -> NextStep:
    """Launch the job again: by a requeue, or as a new job where Slurm refuses that or its variables change."""
    job = state.job
    if state.copy is not None:
        return _replace_by_copy(spec, state, state.copy, attempts)
    if job is None:
        return _forgotten(spec)
    if job.attempt < spec.attempt:
        return _forgotten(spec)
    if job.attempt > spec.attempt:
        return _after_requeue(spec, job, state, attempts)
    if why := _not_launchable(job, state.next_link):
        return Done(False, why)
    command = scontrol("requeue", job.target)
    if _needs_new_job(spec, job, attempts):
        return _resubmit(spec, job, attempts, state.script)
    return _wait_or_done(spec, job, attempts, command) or Run(command)


def _needs_new_job(spec: PlanSpec, job: JobRecord, attempts: Attempts) -> bool:
    """Tell whether a requeue is no way: the variables change, or Slurm has refused it."""
    if spec.variables:
        return True
    if attempts.refusal(scontrol("requeue", job.target)):
        return True
    return attempts.refusal(scontrol("requeuehold", job.target)) is not None


def _replace_by_copy(spec: PlanSpec, state: SlurmState, copy: JobRecord, attempts: Attempts) -> NextStep:
    """The copy waits for the end of the job that it replaces: end that one, where it runs or would run again."""
    if state.job is not None and state.job.takes_nodes(spec.attempt):
        return Run(Command(("scancel", state.job.target)))
    requeued = f"{spec.job.rpartition('-')[0]}-{copy.number}"
    return _renew(state, attempts, Done(True, f"submitted anew as job {copy.number}: {copy.state.lower()}", requeued))


def _left_alone(job: JobRecord, next_link: JobRecord | None) -> str:
    """Say why the job is neither held nor launched again; "" where it may be."""
    if job.state == "COMPLETED":
        return "the job ended well; it is not launched again"
    if job.state == "CANCELLED":
        return "the job was cancelled; it is not launched again"
    if job.is_suspended:
        return "the job is suspended; whoever did that lets it go on"
    if job.leader:
        return f"the job is a part of heterogeneous job {job.leader}, which is only launched as a whole"
    if next_link:
        return f"job {next_link.target}, which its user queued behind it, goes on in its place"
    return ""


def _not_launchable(job: JobRecord, next_link: JobRecord | None) -> str:
    """Say why the job cannot be launched again; "" where it can."""
    if why := _left_alone(job, next_link):
        return why
    if not job.batch:
        return "the job is no batch job: Slurm has no script to launch again"
    return ""


def put_back(spec: PlanSpec, state: SlurmState, attempts: Attempts) -> NextStep:
    job, not_held = state.job, Done(True, "the job is not held")
    if job is None:
        return not_held
    if not job.held:
        return not_held
    if job.requeueing:
        return _CLEANING
    if not job.waits_for_launch(spec.attempt + 1):
        return not_held
    if not _held_by_us(spec, job, state, attempts):
        return Done(True, "somebody else holds the job")
    command = scontrol("release", job.target)
    if attempts.succeeded(command):
        return Done(True, "the job is released")
    return attempts.unless_refused(command, "Slurm refused to release the job")


def _forgotten(spec: PlanSpec) -> Done:
    return Done(False, f"Slurm knows launch {spec.attempt} of job {spec.job.rpartition('-')[2]} no more")


def _reserve(spec: PlanSpec, job: JobRecord, nodes: tuple[str, ...], user: str) -> Command:
    """It expires by itself, in case no agent is left to delete it. Slurm refuses nodes on which jobs run; only the job
    itself, if it still does, is no reason to."""
    where = (f"reservationname={reservation(spec)}", f"nodes={','.join(nodes)}")
    how = ["starttime=now", f"duration={RESERVED_MINUTES}", f"users={user}"]
    if job.runs:
        how.append("flags=ignore_jobs")
    return scontrol("create", "reservation", *where, *how)


def _wait_or_done(spec: PlanSpec, job: JobRecord, attempts: Attempts, command: Command) -> NextStep | None:
    """None when the job may be requeued now."""
    if attempts.succeeded(command):
        return Wait("Slurm requeues the job")
    if job.completing:
        return _CLEANING
    if job.state == "COMPLETING":
        return _CLEANING
    if job.state == "PENDING":
        return Done(True, "the job waits for its start already", spec.job)
    return None


def _after_requeue(spec: PlanSpec, job: JobRecord, state: SlurmState, attempts: Attempts) -> NextStep:
    if spec.variables:
        return Done(False, f"launch {job.attempt} exists already, without the rollback")
    if job.requeueing:
        return _CLEANING
    command = scontrol("release", job.target)
    is_ours = _is_still_held(spec, job) and _held_by_us(spec, job, state, attempts)
    if is_ours and not attempts.succeeded(command):
        return attempts.unless_refused(command, "Slurm refused to release the job")
    if job.state == "CANCELLED":
        return Done(False, f"launch {job.attempt} was cancelled")
    verbs = {attempt.command.words[1] for attempt in attempts if attempt.code == 0}
    how = "found" if verbs.isdisjoint({"requeue", "requeuehold"}) else "requeued"
    return _renew(state, attempts, Done(True, f"launch {job.attempt} {how}: {job.state.lower()}", spec.job))


def _is_still_held(spec: PlanSpec, job: JobRecord) -> bool:
    """Tell whether the job waits, held, after the check of its nodes."""
    if spec.action is not Action.CHECK_AND_RESUBMIT:
        return False
    if not job.held:
        return False
    return job.state == "PENDING"


def _resubmit(spec: PlanSpec, job: JobRecord, attempts: Attempts, script: str) -> NextStep:
    for command in (scontrol("write", "batch_script", job.target, script), _sbatch(spec, job, script)):
        refused = attempts.refusal(command)
        if refused:
            failed = [attempt for attempt in attempts if attempt.code]
            earlier = [attempt.output for attempt in failed if attempt != refused]
            return Done(False, "; ".join(("Slurm refused to submit the job anew", refused.output, *earlier)))
        if not attempts.succeeded(command):
            return Run(command)
    return Wait("Slurm lists the new job")


def _sbatch(spec: PlanSpec, job: JobRecord, script: str) -> Command:
    """The environment of this process stays here: the new job gets the named variables and its user's own.

    What the script's own #SBATCH lines ask for holds too; these options repeat what may have come from elsewhere.
    """
    variables = {PLAN_VARIABLE: spec.id, **dict(spec.variables)}
    options: dict[str, object] = {
        "job-name": job.name,
        "partition": job.labels.get("partition", ""),
        "account": job.labels.get("account", ""),
        "qos": job.labels.get("qos", ""),
        "nodes": job.node_count,
        "ntasks": job.tasks,
        "time": job.minutes,
        "gres": job.gres.replace("gres:", ""),
        "chdir": job.folder,
        "output": job.pattern,
        "exclude": ",".join(spec.nodes),
        "uid": "",
        "gid": "",
        "dependency": "",
        "comment": comment_of_copy(spec, job),
        "export": ",".join(f"{name}={value}" for name, value in variables.items()),
    }
    for name, owner in (("uid", job.uid), ("gid", job.gid)):
        if owner >= 0:
            options[name] = str(owner)
    if not job.finished:
        options["dependency"] = f"afterany:{job.target}"
    if job.array:
        options["array"] = str(job.task)
    words = [f"--{name}={value}" for name, value in options.items() if value]
    return Command(("sbatch", "--parsable", "--requeue", *words, script, *job.arguments))
