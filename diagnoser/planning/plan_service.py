"""Runs the commands of people and executors on stored plans."""

import secrets
from dataclasses import dataclass

from diagnoser.model import AttemptKey, Plan, PlanState, TransitionResult
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace, TraceStep, untraced
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import PlanTransition, RecoveryStore, WakeSignal


@dataclass(frozen=True, slots=True)
class PlanService:
    """outbox: notified when there may be a message to send."""

    store: RecoveryStore
    commands: PlanCommands
    metrics: Metrics
    outbox: WakeSignal
    trace: Trace = untraced

    async def claim(self, executor: str, cluster: str, now: float) -> Plan | None:
        """The oldest plan of the cluster that may be carried out, now held by the executor; None when there is none.
        Plans that the gate refuses on the way are counted."""
        while True:
            transition = self.commands.claim(executor, secrets.token_urlsafe(24), now)
            result = await self.store.claim_plan(cluster, now, transition)
            if result is None or result.plan is None:
                return None
            if result.plan.state is PlanState.SENT:
                return result.plan
            self.metrics.observe_transition(result)
            self.outbox.notify()
            trace_transition(self.trace, result, now)

    async def change(self, id: str, now: float, transition: PlanTransition, *, alone: bool = True) -> Plan:
        """Run a transition on a stored plan, count what it decided, and let it be sent. Raises NotFound, Conflict.

        alone: the transition looks at nothing but the plan.
        """
        result = await self.store.change_plan(id, now, transition, alone=alone)
        assert result.plan is not None, "a transition of a stored plan keeps it"
        self.metrics.observe_transition(result)
        self.outbox.notify()
        trace_transition(self.trace, result, now)
        return result.plan


def trace_transition(trace: Trace, result: TransitionResult, since: float) -> None:
    """What was decided about a plan, where that is news; and how an executor fared with it, when that is over."""
    plan = result.plan
    if plan is None or plan.reason not in result.reasons:
        return
    attempt, facts = AttemptKey(plan.job, plan.attempt), {"plan": plan.id, "action": plan.action.value}
    by = plan.history[-1].by if plan.history else ""
    trace(
        TraceStep.PLAN,
        attempt,
        since,
        diagnosis=plan.diagnosis,
        **facts,
        state=plan.state.value,
        reason=plan.reason,
        by=by,
    )
    if plan.lease and plan.state in (PlanState.REACHED, PlanState.NOT_REACHED):
        executor = plan.lease.executor
        claimed = next((change.time for change in plan.history if change.by == executor), since)
        error = "" if plan.state is PlanState.REACHED else plan.reason
        trace(
            TraceStep.CARRY_OUT,
            attempt,
            claimed,
            diagnosis=plan.diagnosis,
            error=error,
            **facts,
            executor=executor,
            commands=len(plan.steps),
        )
