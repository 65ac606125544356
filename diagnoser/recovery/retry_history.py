"""Retry history: earlier launches of a job family that failed in the same way, and how far each came.

A job chooses its name, its labels and what it prints, and with them its family and its fingerprint. It does not choose
its tenant or its id, which come from the scheduler and stay through a requeue: what one tenant's jobs did counts
against that tenant, and launches under one id count together whatever they call themselves.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

from diagnoser.model import Attempt, CheckpointPhase, Diagnosis, EventKind, Job, Plan, PlanState
from diagnoser.recovery.plan_states import ACTING, launched_nothing

HOUR = 3600.0
SUSPICION_SECONDS = 7 * 24 * HOUR
"""How long the suspicion of one tenant's job counts for those of others."""
STEP, CHECKPOINT, SECONDS, LINES = "step", "checkpoint", "seconds", "lines"
_NOT_SAVED = frozenset({CheckpointPhase.STAGED, CheckpointPhase.BAD})
EXACT = frozenset({STEP, CHECKPOINT})
FURTHER = 1.5
"""Elapsed time and log volume vary between launches: only this many times as much counts as progress."""

_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def family(job: Job) -> str:
    """Name the launches of one training: the label ``family``, else the job's name (or id) without its numbers."""
    if stated := job.labels.get("family"):
        return stated
    without_numbers = _DIGITS.sub("", job.name or job.id).strip(" -_.:@+=")
    return without_numbers or job.id


def fingerprint(diagnosis: Diagnosis) -> str:
    """Name the same failure alike: its type and the shape of its root line, without numbers and addresses.

    The type is that of the rules where a person's word decided: it begins no new count of launches.
    """
    shape = _DIGITS.sub("", diagnosis.root_cause.text) if diagnosis.root_cause else ""
    kind = diagnosis.precedent.before.type if diagnosis.precedent else diagnosis.type
    return hashlib.sha256(f"{kind}\0{shape}".encode("utf-8", "replace")).hexdigest()[:16]


def progress(diagnosis: Diagnosis, attempt: Attempt) -> tuple[str, float]:
    """(measure, how far the attempt came): training steps, else checkpoint events, else elapsed seconds, else lines."""
    if diagnosis.step is not None:
        return STEP, float(diagnosis.step)
    steps = []
    for event in attempt.events:
        if event.kind is not EventKind.CHECKPOINT:
            continue
        if event.phase in _NOT_SAVED:
            continue
        if event.step is not None:
            steps.append(event.step)
    if steps:
        return CHECKPOINT, float(max(steps))
    elapsed = attempt.last_seen - attempt.opened
    if elapsed > 0:
        return SECONDS, elapsed
    return LINES, float(diagnosis.compression.lines_in)


def progressed_since(now: Plan, before: Plan) -> bool:
    """Tell whether this launch came further than the one before; False when their measures of progress differ."""
    return is_further(now.progress, before.progress)


def is_further(now: tuple[str, float], before: tuple[str, float]) -> bool:
    """Tell the same of two measures of progress."""
    if now[0] != before[0]:
        return False
    if now[0] in EXACT:
        return now[1] > before[1]
    return now[1] > before[1] * FURTHER


def same_step(now: Plan, before: Plan) -> bool:
    """Tell whether both ended at the same training step."""
    if now.progress[0] != STEP:
        return False
    return now.progress == before.progress


def failures(plan: Plan, past: Iterable[Plan]) -> list[Plan]:
    """List earlier launches of the job, and of its tenant's family, that failed in the same way, oldest first."""
    alike = []
    for old in past:
        if old.fingerprint != plan.fingerprint:
            continue
        if _is_of_family(plan, old):
            alike.append(old)
    return alike


def _is_of_family(plan: Plan, old: Plan) -> bool:
    if not _counts_for(plan, old):
        return False
    if old.job == plan.job:
        return True
    return (old.tenant, old.family) == (plan.tenant, plan.family)


def launches_of_job(plan: Plan, past: Iterable[Plan]) -> list[Plan]:
    """List earlier launches under the same id, whatever they failed of, oldest first."""
    launches = []
    for old in past:
        if old.job != plan.job:
            continue
        if _counts_for(plan, old):
            launches.append(old)
    return launches


def _counts_for(plan: Plan, old: Plan) -> bool:
    """Tell whether it is about another failure than the plan, and still stands."""
    if old.state is PlanState.SUPERSEDED:
        return False
    return (old.job, old.attempt) != (plan.job, plan.attempt)


def launches_without_progress(plan: Plan, earlier: Sequence[Plan]) -> int:
    """Count how often the job was launched again after this failure without getting any further.

    A launch that died before its first step is measured by time: it hides no progress between those around it.
    """
    count, reached = 0, dict([plan.progress])
    for previous in reversed(earlier):
        measure, value = previous.progress
        if measure in reached and is_further((measure, reached[measure]), previous.progress):
            break
        count += has_launched(previous)
        reached[measure] = value
    return count


def evictions(plan: Plan, node: str, past: Iterable[Plan]) -> int:
    """Count how often this failure took this node out before, in any family."""
    count = 0
    for old in past:
        if old.fingerprint == plan.fingerprint:
            count += node in old.drained
    return count


def seen_on(plan: Plan, node: str, past: Iterable[Plan]) -> int:
    """Count how often this failure was first suspected on this node before, in any family. What another tenant's jobs
    printed counts only where something proves it."""
    count = 0
    for old in past:
        if old.fingerprint != plan.fingerprint:
            continue
        if not _counts_for(plan, old):
            continue
        if old.tenant != plan.tenant and not old.proofs:
            continue
        count += old.suspects[:1] == (node,)
    return count


def suspected_by_others(plan: Plan, past: Iterable[Plan], now: float) -> tuple[Plan, ...]:
    """List plans of the last week in which a job of another tenant has the same first suspect, oldest first. Only of
    known tenants: nobody can tell two unknown ones apart."""
    if not plan.tenant:
        return ()
    if not plan.suspects:
        return ()
    return tuple(old for old in past if _suspects_the_same(plan, old, now - SUSPICION_SECONDS))


def _suspects_the_same(plan: Plan, old: Plan, since: float) -> bool:
    """Tell whether a job of another tenant has the same first suspect as the plan, since that time."""
    if (old.cluster, old.suspects[:1]) != (plan.cluster, plan.suspects[:1]):
        return False
    if old.tenant in ("", plan.tenant):
        return False
    if old.created <= since:
        return False
    return _counts_for(plan, old)


def launches_last_hour(past: Iterable[Plan], cluster: str, now: float) -> int:
    count = 0
    for plan in past:
        if plan.cluster != cluster:
            continue
        if plan.created > now - HOUR:
            count += has_launched(plan)
    return count


def has_launched(plan: Plan) -> bool:
    """Tell whether the plan counts as a launch, also where it is not known yet or did not succeed."""
    if plan.state not in ACTING:
        return False
    return not launched_nothing(plan)
