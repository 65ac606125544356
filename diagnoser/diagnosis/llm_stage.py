"""The model's contribution to a verdict, after the rules' verdict is published."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from diagnoser.adapters.sql.feedback import CaseRepository
from diagnoser.adapters.sql.plans import PlanRepository
from diagnoser.compress import AttemptLog, baseline
from diagnoser.diagnosis.background import background, beside_root, pinned
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.diagnosis.tool_evidence import disk_lines, tool_evidence
from diagnoser.failure_agent.acceptance import model_confidences
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.llm.view import LogView
from diagnoser.model import Diagnosis, Facts, QueryResult
from diagnoser.model.errors import DiagnoserError
from diagnoser.model.queries import PlanFilter
from diagnoser.model.work import DiagnosisRecord
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures

_PLANS = 5
"""Plans of a job whose answers are read."""


_JUDGED = 2_000
"""Most judged verdicts that say how often a model was right, the newest."""


@dataclass(frozen=True, slots=True)
class LLMStage:
    """judged: what people said about earlier verdicts. knowledge: reads what launchers report, and names rules.

    plans: hold what nodes answered.
    """

    agent: FailureAgent
    confirmed_failures: ConfirmedFailures
    judged: CaseRepository
    knowledge: RuleKnowledge
    plans: PlanRepository

    async def run(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        """The verdict with the model's contribution; None if the model is not asked."""
        asked = self.agent.reasons_to_ask(record.diagnosis)
        if not asked:
            return None
        similar = await self.confirmed_failures.describe_similar(record)
        question = replace(await self.subject(record, log, facts), confirmed_failures=similar.confirmed_failures)
        confidences = model_confidences(await self.judged.judgements(0.0, _JUDGED))
        verdict = await self.agent.consult(question, asked, confidences)
        return replace(verdict, notes=(*verdict.notes, *similar.notes))

    async def subject(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> ConsultationInput:
        """What the model may be asked about, and what its tools may read."""
        subject = await asyncio.to_thread(consultation_input, record.diagnosis, log, facts, self.knowledge)
        evidence = replace(
            subject.evidence,
            similar=partial(self.confirmed_failures.describe_like, record.attempt),
            free_space=tuple(disk_lines(await self._answers(record.attempt.job))),
        )
        return replace(subject, evidence=evidence)

    async def _answers(self, job: str) -> list[QueryResult]:
        """What nodes answered about failures of this job; nothing where the store does not answer."""
        try:
            plans = await self.plans.page(PlanFilter(job=job), "", _PLANS)
        except DiagnoserError:
            return []
        return list(chain.from_iterable(plan.check.queries for plan in plans if plan.check))


def consultation_input(
    diagnosis: Diagnosis, log: AttemptLog, facts: Facts, knowledge: RuleKnowledge
) -> ConsultationInput:
    """The input of a model call. In the view, the rules' candidates and the last lines come before all else, then what
    was printed only once near the root, and the lines that no clean run of the job's family printed."""
    digest = log.digest
    diff, once = baseline.diff(digest, facts.baseline), beside_root(diagnosis, digest.printed_once())
    pins = (*pinned(diagnosis, digest.lines), *((line.number, line.stream) for line in once))

    def view(size: int) -> LogView:
        return LogView(digest.render(size, diff, pins, once), digest.numbered(diff, once))

    evidence = replace(digest.evidence, exits=knowledge.exits.read(digest.evidence.lines))
    known = background(diagnosis, evidence, facts)
    tools = tool_evidence(evidence, facts, knowledge.engine.ruleset)
    return ConsultationInput(diagnosis, evidence, facts, view, background=known, evidence=tools)
