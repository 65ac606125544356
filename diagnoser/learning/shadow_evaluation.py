"""Looks at every verdict: what it proves about an earlier recovery, and which learned rules hit or would have.

None of it delays a verdict: a failure here is logged and skipped.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog
from diagnoser.learning.log_agent import LogAgent
from diagnoser.learning.rule_context import known_type
from diagnoser.learning.rule_registry import RuleRegistry, RuleSnapshot
from diagnoser.model import AttemptKey, Diagnosis, Facts, HitVerdict, Plan, PlanState, ProofKind, RuleHit
from diagnoser.model.queries import PlanFilter
from diagnoser.model.taxonomy import Category, Outcome, category_of
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.recovery import retry_history
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures
from diagnoser.rules.engine import Engine
from diagnoser.rules.schema import Role, RuleSet

RECOVERY = "recovery"
_PLANS = 200
_ACTED = frozenset({PlanState.SENT, PlanState.REACHED})
"""The executor's last report may come after the end of a short launch."""
_ENDED = frozenset({Category.NONE, Category.UNKNOWN})
_PROOFS = frozenset({ProofKind.NODE_LOG, ProofKind.SCHEDULER, ProofKind.QUERY, ProofKind.CHECK})


@dataclass(frozen=True)
class ShadowEvaluator:
    """Called by the worker: ``confirm_from_recovery`` before a verdict is saved, ``observe`` when it is published.

    log_agent: None where no filters are learned.
    """

    store: SqlStore
    registry: RuleRegistry
    confirmed_failures: ConfirmedFailures
    log_agent: LogAgent | None = None

    async def confirm_from_recovery(self, claim: Claim, record: DiagnosisRecord) -> None:
        try:
            await self._confirm(claim, record)
        except Exception as error:
            structlog.get_logger().error("recovery_confirmation_failed", job=record.attempt.job, exc_info=error)

    async def observe(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> None:
        try:
            if hits := await asyncio.to_thread(learned_rule_hits, self.registry.snapshot, record, log, facts):
                await self.store.rules.record_hits(hits)
                await self._judge_by_feedback(record)
            if self.log_agent:
                await self.log_agent.observe(record, log, facts)
        except Exception as error:
            structlog.get_logger().error("shadow_evaluation_failed", job=record.attempt.job, exc_info=error)

    async def _judge_by_feedback(self, record: DiagnosisRecord) -> None:
        """Feedback may exist already: on an earlier diagnosis of the attempt, or given just now."""
        current = await self.store.diagnoses.find(record.id)
        if current and current.feedback:
            await self.store.rules.judge_hits(record.attempt, known_type(current))

    async def _confirm(self, claim: Claim, record: DiagnosisRecord) -> None:
        """A plan that acted on a cause, after which the training came further than before, confirms that cause."""
        plans = await self.store.plans.page(PlanFilter(job=record.attempt.job), "", _PLANS)
        plans += await self.store.plans.page(PlanFilter(PlanState.REACHED.value), "", _PLANS)
        for plan in plans:
            if is_before(plan, record.attempt):
                break
        else:
            return
        if not proves(plan, claim, record):
            return
        earlier = await self.store.diagnoses.find(plan.diagnosis)
        if earlier and _may_be_confirmed(earlier):
            await self.confirmed_failures.confirm(earlier, f"{RECOVERY}: plan {plan.id}", record.created)


def _may_be_confirmed(record: DiagnosisRecord) -> bool:
    if record.feedback:
        return False  # a person has spoken
    return category_of(record.diagnosis.type) not in _ENDED


def is_before(plan: Plan, attempt: AttemptKey) -> bool:
    """Whether the attempt is a launch that followed from the plan."""
    if plan.job == attempt.job:
        return plan.attempt == attempt.number - 1
    return plan.requeued == attempt.job


def proves(plan: Plan, claim: Claim, record: DiagnosisRecord) -> bool:
    """Whether the launch after a plan shows that the plan's cause was the right one.

    Only plans that took nodes out prove anything: a plain new launch may succeed whatever the cause was. And only where
    a machine vouched for the fault of each: what the job alone said, it can also make come true.
    """
    proven = {proof.node for proof in plan.proofs if proof.kind in _PROOFS}
    if not plan.drained:
        return False
    if plan.state not in _ACTED:
        return False
    if not proven.issuperset(plan.drained):
        return False
    verdict = record.diagnosis
    if retry_history.fingerprint(verdict) == plan.fingerprint:
        return False
    reached = retry_history.progress(verdict, claim.attempt)
    if verdict.outcome is Outcome.COMPLETED:
        return True
    return retry_history.is_further(reached, plan.progress)


def learned_rule_hits(snapshot: RuleSnapshot, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> list[RuleHit]:
    return [*_decided(snapshot, record, log, facts.job.tenant), *_would_decide(snapshot, record, log, facts)]


def _decided(snapshot: RuleSnapshot, record: DiagnosisRecord, log: AttemptLog, tenant: str) -> Iterator[RuleHit]:
    """List the rules in force that named the cause; where none was named, also those that took a line for none."""
    learned = {rule.id for rule in snapshot.in_force(tenant)}
    rules = [rule for rule in snapshot.analyzer.knowledge.engine.ruleset.rules if rule.id in learned]
    cleared = set()
    if category_of(record.diagnosis.type) in _ENDED:
        benign = tuple(rule for rule in rules if rule.role is Role.BENIGN)
        if benign:
            cleared = {hit.rule.id for hit in Engine(RuleSet(benign, "")).match(log.evidence)}
    for rule in rules:
        if rule.id in cleared or record.diagnosis.decided_by == f"rule:{rule.id}":
            yield RuleHit(rule.id, record.attempt, record.created, record.id, active=True)


def _would_decide(snapshot: RuleSnapshot, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Iterator[RuleHit]:
    if not snapshot.trial.ruleset.rules:
        return
    evidence = log.evidence
    for rule in {hit.rule.id: hit.rule for hit in snapshot.trial.match(evidence)}.values():
        shadow = snapshot.analyzer.with_rules(RuleSet((rule,), rule.id)).diagnose_with_node_logs(evidence, facts)
        disputed = record.diagnosis.decided_by.removeprefix("rule:") in rule.overrides
        decides = shadow.decided_by == f"rule:{rule.id}"
        if disputed and rule.role is Role.BENIGN:
            decides |= shadow.decided_by != record.diagnosis.decided_by
        if not decides:
            continue
        hit = RuleHit(rule.id, record.attempt, record.created, record.id)
        if not disputed and _contradicts(record.diagnosis, shadow):
            hit = replace(hit, verdict=HitVerdict.WRONG)
        yield hit


def _contradicts(verdict: Diagnosis, shadow: Diagnosis) -> bool:
    """Whether a stable rule in force decided for another cause."""
    if verdict.type is shadow.type:
        return False
    if not verdict.grounds.stable:
        return False
    return verdict.decided_by.startswith("rule:")
