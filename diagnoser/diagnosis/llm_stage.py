"""The model's contribution to a verdict, after the rules' verdict is published."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Protocol

from diagnoser.compress import AttemptLog, baseline
from diagnoser.diagnosis.background import background, pinned
from diagnoser.failure_agent.acceptance import model_confidences
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.llm.view import LogView
from diagnoser.localize.exit_reports import ExitTable
from diagnoser.model import Diagnosis, Facts, Judgement
from diagnoser.model.work import DiagnosisRecord
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures

_NO_LAUNCHERS = ExitTable()


_JUDGED = 2_000
"""Most judged verdicts that say how often a model was right, the newest."""


class JudgedCases(Protocol):
    """``adapters.sql.case_replays.CaseReplayRepository``."""

    async def judgements(self, since: float, limit: int) -> list[Judgement]: ...


@dataclass(frozen=True, slots=True)
class LLMStage:
    """judged: what people said about earlier verdicts. exits: reads what launchers report about ended processes."""

    agent: FailureAgent
    confirmed_failures: ConfirmedFailures
    judged: JudgedCases
    exits: ExitTable = field(default_factory=ExitTable)

    async def run(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        """The verdict with the model's contribution; None if the model is not asked."""
        asked = self.agent.reasons_to_ask(record.diagnosis)
        if not asked:
            return None
        similar = await self.confirmed_failures.describe_similar(record)
        question = await asyncio.to_thread(
            consultation_input, record.diagnosis, log, facts, similar.confirmed_failures, self.exits
        )
        confidences = model_confidences(await self.judged.judgements(0.0, _JUDGED))
        verdict = await self.agent.consult(question, asked, confidences)
        return replace(verdict, notes=(*verdict.notes, *similar.notes))


def consultation_input(
    diagnosis: Diagnosis,
    log: AttemptLog,
    facts: Facts,
    confirmed_failures: tuple[str, ...] = (),
    exits: ExitTable = _NO_LAUNCHERS,
) -> ConsultationInput:
    """The input of a model call. In the view, the rules' candidates and the last lines come before all else, then the
    lines that no clean run of the job's family printed."""
    digest = log.digest
    diff, pins = baseline.diff(digest, facts.baseline), pinned(diagnosis, digest.lines)

    def view(size: int) -> LogView:
        return LogView(digest.render(size, diff, pins), digest.numbered(diff))

    evidence = replace(digest.evidence, exits=exits.read(digest.evidence.lines))
    known = background(diagnosis, evidence, facts)
    return ConsultationInput(diagnosis, evidence, facts, view, confirmed_failures, known)
