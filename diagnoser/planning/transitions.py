"""What people and executors do to a plan, as rules that the store runs in one transaction with what follows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnoser.model import (
    ClusterHistory,
    NodeActor,
    NodeCheck,
    NodeEvent,
    NodeEventKind,
    PairResult,
    Plan,
    PlanReason,
    PlanState,
    Step,
    TransitionResult,
)
from diagnoser.model.errors import Conflict
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.ports import DiagnosisRecord, PlanTransition
from diagnoser.recovery import breaker, node_check, plan_states
from diagnoser.recovery.policy import Policy

LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What an executor tells. state: SENT while it goes on, else how it ended."""

    token: str
    state: PlanState
    steps: tuple[Step, ...] = ()
    detail: str = ""
    drained: tuple[str, ...] = ()
    requeued: str = ""


@dataclass(frozen=True, slots=True)
class PlanCommands:
    """Each method gives the rule for one order at one time. lease: seconds that an executor holds a plan without a
    word."""

    policy: Policy
    effects: DecisionPlanner
    lease: float = LEASE_SECONDS

    def approve(self, record: DiagnosisRecord | None, by: str, comment: str, now: float) -> PlanTransition:
        """record: the diagnosis that the plan follows from, told to the webhook with it."""

        def rule(plan: Plan | None, situation: ClusterHistory) -> TransitionResult:
            life = 60.0 * self.policy.table.defaults.expires_minutes
            sent = plan_states.approve(_given(plan), by=by, comment=comment, now=now, life=life)
            return TransitionResult(sent, effects=self.effects.announce(sent, record))

        return rule

    def refuse(self, by: str, comment: str, now: float) -> PlanTransition:
        def rule(plan: Plan | None, situation: ClusterHistory) -> TransitionResult:
            return TransitionResult(plan_states.refuse(_given(plan), by=by, comment=comment, now=now))

        return rule

    def report(self, told: PlanReport, now: float) -> PlanTransition:
        """Progress renews the lease; an end that was not reached alerts."""

        def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
            plan = _given(given)
            lease = plan_states.prove(plan, told.token)
            if told.state is PlanState.SENT:
                after = plan_states.progress(
                    plan, told.steps, drained=told.drained, requeued=told.requeued, until=now + self.lease
                )
                return TransitionResult(after, marks=_drained(plan, after, lease.executor, now))
            after = plan_states.end(
                plan,
                told.state,
                told.steps,
                detail=told.detail,
                drained=told.drained,
                requeued=told.requeued,
                now=now,
            )
            failed = after is not plan and after.state is PlanState.NOT_REACHED
            alerts = self.effects.alert_plan(after, now) if failed else ()
            return TransitionResult(after, effects=alerts, marks=_drained(plan, after, lease.executor, now))

        return rule

    def check_next(self, token: str, nodes: Sequence[str], now: float) -> PlanTransition:
        """Begin the node check, or go on with it. nodes: of the job, used when the check begins."""

        def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
            plan = self._at_work(given, token, now)
            if plan.check is None:
                begun = plan_states.with_note(
                    plan, by=plan_states.DIAGNOSER, why=f"node check of {len(nodes)} nodes begun", now=now
                )
                plan = replace(begun, check=node_check.begin(nodes))
            return TransitionResult(plan)

        return rule

    def check_results(self, token: str, round: int, results: Sequence[PairResult], now: float) -> PlanTransition:
        """Take over results; the verdict names the plan's nodes, unless the rails say no."""

        def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
            plan = self._at_work(given, token, now)
            if plan.check is None:
                raise Conflict(f"the node check of plan {plan.id} has not begun: ask for its first round")
            check = node_check.record(plan.check, round, results)
            after = replace(plan, check=check)
            if check.verdict is None or plan.check.verdict is not None:
                return TransitionResult(after)
            return self._judged(after, check, situation, now)

        return rule

    def leave_alone(self, mark: NodeEvent, now: float) -> PlanTransition:
        """A person has taken a node in hand: a plan that names it and that nobody carries out yet is held."""

        def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
            plan = _given(given)
            begun = plan.lease is not None and plan.lease.until > now
            if mark.node not in plan.nodes or begun or plan.state not in (PlanState.SENT, PlanState.WAITING):
                return TransitionResult(plan)
            why = f"{mark.node} was {mark.kind} by a person: it is left alone"
            held = plan_states.with_state(
                plan, PlanState.HELD, PlanReason.PERSON_HANDLES_NODE, by=plan_states.DIAGNOSER, why=why, now=now
            )
            return TransitionResult(held, effects=self.effects.alert_plan(held, now))

        return rule

    def expire(self, now: float) -> PlanTransition:
        def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
            plan = _given(given)
            if not plan_states.expired(plan, now):
                return TransitionResult(plan)
            after = plan_states.expire(plan, now)
            return TransitionResult(after, effects=self.effects.alert_plan(after, now))

        return rule

    def _at_work(self, given: Plan | None, token: str, now: float) -> Plan:
        """The plan with its lease renewed. Raises Conflict when the token does not hold it."""
        plan = _given(given)
        plan_states.prove(plan, token)
        return plan_states.progress(plan, (), drained=(), requeued="", until=now + self.lease)

    def _judged(self, plan: Plan, check: NodeCheck, situation: ClusterHistory, now: float) -> TransitionResult:
        """The verdict becomes the plan's nodes. What a person handles stays theirs; the breaker may want approval."""
        assert check.verdict is not None, "the caller has looked"
        verdict, hours = check.verdict, self.policy.table.ledger.person_hours
        theirs = breaker.handled(verdict.faulty, situation, now, hours)
        if theirs:
            faulty = tuple(node for node in verdict.faulty if node not in theirs)
            reason = f"{verdict.reason}; left to the person who handles them: {', '.join(theirs)}"
            verdict = replace(verdict, faulty=faulty, reason=reason)
        named = replace(plan, nodes=verdict.faulty, check=replace(check, verdict=verdict))
        named = plan_states.with_note(named, by=plan_states.DIAGNOSER, why=f"node check: {verdict.reason}", now=now)
        return self._within_breaker(named, situation, now)

    def _within_breaker(self, plan: Plan, situation: ClusterHistory, now: float) -> TransitionResult:
        if not plan.nodes or plan.history[-1].state is not PlanState.SENT:
            return TransitionResult(plan)
        trip = breaker.judge(self.policy.table.breaker.limits(), plan, plan.nodes, situation, now)
        tripped = situation.open & set(breaker.scopes(plan))
        if trip is None and not tripped:
            return TransitionResult(plan)
        why = trip.reason if trip else f"the breaker of {', '.join(sorted(tripped))} is open"
        waits = plan_states.with_state(
            plan, PlanState.WAITING, PlanReason.BREAKER, by=plan_states.DIAGNOSER, why=why, now=now
        )
        waits = replace(waits, lease=None)
        return TransitionResult(waits, trips=(trip,) if trip else (), effects=self.effects.alert_plan(waits, now))


def _given(plan: Plan | None) -> Plan:
    assert plan is not None, "the store rules on a plan that it has found"
    return plan


def _drained(before: Plan, after: Plan, executor: str, now: float) -> tuple[NodeEvent, ...]:
    """Nodes that this report says were taken out."""
    news = [node for node in after.drained if node not in before.drained]
    why = f"plan {after.id} by {executor}"
    return tuple(NodeEvent(after.cluster, node, NodeEventKind.CORDONED, NodeActor.DIAGNOSER, now, why) for node in news)
