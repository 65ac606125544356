"""The life of one plan: who may change it, when, and what it becomes. Pure; the store runs it under the plan's lock."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnoser.model import Plan, PlanChange, PlanLease, PlanReason, PlanState, ProofKind, Step
from diagnoser.model.errors import Conflict
from diagnoser.model.taxonomy import Action

DIAGNOSER = "diagnoser"
RUNNABLE = frozenset(
    {Action.CORDON_AND_RESUBMIT, Action.CHECK_AND_RESUBMIT, Action.RESUBMIT, Action.ROLLBACK_AND_RESUBMIT}
)
"""Actions that an executor carries out; the others are for people."""
CORDONS = frozenset({Action.CORDON_AND_RESUBMIT, Action.CHECK_AND_RESUBMIT})
"""Actions that may take nodes out."""
ENDED = frozenset({PlanState.REACHED, PlanState.NOT_REACHED})
ACTING = ENDED | {PlanState.SENT}
OPEN = frozenset({PlanState.ADVISED, PlanState.WAITING})
STEPS_LIMIT = 1000
OUTPUT_LENGTH = 4000

_TOO_LATE = {
    PlanState.SENT: "it has been sent already",
    PlanState.REACHED: "it has been carried out",
    PlanState.NOT_REACHED: "it has been tried, and was not reached",
    PlanState.REFUSED: "it has been refused",
    PlanState.EXPIRED: "it has expired",
    PlanState.SUPERSEDED: "a later diagnosis took its place",
    PlanState.HELD: "a guardrail holds it",
    PlanState.ADVISED: "it is advice only",
}


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Report of an executor. state: SENT while it is at work, else how it ended. refused: why it would not act."""

    token: str
    state: PlanState
    steps: tuple[Step, ...] = ()
    detail: str = ""
    drained: tuple[str, ...] = ()
    requeued: str = ""
    refused: PlanReason | None = None


def with_state(plan: Plan, state: PlanState, reason: PlanReason, *, by: str, why: str, now: float) -> Plan:
    return replace(plan, state=state, reason=reason.value, history=(*plan.history, PlanChange(now, state, by, why)))


def with_note(plan: Plan, *, by: str, why: str, now: float) -> Plan:
    """The plan with a note in its history; its state stays."""
    return replace(plan, history=(*plan.history, PlanChange(now, plan.state, by, why)))


def commented(decision: str, comment: str) -> str:
    """Quote a person's decision as the history does."""
    return f"{decision}: {comment}" if comment else decision


def approve(plan: Plan, *, by: str, comment: str, now: float, life: float) -> Plan:
    """A person says yes: the plan may be claimed for ``life`` more seconds. Raises Conflict when it is too late."""
    _check_waiting(plan, now)
    sent = with_state(plan, PlanState.SENT, PlanReason.APPROVED, by=by, why=commented("approved", comment), now=now)
    return replace(sent, expires=max(plan.expires, now + life), lease=None)


def refuse(plan: Plan, *, by: str, comment: str, now: float) -> Plan:
    """Raises Conflict when it is too late."""
    _check_waiting(plan, now)
    why = commented("refused", comment)
    return with_state(plan, PlanState.REFUSED, PlanReason.REFUSED, by=by, why=why, now=now)


def revoke_decision(plan: Plan, *, by: str, comment: str, now: float) -> Plan:
    """Take back a person's approval or refusal that nothing has come of: the plan waits again, and what the approval
    vouched for is unproven again. Raises Conflict when it is too late."""
    if objection := why_not_revocable(plan, now):
        raise Conflict(f"plan {plan.id} cannot be taken back: {objection}")
    decision = "approval" if plan.state is PlanState.SENT else "refusal"
    why = commented(f"{decision} taken back", comment)
    waits = with_state(plan, PlanState.WAITING, PlanReason.TAKEN_BACK, by=by, why=why, now=now)
    return replace(waits, proofs=tuple(proof for proof in plan.proofs if proof.kind is not ProofKind.PERSON))


def why_not_revocable(plan: Plan, now: float) -> str:
    """Say why a person's decision about the plan cannot be taken back any more; "" when it can."""
    if plan.state not in (PlanState.SENT, PlanState.REFUSED):
        return _state(plan)
    if plan.expires <= now:
        return "its time is over"
    if plan.lease:
        return _state(plan)
    if plan.state is PlanState.SENT and plan.reason != PlanReason.APPROVED:
        return "no person decided about it"
    return ""


def why_not_decidable(plan: Plan, now: float) -> str:
    """Say why a person can neither approve nor refuse the plan (any more); "" when both are possible."""
    if plan.state is not PlanState.WAITING:
        return _state(plan)
    if plan.expires <= now:
        return "its time is over"
    return ""


def was_refused(plan: Plan) -> bool:
    """Tell whether a person refused the plan at some time, also where the refusal was taken back later."""
    return any(change.state is PlanState.REFUSED for change in plan.history)


