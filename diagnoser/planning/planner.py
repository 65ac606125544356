"""Decides what follows from a verdict, all at once: the stored record, the plan, and what must leave the service."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import orjson

from diagnoser.model import (
    LOSS_SERIES,
    ClusterHistory,
    Diagnosis,
    Incident,
    Job,
    MessageKind,
    MetricEvent,
    Mode,
    NodeProof,
    OutboxMessage,
    Plan,
    PlanReason,
    PlanState,
    TransitionResult,
)
from diagnoser.model.alerts import Alert, AlertKind, Severity, encode
from diagnoser.model.evaluations import ScoreDrop
from diagnoser.model.job_contract import contract_of
from diagnoser.model.jobs import cluster_of
from diagnoser.model.plans import PlanTransition
from diagnoser.model.record_json import fields_of
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.vitals import NOT_ALERTED, BlindSpot
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.notifications.alert import (
    TEST_ALERT,
    blind_spot_alert,
    escalation_alert,
    failure_alert,
    metric_alert,
    plan_alert,
    score_drop_alert,
    seal,
)
from diagnoser.notifications.routing import AlertRouting
from diagnoser.recovery import guardrails, retry_history, trust
from diagnoser.recovery.incidents import incident_id
from diagnoser.recovery.plan_states import RUNNABLE
from diagnoser.recovery.policy import Policy, plan_key
from diagnoser.redaction.redact import masked, without_secrets

ALERT_LIFE = 24 * 3600.0
"""Seconds after which an alert that could not be delivered is not worth sending."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision about a verdict. plan: a proposal, None where nothing can be done. transition: applies the guardrails to
    it, in the transaction that stores it. messages: alerts about the verdict itself.
    """

    record: DiagnosisRecord
    plan: Plan | None
    messages: tuple[OutboxMessage, ...]
    transition: PlanTransition


@dataclass(frozen=True, slots=True)
class DecisionPlanner:
    """Decides about verdicts as this site is configured.

    make_id: time -> an id that sorts by time. mode: overrides the table's modes when given. redact: applied to log text
    that leaves the service. alerts: who is alerted to what.
    """

    policy: Policy
    make_id: Callable[[float], str]
    mode: Mode | None
    webhook: bool
    alerts: AlertRouting
    base_url: str
    redact: Callable[[str], str]

    def decide(self, claim: Claim, diagnosis: Diagnosis, now: float) -> Decision:
        record = DiagnosisRecord(self.make_id(now), claim.attempt.key, claim.attempt.revision, now, True, diagnosis)
        alert = verdict_alert(record, claim.job, self._link(record.id), self.redact)
        messages = self._messages(alert, verdict_key(record), now)
        return Decision(record, self._plan(claim, record), messages, partial(self._guard, record))

    def _guard(self, record: DiagnosisRecord, plan: Plan, history: ClusterHistory) -> TransitionResult:
        """Apply the guardrails to the plan of a record, and announce it when it may act."""
        result = guardrails.apply_guardrails(self.policy, plan, history, record.created)
        if result.plan is None or result.plan.diagnosis != record.id:
            return result  # an earlier plan for the same failure stands
        messages = self.announce(result.plan, record)
        is_stopped = result.plan.state in (PlanState.HELD, PlanState.WAITING)
        if is_stopped or result.plan.reason == PlanReason.FOREIGN_NODE:  # a person has to look
            messages += self.alert_plan(result.plan, record.created)
        return replace(result, messages=messages)

    def mode_of(self, row: str) -> Mode:
        return self.mode or self.policy.mode(row)

    def announce(self, plan: Plan, record: DiagnosisRecord | None) -> tuple[OutboxMessage, ...]:
        """Copy a plan that may act now to the webhook; in mode act also one that only a person can carry out."""
        if not self.webhook:
            return ()
        if record is None:
            return ()
        is_for_person = plan.action not in RUNNABLE and plan.mode is Mode.ACT
        if plan.state is not PlanState.SENT and not is_for_person:
            return ()
        return (_recovery_message(plan, record, self.redact),)

    def alert_plan(self, plan: Plan, now: float) -> tuple[OutboxMessage, ...]:
        """Alert people to the state of a plan, once for each state."""
        alert = plan_alert(plan, link=self._link(plan.diagnosis), redact=self.redact)
        return self._messages(alert, f"{plan.id}-{plan.state}-{len(plan.history)}", now)

    def alert_escalation(self, before: Incident, after: Incident) -> tuple[OutboxMessage, ...]:
        """Alert people to an incident that was escalated; nobody where it was before."""
        if after.escalated <= before.escalated:
            return ()
        link = self._address(f"/incidents/{after.id}")
        alert = escalation_alert(after, after.history[-1].by, link=link, redact=self.redact)
        return self._messages(alert, f"{after.id}-escalated-{after.escalated:.3f}", after.escalated)

    def alert_blind_spot(self, spot: BlindSpot, now: float, *, ended: bool = False) -> tuple[OutboxMessage, ...]:
        """Alert people to what the service cannot see, or can again. The caller stores it once."""
        if spot.kind in NOT_ALERTED:
            return ()
        alert = blind_spot_alert(spot, ended=ended, link=self._address("/"))
        return self._messages(alert, self.make_id(now), now)

    def alert_metric(self, job: Job, attempt: int, event: MetricEvent, now: float) -> tuple[OutboxMessage, ...]:
        """Alert people to what the metrics of a running job show, once for each kind."""
        alert = metric_alert(job, attempt, event, link=self._address(f"/jobs/{job.id}"))
        return self._messages(alert, f"metric-{_digest(job.id, str(attempt), event.kind)}", now)

    def alert_went_on(
        self, record: DiagnosisRecord, job: Job, incident: str, why: str, now: float
    ) -> tuple[OutboxMessage, ...]:
        """Alert those who were alerted that a running launch failed that it goes on, once a verdict.

        incident: of the verdict.
        """
        failed = verdict_alert(record, job, self._link(record.id), self.redact)
        title = f"{why} ({without_secrets(job.id)}, attempt {failed.attempt})"
        alert = replace(failed, kind=AlertKind.RECOVERED, title=title, incident=incident, facts=(), notes=())
        alert = replace(alert, line="", place="", why="", action="", reason="", mitigation="")
        return self._messages(alert, f"{record.id}-went-on", now)

    def alert_score_drop(self, drop: ScoreDrop, now: float) -> tuple[OutboxMessage, ...]:
        """Alert people to a checkpoint that scores worse than those before it, once for each of its metrics."""
        score = drop.score
        alert = score_drop_alert(drop, link=self._address(f"/evaluations/{score.run}"))
        return self._messages(alert, f"score-{_digest(score.run, score.checkpoint, drop.task, drop.metric)}", now)

    def test_alert(self, receiver: str, now: float) -> OutboxMessage:
        """Make a test for one receiver. Its incident is new, so that no other alert holds it back."""
        name = f"test-{self.make_id(now)}"
        body = encode(replace(TEST_ALERT, incident=name, severity=Severity.INFO))
        return OutboxMessage(alert_key(name, receiver), MessageKind.ALERT, receiver, body, now, now + ALERT_LIFE)

    def _messages(self, alert: Alert, key: str, now: float) -> tuple[OutboxMessage, ...]:
        """Make a message for each receiver. key: the same for alerts of which one is enough."""
        route = self.alerts.route(alert)
        body = encode(seal(replace(alert, severity=route.severity)))
        return tuple(
            OutboxMessage(alert_key(key, receiver), MessageKind.ALERT, receiver, body, now, now + ALERT_LIFE)
            for receiver in route.receivers
        )

    def _plan(self, claim: Claim, record: DiagnosisRecord) -> Plan | None:
        now, job = record.created, claim.job
        cluster = cluster_of(job)
        if claim.runs and not ends_running(record.diagnosis):
            return None  # what a job prints or reports ends no launch: the plan is made when its scheduler says so
        is_running = claim.attempt.ended is None
        plan = self.policy.plan(
            self.make_id(now), claim.attempt.key, record.diagnosis, now, self.mode, is_running=is_running
        )
        if plan is None:
            return None
        allocation = claim.attempt.nodes
        nodes = trust.match_scheduler_names(plan.nodes, allocation)
        family = retry_history.family(job)
        return replace(
            plan,
            key=plan_key(claim.attempt.key, plan.action, nodes, plan.rollback),
            nodes=nodes,
            suspects=trust.match_scheduler_names(plan.suspects, allocation),
            allocation=allocation,
            proofs=_proofs(record.diagnosis, nodes, allocation),
            cluster=cluster,
            partition=job.labels.get("partition", ""),
            relaunches=contract_of(job).relaunches,
            diagnosis=record.id,
            tenant=job.tenant,
            family=family,
            fingerprint=retry_history.fingerprint(record.diagnosis),
            incident=incident_id(record.diagnosis, cluster, family),
            progress=retry_history.progress(record.diagnosis, claim.attempt),
        )

    def _link(self, diagnosis: str) -> str:
        return self._address(f"/diagnoses/{diagnosis}")

    def _address(self, path: str) -> str:
        """Make the address of a page; "" where the service does not know its own."""
        return f"{self.base_url}{path}" if self.base_url else ""


def verdict_alert(record: DiagnosisRecord, job: Job, link: str, redact: Callable[[str], str]) -> Alert:
    diagnosis = record.diagnosis
    incident = incident_id(diagnosis, cluster_of(job), retry_history.family(job))
    return failure_alert(
        diagnosis, job, record.attempt.number, incident=incident, id=record.id, link=link, redact=redact
    )


def ends_running(diagnosis: Diagnosis) -> bool:
    """Whether the plan of a verdict may end a launch that its scheduler shows running: one that hangs, or whose loss
    diverged. The plan touches that job alone."""
    return diagnosis.outcome is Outcome.HUNG or diagnosis.decided_by == LOSS_SERIES


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def alert_key(key: str, receiver: str) -> str:
    return f"alert-{key}-{receiver}"


def verdict_key(record: DiagnosisRecord) -> str:
    """Name verdicts of an attempt that say the same alike: people are alerted once."""
    attempt, diagnosis = record.attempt, record.diagnosis
    parts = [attempt.job, str(attempt.number), diagnosis.outcome, diagnosis.type, diagnosis.recovery.action]
    if diagnosis.needs_review:
        parts.append("needs review")
    if diagnosis.outcome is Outcome.HUNG:
        parts.append(f"step {diagnosis.step}")  # a run that went on may hang again, further on
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _proofs(diagnosis: Diagnosis, nodes: Sequence[str], allocation: Sequence[str]) -> tuple[NodeProof, ...]:
    """List the diagnosis' proofs against these nodes, under the names that the scheduler gives them."""
    proofs = []
    for proof in diagnosis.proofs:
        [node] = trust.match_scheduler_names((proof.node,), allocation)
        if node in nodes:
            proofs.append(replace(proof, node=node))
    return tuple(proofs)


def _recovery_message(plan: Plan, record: DiagnosisRecord, redact: Callable[[str], str]) -> OutboxMessage:
    """Make the body that the cluster's side receives: an event in the shape of the Standard Webhooks scheme."""
    diagnosis = record.diagnosis
    root: dict[str, object] = {"root_line": None, "rank": None, "node": None}
    if line := diagnosis.root_cause:
        root = {"root_line": redact(line.text), "rank": line.rank, "node": line.node}
    body = {
        "type": "recovery.plan",
        "timestamp": datetime.fromtimestamp(plan.created, UTC).isoformat(),
        "data": {
            "plan": plan.id,
            **fields_of(plan, ("key", "job", "attempt", "cluster", "action", "nodes", "rollback", "reason")),
            "expires": datetime.fromtimestamp(plan.expires, UTC).isoformat(),
            "diagnosis": {
                "id": record.id,
                **fields_of(diagnosis, ("outcome", "category", "type", "confidence", "decided_by")),
                **root,
            },
        },
    }
    sent = orjson.dumps(masked(orjson.loads(orjson.dumps(body)), without_secrets))  # a job chooses its names, too
    return OutboxMessage(plan.key, MessageKind.RECOVERY, "webhook", sent, plan.created, plan.expires)
