"""What follows from a verdict: the stored record, the plan, and what must leave the service. All decided at once."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import orjson

from diagnoser import alerts
from diagnoser.llm.redact import Mask
from diagnoser.model import Diagnosis, Effect, EffectKind, Mode, Plan, PlanState
from diagnoser.ports import Claim, DiagnosisRecord
from diagnoser.recovery.policy import Policy

ALERT_LIFE = 24 * 3600.0
"""Seconds after which an alert that could not be delivered is not worth sending."""

STATES = {Mode.OBSERVE: PlanState.ADVISED, Mode.APPROVE: PlanState.WAITING, Mode.ACT: PlanState.SENT}


@dataclass(frozen=True, slots=True)
class Effects:
    """How this site acts.

    make_id: time -> an id that sorts by time. mode: overrides the table's modes when given. mask: applied to log text
    that leaves the service.
    """

    policy: Policy
    make_id: Callable[[float], str]
    mode: Mode | None
    webhook: bool
    chat: bool
    base_url: str
    mask: Mask

    def decide(
        self, claim: Claim, diagnosis: Diagnosis, now: float
    ) -> tuple[DiagnosisRecord, Plan | None, list[Effect]]:
        key = claim.attempt.key
        record = DiagnosisRecord(self.make_id(now), key, claim.attempt.revision, now, True, diagnosis)
        plan = self._plan(claim, diagnosis, now)
        effects = []
        if plan and self.webhook and plan.state is PlanState.SENT:
            effects.append(_recovery(plan, record, self.mask))
        if self.chat:
            effects.append(self._alert(record))
        return record, plan, effects

    def _plan(self, claim: Claim, diagnosis: Diagnosis, now: float) -> Plan | None:
        plan = self.policy.plan(self.make_id(now), claim.attempt.key, diagnosis, now)
        if plan is None:
            return None
        mode = self.mode or plan.mode
        if mode is Mode.ACT and not self.webhook:
            mode = Mode.OBSERVE  # nobody would carry it out: say so instead of "sent"
        return replace(plan, mode=mode, state=STATES[mode])

    def _alert(self, record: DiagnosisRecord) -> Effect:
        """One alert for one verdict: a later revision that says the same is not sent again."""
        found = record.diagnosis
        said = "\0".join(
            (record.attempt.job, str(record.attempt.number), found.outcome, found.type, found.recovery.action)
        )
        key = "alert-" + hashlib.sha256(said.encode()).hexdigest()[:24]
        link = f"{self.base_url}/diagnoses/{record.id}" if self.base_url else ""
        body = alerts.slack_message(
            found, job=record.attempt.job, attempt=record.attempt.number, link=link, mask=self.mask
        )
        return Effect(key, EffectKind.SLACK, "slack", orjson.dumps(body), record.created, record.created + ALERT_LIFE)


def _recovery(plan: Plan, record: DiagnosisRecord, mask: Mask) -> Effect:
    """The body that the cluster's side gets: an event as the Standard Webhooks scheme shapes it."""
    found = record.diagnosis
    body = {
        "type": "recovery.plan",
        "timestamp": datetime.fromtimestamp(plan.created, UTC).isoformat(),
        "data": {
            "plan": plan.id,
            "key": plan.key,
            "job": plan.job,
            "attempt": plan.attempt,
            "action": plan.action,
            "nodes": plan.nodes,
            "reason": plan.reason,
            "expires": datetime.fromtimestamp(plan.expires, UTC).isoformat(),
            "diagnosis": {
                "id": record.id,
                "outcome": found.outcome,
                "category": found.category,
                "type": found.type,
                "confidence": found.confidence,
                "decided_by": found.decided_by,
                "root_line": mask(found.root_cause.text) if found.root_cause else None,
                "rank": found.root_cause.rank if found.root_cause else None,
                "node": found.root_cause.node if found.root_cause else None,
            },
        },
    }
    return Effect(plan.key, EffectKind.RECOVERY, "webhook", orjson.dumps(body), plan.created, plan.expires)
