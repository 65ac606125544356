"""Runs the commands of people and executors on stored plans."""

import secrets
from dataclasses import dataclass
from functools import partial

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.localize.checkpoints import why_bad
from diagnoser.model import AttemptKey, Plan, PlanReason, PlanState, TransitionResult
from diagnoser.model.plans import PlanTransition, PlanUpdate
from diagnoser.model.queries import PlanFilter
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace, TraceStep, untraced
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import WakeSignal
from diagnoser.recovery.plan_states import ENDED, OPEN

EVERY_ATTEMPT = (1 << 31) - 1
PLANS_CHECKED = 20
"""Of a job, the newest first: a plan lives an hour."""


@dataclass(frozen=True, slots=True)
class PlanService:
    """outbox: notified when there may be a message to send."""

    store: SqlStore
    commands: PlanCommands
    metrics: Metrics
    outbox: WakeSignal
    trace: Trace = untraced

    async def claim(self, executor: str, cluster: str, now: float) -> Plan | None:
        """Claim the oldest plan of the cluster that may be carried out; None when there is none. Plans that the gate
        refuses on the way are counted."""
        while True:
            token = secrets.token_urlsafe(24)
            claim = partial(self.commands.claim, executor=executor, token=token, now=now)
            result = await self.store.plans.claim(cluster, now, claim)
            if result is None or result.plan is None:
                return None
            if result.plan.state is not PlanState.SENT:  # the gate stopped it
                self._observe(result, now)
                continue
            plan = await self._hold_if_progressed(result.plan, now)
            plan = await self._hold_if_completed(plan, now)
            plan = await self.check_rollback(plan, now, unused_token=token)
            if plan.state is PlanState.SENT and plan.lease:
                return plan

    async def change(self, id: str, now: float, update: PlanUpdate) -> Plan:
        """Update a stored plan, count what was decided, and let it be sent. Raises NotFound, Conflict."""
        return await self._follow(await self.store.plans.change(id, update), now)

    async def decide(self, id: str, now: float, transition: PlanTransition) -> Plan:
        """As ``change``, by what happened on the plan's cluster."""
        return await self._follow(await self.store.plans.decide(id, now, transition), now)

    async def _follow(self, result: TransitionResult, now: float) -> Plan:
        assert result.plan is not None, "a transition of a stored plan keeps it"
        self._observe(result, now)
        if PlanReason.BAD_CHECKPOINT in result.reasons and result.plan.state is not PlanState.SENT:
            await self.store.jobs.diagnose_again(AttemptKey(result.plan.job, result.plan.attempt), now)
        return result.plan

    def _observe(self, result: TransitionResult, now: float) -> None:
        self.metrics.observe_transition(result)
        self.outbox.notify()
        trace_transition(self.trace, result, now)

    async def _hold_if_completed(self, plan: Plan, now: float) -> Plan:
        """Hold the plan that was just claimed if a later attempt of its job has completed."""
        completed = await self.store.plans.completed_attempt(AttemptKey(plan.job, plan.attempt))
        if not completed:
            return plan
        return await self.change(plan.id, now, partial(self.commands.hold_completed, completed=completed, now=now))

    async def _hold_if_progressed(self, plan: Plan, now: float) -> Plan:
        """Hold the plan that was just claimed if the run that it would end has printed since it was looked at."""
        if plan.look is None:
            return plan
        attempt = await self.store.jobs.attempt(AttemptKey(plan.job, plan.attempt))
        if attempt and attempt.ended is None and attempt.last_line != plan.look.last_line:
            return await self.change(plan.id, now, partial(self.commands.hold_progressed, now=now))
        return plan

    async def check_rollback(self, plan: Plan, now: float, unused_token: str = "") -> Plan:
        """Stop the plan if its checkpoint was reported bad. Returns the plan as it stands then.

        Whoever stores a plan, or such a report, calls this afterwards: at least one of the two sees both.
        unused_token: as of ``PlanCommands.hold_bad_checkpoint``.
        """
        back = plan.rollback
        if back is None:
            return plan
        if not back.checkpoint:
            return plan
        if plan.state not in (*OPEN, PlanState.SENT):
            return plan
        attempts = await self.store.jobs.checkpoint_events(AttemptKey(plan.job, EVERY_ATTEMPT))
        why = why_bad(back.checkpoint, back.step, attempts)
        if not why:
            return plan
        withdraw = partial(self.commands.hold_bad_checkpoint, why=why, now=now, unused_token=unused_token)
        return await self.change(plan.id, now, withdraw)

    async def check_rollbacks(self, job: str, now: float) -> None:
        """Stop the plans of a job whose checkpoint was reported bad."""
        for plan in await self.store.plans.page(PlanFilter(job=job), "", PLANS_CHECKED):
            await self.check_rollback(plan, now)


def trace_transition(trace: Trace, result: TransitionResult, since: float) -> None:
    """Trace what was decided about a plan, where that is news; and how an executor fared with it, when that is over."""
    plan = result.plan
    if plan is None:
        return
    if plan.reason not in result.reasons:
        return
    attempt = AttemptKey(plan.job, plan.attempt)
    facts = {"diagnosis": plan.diagnosis, "plan": plan.id, "action": plan.action.value}
    by = plan.history[-1].by if plan.history else ""
    trace(TraceStep.PLAN, attempt, since, **facts, state=plan.state.value, reason=plan.reason, by=by)
    if plan.lease is None:
        return
    if plan.state not in ENDED:
        return
    executor = plan.lease.executor
    claimed = next((change.time for change in plan.history if change.by == executor), since)
    error = plan.reason if plan.state is PlanState.NOT_REACHED else ""
    trace(TraceStep.CARRY_OUT, attempt, claimed, **facts, error=error, executor=executor, commands=len(plan.steps))