def launched_nothing(plan: Plan) -> bool:
    """Tell whether the plan ended before its first command for a reason that passes: its checkpoint is bad, or its job
    still runs. A later verdict of the same attempt may then plan again."""
    if plan.steps:
        return False
    if plan.requeued:
        return False
    if plan.state not in (PlanState.HELD, PlanState.NOT_REACHED):
        return False
    return plan.reason in (PlanReason.BAD_CHECKPOINT, PlanReason.STILL_RUNNING)


def claimable(plan: Plan, now: float) -> bool:
    """Tell whether an executor may claim the plan, or take it over."""
    if plan.state is not PlanState.SENT:
        return False
    if plan.is_leased(now):
        return False
    if plan.action not in RUNNABLE:
        return False
    return plan.not_before <= now < plan.expires


def claim(plan: Plan, *, executor: str, token: str, until: float, now: float) -> Plan:
    """Raises Conflict when another executor was first."""
    if not claimable(plan, now):
        raise Conflict(f"plan {plan.id} cannot be claimed: {_state(plan)}")
    why = f"taken over from {plan.lease.executor}, whose lease ran out" if plan.lease else "claimed"
    return replace(with_note(plan, by=executor, why=why, now=now), lease=PlanLease(executor, token, until))


def check_token(plan: Plan, token: str) -> PlanLease:
    """Return the lease that the token is for. Raises Conflict for any other token."""
    if plan.lease is None or not hmac.compare_digest(plan.lease.token.encode(), token.encode()):
        raise Conflict(f"this token does not hold plan {plan.id} (any more): {_state(plan)}; stop and change nothing")
    return plan.lease


def progress(plan: Plan, report: PlanReport, until: float) -> Plan:
    """Add what an executor did so far, and renew its lease. The caller has checked the token.

    Raises Conflict when the plan is over.
    """
    if plan.state is not PlanState.SENT or plan.lease is None:
        raise Conflict(f"plan {plan.id} is over: {_state(plan)}; stop and change nothing")
    return replace(_with_report(plan, report), lease=replace(plan.lease, until=until))


def end(plan: Plan, report: PlanReport, now: float) -> Plan:
    """End the plan as its executor reports. The same report again changes nothing; another one raises Conflict."""
    assert plan.lease is not None, "the caller has checked the token"
    if plan.state is report.state:
        return plan
    if plan.state not in (PlanState.SENT, PlanState.EXPIRED):
        raise Conflict(f"plan {plan.id} is over: {_state(plan)}")
    reason = report.refused
    if reason is None:
        reason = PlanReason.REACHED if report.state is PlanState.REACHED else PlanReason.NOT_REACHED
    why = report.detail or reason.value.replace("_", " ")
    return with_state(_with_report(plan, report), report.state, reason, by=plan.lease.executor, why=why, now=now)


def expired(plan: Plan, now: float) -> bool:
    """Tell whether the plan's time is over and no executor works on it."""
    if plan.expires > now:
        return False
    if plan.is_leased(now):
        return False
    if plan.state is PlanState.SENT:
        return plan.action in RUNNABLE
    return plan.state is PlanState.WAITING


def expire(plan: Plan, now: float) -> Plan:
    why = "its time was over before anybody took it up"
    if plan.state is PlanState.WAITING:
        why = "nobody approved it in time"
    elif plan.lease:
        why = f"its time was over after {len(plan.steps)} steps of {plan.lease.executor}"
    return with_state(plan, PlanState.EXPIRED, PlanReason.EXPIRED, by=DIAGNOSER, why=why, now=now)


def _check_waiting(plan: Plan, now: float) -> None:
    if plan.state is not PlanState.WAITING:
        raise Conflict(f"plan {plan.id} waits for nobody: {_TOO_LATE[plan.state]}")
    if plan.expires <= now:
        raise Conflict(f"plan {plan.id} expired; diagnose or resubmit anew")


def _with_report(plan: Plan, report: PlanReport) -> Plan:
    return replace(
        plan,
        steps=_appended(plan.steps, report.steps)[:STEPS_LIMIT],
        drained=tuple(dict.fromkeys((*plan.drained, *report.drained))),
        requeued=report.requeued or plan.requeued,
    )


def _appended(steps: tuple[Step, ...], reported: Sequence[Step]) -> tuple[Step, ...]:
    """Add the new steps of a report that may repeat earlier ones: skip its longest beginning that equals the end of
    the stored steps."""
    trimmed = tuple(replace(step, output=step.output[:OUTPUT_LENGTH]) for step in reported)
    for size in range(min(len(steps), len(trimmed)), 0, -1):
        if steps[-size:] == trimmed[:size]:
            return steps + trimmed[size:]
    return steps + trimmed


def _state(plan: Plan) -> str:
    if plan.state is PlanState.SENT and plan.lease:
        return f"{plan.lease.executor} holds it"
    return _TOO_LATE.get(plan.state, plan.state.value.replace("_", " "))
