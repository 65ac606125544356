"""Acts of people and executors on a plan: transitions that the store runs in one transaction with what follows."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import (
    ClusterHistory,
    Mode,
    NodeActor,
    NodeCheck,
    NodeEvent,
    NodeEventKind,
    NodeProof,
    OutboxMessage,
    PairResult,
    Plan,
    PlanReason,
    PlanState,
    ProofKind,
    QueryResult,
    QueryState,
    TransitionResult,
)
from diagnoser.model.errors import Conflict
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import DiagnosisRecord
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.recovery import breaker, guardrails, node_check, plan_states, retry_history, trust
from diagnoser.recovery.node_query import NO_QUERIES, SITE_CHECK, Answer, NodeQueryTable
from diagnoser.recovery.plan_states import PlanReport
from diagnoser.recovery.policy import Policy

LEASE_SECONDS = 60.0
SUSPECTS_ASKED = 4
"""Nodes that are asked before pairs are tested: the most likely ones."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Request for a node check, with what its executor is able to do.

    nodes: of the job. types: of the failure. since: what is older in the logs of nodes has nothing to do with it.
    queries: the executor can ask nodes. site_check: it has a check script of the site. pairs: it can test pairs.
    """

    nodes: tuple[str, ...]
    types: tuple[FailureType, ...] = ()
    since: float = 0.0
    queries: bool = False
    site_check: bool = False
    pairs: bool = True


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Answer of a node to a query of the check."""

    node: str
    query: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class PlanCommands:
    """What each command makes of a plan: pure, so that the store may run it under the plan's lock.

    lease: seconds that an executor holds a plan without reporting. queries: what suspected nodes can be asked.
    """

    policy: Policy
    planner: DecisionPlanner
    lease: float = LEASE_SECONDS
    queries: NodeQueryTable = NO_QUERIES

    def approve(
        self,
        plan: Plan,
        record: DiagnosisRecord | None,
        by: str,
        comment: str,
        now: float,
        shown: str = "",
    ) -> TransitionResult:
        """record: the diagnosis that the plan follows from, sent to the webhook with it. shown: the plan as the person
        saw it, where that is known: meanwhile it may name other nodes, or somebody may have taken an approval back.

        A person may vouch for what nothing proves, but not send the agent to a node that the job never had.
        """
        if "~" in shown and shown != plan.shown and plan.state is PlanState.WAITING:
            raise Conflict(f"plan {plan.id} has changed since it was shown: look at it again")
        life = 60.0 * self.policy.table.defaults.expires_minutes
        word = plan_states.commented("approved", comment)
        proofs = tuple(NodeProof(node, ProofKind.PERSON, word, time=now, by=by) for node in plan.unproven)
        vouched = replace(plan, proofs=(*plan.proofs, *proofs))
        objection = trust.why_not_removable(vouched, plan.allocation)
        if objection and plan.state is PlanState.WAITING:
            raise Conflict(f"plan {plan.id} cannot be approved: {objection[1]}")
        sent = plan_states.approve(vouched, by=by, comment=comment, now=now, life=life)
        return TransitionResult(sent, messages=self.planner.announce(sent, record))

    def refuse(self, plan: Plan, by: str, comment: str, now: float) -> TransitionResult:
        return TransitionResult(plan_states.refuse(plan, by=by, comment=comment, now=now))

    def revoke_decision(self, plan: Plan, by: str, comment: str, now: float) -> TransitionResult:
        """Undoes an approval that nobody acted on yet, or a refusal. A webhook is told within a moment, and whoever
        receives it need not claim the plan: where there is one, an approval stands."""
        if self.is_announced(plan):
            raise Conflict(f"plan {plan.id} cannot be taken back: the webhook told of it, and may have been acted on")
        return TransitionResult(plan_states.revoke_decision(plan, by=by, comment=comment, now=now))

    def is_announced(self, plan: Plan) -> bool:
        """Tell whether somebody may act on the plan without claiming it."""
        if not self.planner.webhook:
            return False
        return plan.state is PlanState.SENT

    def claim(self, plan: Plan, allocation: Collection[str], executor: str, token: str, now: float) -> TransitionResult:
        """An executor takes the plan, unless the second gate before a node goes refuses it: it is held then."""
        if self._may_no_longer_act(plan):
            why = "the policy has changed: it does not let a running launch be ended without a person any more"
            return self._stopped(plan, PlanState.WAITING, PlanReason.NEEDS_APPROVAL, why, now)
        objection = trust.why_not_removable(plan, allocation or plan.allocation)
        if objection is None:
            return TransitionResult(
                plan_states.claim(plan, executor=executor, token=token, until=now + self.lease, now=now)
            )
        return self._stopped(plan, PlanState.HELD, *objection, now)

    def _may_no_longer_act(self, plan: Plan) -> bool:
        """Tell whether the plan would end a running launch without a person, and the policy stopped to allow that."""
        if plan.look is None:
            return False
        if plan.reason != PlanReason.ACT:
            return False
        return self.planner.mode_of(plan.row) is not Mode.ACT

    def hold_progressed(self, plan: Plan, now: float) -> TransitionResult:
        """Hold a plan whose run has printed since its ranks were looked at: they are looked at anew if it falls silent
        again."""
        why = "the run has printed since its ranks were looked at; nothing was done"
        return self._stopped(replace(plan, lease=None), PlanState.HELD, PlanReason.STILL_RUNNING, why, now)

    def _stopped(self, plan: Plan, state: PlanState, reason: PlanReason, why: str, now: float) -> TransitionResult:
        stopped = plan_states.with_state(plan, state, reason, by=plan_states.DIAGNOSER, why=why, now=now)
        return TransitionResult(stopped, messages=self.planner.alert_plan(stopped, now))

    def report(self, plan: Plan, report: PlanReport, now: float) -> TransitionResult:
        """Progress renews the lease; people are told how the plan ended."""
        lease = plan_states.check_token(plan, report.token)
        if report.state is PlanState.SENT:
            after = plan_states.progress(plan, report, now + self.lease)
            return TransitionResult(after, node_events=_drained(plan, after, lease.executor, now))
        after = plan_states.end(plan, report, now)
        alerts: tuple[OutboxMessage, ...] = ()
        if after is not plan and after.state in plan_states.ENDED:
            alerts = self.planner.alert_plan(after, now)
        return TransitionResult(after, messages=alerts, node_events=_drained(plan, after, lease.executor, now))

    def check_next(
        self, plan: Plan, history: ClusterHistory, token: str, request: CheckRequest, now: float
    ) -> TransitionResult:
        """Begin the node check, or continue it. An executor that cannot ask nodes goes on with the pairs; for one that
        cannot test pairs, what the nodes answer is all there is.

        Where nobody told before which nodes the attempt ran on, those that the executor names are taken for them.
        """
        plan = self._renewed(plan, token, now)
        plan = replace(plan, allocation=plan.allocation or tuple(sorted(set(request.nodes))))
        if plan.check is None:
            noted = plan_states.with_note(
                plan, by=plan_states.DIAGNOSER, why=f"node check of {len(request.nodes)} nodes begun", now=now
            )
            return self._checked(noted, self._begin_check(plan, request), history, now)
        check = plan.check
        if not request.queries:
            check = node_check.skip_queries(check)
        if not request.pairs:
            check = node_check.skip_pairs(check)
        return self._checked(plan, check, history, now)

    def _begin_check(self, plan: Plan, request: CheckRequest) -> NodeCheck:
        """Begin a check. Only nodes that the scheduler gave the attempt are suspects, as far as that is known."""
        suspects = [node for node in plan.suspects if node in plan.allocation]
        check = replace(node_check.begin(request.nodes, suspects), types=request.types, since=request.since)
        if request.queries:
            ids = [query.id for query in self.queries.queries_for(request.types)]
            if request.site_check:
                ids.append(SITE_CHECK)
            check = node_check.ask(check, itertools.product(check.suspects[:SUSPECTS_ASKED], ids))
        if not request.pairs:
            return node_check.skip_pairs(check)
        return check

    def check_results(
        self,
        plan: Plan,
        history: ClusterHistory,
        token: str,
        round: int,
        results: Sequence[PairResult],
        now: float,
        answers: Sequence[NodeAnswer] = (),
        *,
        vouched: bool = False,
    ) -> TransitionResult:
        """Store results and answers; a verdict names the plan's nodes, within the guardrails.

        vouched: whether the results are those of the operator's program, as far as the executor says.
        """
        plan = self._renewed(plan, token, now)
        if plan.check is None:
            raise Conflict(f"the node check of plan {plan.id} has not begun: ask for its first round")
        check = node_check.record_answers(plan.check, [self._judged(plan.check, answer) for answer in answers])
        if not answers and not results:
            check = node_check.skip_queries(check)  # it was to ask, and has nothing to say
        check = node_check.record(check, round, results, vouched=vouched)
        return self._checked(plan, check, history, now)

    def _judged(self, check: NodeCheck, given: NodeAnswer) -> QueryResult:
        return self.queries.judge(QueryResult(given.node, given.query), given.answer, check.types, check.since)

    def hold_for_operator(self, plan: Plan, mark: NodeEvent, now: float) -> TransitionResult:
        """Hold a plan that names a node which a person is handling, unless an executor works on it already."""
        if mark.node not in plan.nodes:
            return TransitionResult(plan)
        if plan.is_leased(now):
            return TransitionResult(plan)
        if plan.state not in (PlanState.SENT, PlanState.WAITING):
            return TransitionResult(plan)
        why = f"{mark.node} was {mark.kind} by a person: it is left alone"
        return self._stopped(plan, PlanState.HELD, PlanReason.PERSON_HANDLES_NODE, why, now)

    def hold_bad_checkpoint(self, plan: Plan, why: str, now: float, unused_token: str = "") -> TransitionResult:
        """Withdraw a plan whose checkpoint was reported bad, unless somebody acts on it. Where an executor has it, or
        the webhook announced it, only they know how far it is: it is marked, and executors refuse it.

        unused_token: of a claim that no executor was given yet.
        """
        if plan.rollback is None:
            return TransitionResult(plan)
        if plan.state not in (*plan_states.OPEN, PlanState.SENT):
            return TransitionResult(plan)
        is_withdrawn = self._can_withdraw(plan, unused_token)
        is_marked = plan.reason == PlanReason.BAD_CHECKPOINT
        if is_marked and not (is_withdrawn and plan.state is PlanState.SENT):
            return TransitionResult(plan)
        why = f"{plan.rollback.checkpoint} was reported bad: {why}"
        if not is_withdrawn:
            return self._stopped(plan, plan.state, PlanReason.BAD_CHECKPOINT, why, now)
        plan = replace(plan, lease=None)
        if plan.state is PlanState.ADVISED:  # it would not have acted: nobody is alerted
            marked = self._stopped(plan, plan.state, PlanReason.BAD_CHECKPOINT, why, now)
            return replace(marked, messages=())
        return self._stopped(plan, PlanState.HELD, PlanReason.BAD_CHECKPOINT, why, now)

    def hold_completed(self, plan: Plan, completed: int, now: float) -> TransitionResult:
        """Hold a plan that was just claimed, because a later attempt of its job has completed since it was made. A
        person's approval stands.

        completed: number of that attempt.
        """
        if plan.state is not PlanState.SENT:
            return TransitionResult(plan)
        if plan.steps:
            return TransitionResult(plan)
        if plan.reason == PlanReason.APPROVED:
            return TransitionResult(plan)
        why = f"attempt {completed} of the job completed since: nothing is left to do"
        held = plan_states.with_state(
            plan, PlanState.HELD, PlanReason.ATTEMPT_CLOSED, by=plan_states.DIAGNOSER, why=why, now=now
        )
        return TransitionResult(replace(held, lease=None))

    def expire(self, plan: Plan, now: float) -> TransitionResult:
        if not plan_states.expired(plan, now):
            return TransitionResult(plan)
        after = plan_states.expire(plan, now)
        if (plan.state, plan.reason) == (PlanState.WAITING, PlanReason.PLACE_FAILS):  # the place's check speaks
            return TransitionResult(after)
        return TransitionResult(after, messages=self.planner.alert_plan(after, now))

    def _can_withdraw(self, plan: Plan, unused_token: str) -> bool:
        """Tell whether nobody acts on the plan, and nobody was told to. unused_token: as in ``hold_bad_checkpoint``."""
        if plan.lease is not None:
            if plan.steps:
                return False
            if plan.lease.token != unused_token:
                return False
        if unused_token:
            return True
        return not self.is_announced(plan)

    def _renewed(self, plan: Plan, token: str, now: float) -> Plan:
        """The plan with its lease renewed. Raises Conflict when the token does not hold it."""
        plan_states.check_token(plan, token)
        return plan_states.progress(plan, PlanReport(token, PlanState.SENT), now + self.lease)

    def _checked(self, plan: Plan, check: NodeCheck, history: ClusterHistory, now: float) -> TransitionResult:
        """Store the check's new state in the plan, and act once on its verdict."""
        after, before = replace(plan, check=check), plan.check
        if check.verdict is None:
            return TransitionResult(after)
        if before is not None and before.verdict is not None:
            return TransitionResult(after)
        return self._with_verdict(after, check, history, now)

    def _with_verdict(self, plan: Plan, check: NodeCheck, history: ClusterHistory, now: float) -> TransitionResult:
        """Make the faulty nodes the plan's, without those that a person handles. The breaker may demand approval, and
        so does a fault that nothing proves."""
        assert check.verdict is not None, "the caller has checked"
        verdict, hours = check.verdict, self.policy.table.ledger.person_hours
        theirs = breaker.handled_by_people(verdict.faulty, history, now, hours)
        if theirs:
            faulty = tuple(node for node in verdict.faulty if node not in theirs)
            reason = f"{verdict.reason}; left to the person who handles them: {', '.join(theirs)}"
            verdict = replace(verdict, faulty=faulty, reason=reason)
        proofs = (*plan.proofs, *_proofs(check, verdict.faulty, verdict.reason, now))
        judged = replace(plan, nodes=verdict.faulty, proofs=proofs, check=replace(check, verdict=verdict))
        judged = plan_states.with_note(judged, by=plan_states.DIAGNOSER, why=f"node check: {verdict.reason}", now=now)
        if judged.unproven:
            return self._unproven(judged, judged.nodes, "its pairs failed in the job's own image", history, now)
        if not check.verdict.faulty:
            tested = [node for node in plan.unproven_suspects if node in check.nodes]
            left_alone = breaker.handled_by_people(tested, history, now, hours)
            suspects = tuple(node for node in tested if node not in left_alone)
            if suspects:
                return self._unproven(judged, suspects, "only what the job printed says so", history, now)
        return self._within_breaker(judged, history, now)

    def _unproven(
        self, plan: Plan, nodes: tuple[str, ...], suspicion: str, history: ClusterHistory, now: float
    ) -> TransitionResult:
        """Ask a person whether nodes go that only the job speaks against, urgently where the job of somebody else
        suspected the same node.

        suspicion: what speaks against them, in words.
        """
        listed = ", ".join(nodes)
        reason, why = PlanReason.UNPROVEN, f"nothing proves that {listed} is at fault: {suspicion}"
        again = retry_history.suspected_by_others(replace(plan, suspects=nodes), history.past, now)
        if again:
            others = len({past.job for past in again})  # not by name: the plan is the tenant's to read
            whose = "a job of another tenant" if others == 1 else f"{others} jobs of other tenants"
            reason, why = PlanReason.SUSPECTED_AGAIN, f"urgent: {why}, but {whose} suspected it, too"
        return self._stopped(replace(plan, nodes=nodes, lease=None), PlanState.WAITING, reason, why, now)

    def _within_breaker(self, plan: Plan, history: ClusterHistory, now: float) -> TransitionResult:
        if not plan.nodes:
            return TransitionResult(plan)
        stopped, trips = guardrails.limited(plan, self.policy, history, now)
        if stopped is plan:
            return TransitionResult(plan)
        stopped = replace(stopped, lease=None)
        return TransitionResult(stopped, messages=self.planner.alert_plan(stopped, now), trips=trips)


def _proofs(check: NodeCheck, faulty: Sequence[str], reason: str, now: float) -> list[NodeProof]:
    """List what nodes say themselves; where one says nothing, the groups that failed with it, if they are vouched
    for."""
    proofs = []
    for query in check.queries:
        if query.state is not QueryState.PROVES:
            continue
        if query.node in faulty:
            proofs.append(NodeProof(query.node, ProofKind.QUERY, query.text, query.query, time=now))
    if not check.vouched:
        return proofs
    by_themselves = {proof.node for proof in proofs}
    for node in faulty:
        if node not in by_themselves:
            proofs.append(NodeProof(node, ProofKind.CHECK, reason, time=now))
    return proofs


def _drained(before: Plan, after: Plan, executor: str, now: float) -> tuple[NodeEvent, ...]:
    """The nodes that this report adds to those taken out."""
    why = f"plan {after.id} by {executor}"
    events = []
    for node in after.drained:
        if node not in before.drained:
            events.append(NodeEvent(after.cluster, node, NodeEventKind.CORDONED, NodeActor.DIAGNOSER, now, why))
    return tuple(events)
