"""Runs the commands of people and executors on stored plans."""

from dataclasses import dataclass

from diagnoser.model import Plan
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import PlanTransition, RecoveryStore, WakeSignal


@dataclass(frozen=True, slots=True)
class PlanService:
    """outbox: notified when there may be a message to send."""

    store: RecoveryStore
    commands: PlanCommands
    metrics: Metrics
    outbox: WakeSignal

    async def change(self, id: str, now: float, transition: PlanTransition, *, alone: bool = True) -> Plan:
        """Run a transition on a stored plan, count what it decided, and let it be sent. Raises NotFound, Conflict.

        alone: the transition looks at nothing but the plan.
        """
        result = await self.store.change_plan(id, now, transition, alone=alone)
        assert result.plan is not None, "a transition of a stored plan keeps it"
        self.metrics.observe_transition(result)
        self.outbox.notify()
        return result.plan
