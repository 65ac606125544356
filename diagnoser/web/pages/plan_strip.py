"""What became of a recovery plan, as a strip of stages: decided, claimed, nodes checked, nodes out, resubmitted, runs
again."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from diagnoser.model import Attempt, Plan, PlanChange, PlanReason, PlanState, RunStatus
from diagnoser.model.taxonomy import Action
from diagnoser.recovery import trust
from diagnoser.recovery.plan_states import ACTING, CORDONS, DIAGNOSER, ENDED, RUNNABLE, why_not_decidable
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.wording.phrases import joined
from diagnoser.wording.words import ago


class StageProgress(StrEnum):
    DONE = "done"
    CURRENT = "current"
    OPEN = "open"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PlanStage:
    """detail: who did it, or what came of it. time: when it was reached, 0.0 where that is not known.

    attempt: number of the launch that it leads to, 0 for none.
    """

    label: str
    progress: StageProgress
    detail: str = ""
    time: float = 0.0
    attempt: int = 0


DECISIONS = {
    PlanState.WAITING: ("Waits for approval", StageProgress.CURRENT),
    PlanState.REFUSED: ("Refused", StageProgress.FAILED),
    PlanState.EXPIRED: ("Expired", StageProgress.FAILED),
    PlanState.SUPERSEDED: ("Replaced by a later diagnosis", StageProgress.FAILED),
    PlanState.HELD: ("Held by a guardrail", StageProgress.FAILED),
}
"""Stages of plans that nobody may carry out; for all others somebody said yes."""
MOVING = frozenset({PlanState.WAITING, PlanState.SENT, PlanState.REACHED})
"""Plans whose strip may change by itself."""


async def plan_strip(core: Core, logs: Logs, plan: Plan) -> dict[str, Any]:
    """The job and the stages of a plan as it is now, and whether they may still change by themselves. Raises
    Unavailable."""
    relaunch, status, is_over = None, None, False
    if plan.state in ACTING:
        later = [attempt for attempt in await core.store.jobs.attempts(plan.job) if attempt.key.number > plan.attempt]
        relaunch = min(later, key=lambda attempt: attempt.key.number, default=None)
    if relaunch:
        is_over = bool(relaunch.ended)
        if not is_over:
            status = (await logs.run_statuses.of({relaunch.key: relaunch.revision})).get(relaunch.key)
    stages = plan_stages(plan, relaunch, status)
    is_moving = all((stages, not is_over, plan.state in MOVING))
    return {"job": plan.job, "stages": stages, "is_moving": is_moving}


def plan_stages(plan: Plan, relaunch: Attempt | None, status: RunStatus | None) -> tuple[PlanStage, ...]:
    """The stages of a plan in order; none of one that only people can carry out.

    relaunch: the launch of the job after the one that failed. status: where it stands, None where that is not known.
    """
    if plan.action not in RUNNABLE:
        return ()
    if plan.state is PlanState.ADVISED:
        return ()
    stages = [_decision(plan)]
    if plan.state in DECISIONS:
        return tuple(stages)
    stages.append(_claim(plan))
    if plan.action is Action.CHECK_AND_RESUBMIT:
        stages.append(_check(plan))
    if plan.action in CORDONS:
        stages.append(_nodes_out(plan))
    stages += [_resubmission(plan), _relaunch(plan, relaunch, status)]
    return tuple(stages)


def _decision(plan: Plan) -> PlanStage:
    label, state = DECISIONS.get(plan.state, ("Approved", StageProgress.DONE))
    wanted = plan.state if plan.state in DECISIONS else PlanState.SENT
    change = _entry(plan, wanted)
    if change is None:
        return PlanStage(label, state)
    if (change.by, wanted) == (DIAGNOSER, PlanState.SENT):
        return PlanStage("Sent", state, "by the policy", change.time)
    _, _, comment = change.why.partition(": ")
    return PlanStage(label, state, joined([f"by {change.by}", comment], ": "), change.time)


def _claim(plan: Plan) -> PlanStage:
    if plan.lease is None:
        return PlanStage("Waits for an agent", StageProgress.CURRENT)
    claims = [change.time for change in plan.history if change.by == plan.lease.executor]
    return PlanStage("Claimed", StageProgress.DONE, plan.lease.executor, min(claims, default=0.0))


def _check(plan: Plan) -> PlanStage:
    check = plan.check
    if check is None:
        return PlanStage("Nodes checked", _open_or_skipped(plan))
    if plan.lease is None:
        return PlanStage("Nodes checked", _open_or_skipped(plan))
    if check.verdict is None:
        if plan.state in ENDED:
            return PlanStage("Nodes checked", StageProgress.FAILED, "the check did not end")
        return PlanStage("Checking nodes", StageProgress.CURRENT, f"round {check.round}, {len(check.open)} nodes open")
    found = check.verdict.reason or f"{len(check.verdict.faulty)} faulty"
    return PlanStage("Nodes checked", StageProgress.DONE, found)


def _nodes_out(plan: Plan) -> PlanStage:
    if plan.drained:
        return PlanStage("Nodes out", StageProgress.DONE, joined(plan.drained, ", "))
    if plan.state is PlanState.REACHED:
        return PlanStage("Nodes out", StageProgress.DONE, "none had to go")
    return PlanStage("Nodes out", _open_or_skipped(plan), joined(plan.nodes, ", "))


def _resubmission(plan: Plan) -> PlanStage:
    if plan.requeued:
        return PlanStage("Resubmitted", StageProgress.DONE, plan.requeued)
    if plan.state is PlanState.NOT_REACHED:
        return PlanStage("Not resubmitted", StageProgress.FAILED, plan.history[-1].why if plan.history else "")
    if plan.state is PlanState.REACHED:
        return PlanStage("Resubmitted", StageProgress.DONE)
    return PlanStage("Resubmitted", StageProgress.OPEN)


def _relaunch(plan: Plan, relaunch: Attempt | None, status: RunStatus | None) -> PlanStage:
    if relaunch is None:
        return PlanStage("Runs again", _open_or_skipped(plan))
    label, number = f"Attempt {relaunch.key.number}", relaunch.key.number
    if relaunch.ended:
        return PlanStage(label, StageProgress.DONE, "has ended", relaunch.ended, number)
    detail = "runs"
    if status and status.step is not None:
        detail = f"runs, step {status.step}"
    return PlanStage(label, StageProgress.DONE, detail, relaunch.opened, number)


def _open_or_skipped(plan: Plan) -> StageProgress:
    if plan.state is PlanState.NOT_REACHED:
        return StageProgress.FAILED
    return StageProgress.OPEN


def _entry(plan: Plan, state: PlanState) -> PlanChange | None:
    """The change by which the plan came into a state last: notes, such as of a claim, repeat the state. None where it
    was never in it."""
    entry, before = None, None
    for change in plan.history:
        if change.state is state and before is not state:
            entry = change
        before = change.state
    return entry


def why_unchanged(plan: Plan, now: float) -> str:
    """Why a press about the plan changed nothing, with who was first and when."""
    if plan.state is PlanState.WAITING:
        foreign = trust.why_not_removable(plan, plan.allocation)
        if foreign and foreign[0] is not PlanReason.UNPROVEN:
            return foreign[1]
    objection = why_not_decidable(plan, now)
    if not objection:
        return "it has changed since it was shown"
    change = _entry(plan, plan.state)
    if change is None:
        return objection
    return f"{objection} (by {change.by}, {ago(change.time, now)})"
