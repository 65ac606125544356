"""The model's contribution to a verdict, after the rules' verdict is published."""

import asyncio
from dataclasses import dataclass, replace

from diagnoser.compress import AttemptLog, baseline
from diagnoser.diagnosis.background import background, pinned
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.llm.view import LogView
from diagnoser.model import Diagnosis, Facts
from diagnoser.ports import DiagnosisRecord
from diagnoser.retrieval.incidents import Incidents


@dataclass(frozen=True, slots=True)
class LLMStage:
    agent: FailureAgent
    incidents: Incidents

    async def run(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        """The verdict with the model's contribution; None if the model is not asked."""
        asked = self.agent.reasons_to_ask(record.diagnosis)
        if not asked:
            return None
        similar = await self.incidents.describe_similar(record)
        question = await asyncio.to_thread(consultation_input, record.diagnosis, log, facts, similar.incidents)
        verdict = await self.agent.consult(question, asked)
        return replace(verdict, notes=(*verdict.notes, *similar.notes))


def consultation_input(
    diagnosis: Diagnosis, log: AttemptLog, facts: Facts, incidents: tuple[str, ...] = ()
) -> ConsultationInput:
    """The input of a model call. In the view, the rules' candidates and the last lines come before all else, then the
    lines that no clean run of the job's family printed."""
    digest = log.digest
    diff, pins = baseline.diff(digest, facts.baseline), pinned(diagnosis, digest.lines)

    def view(size: int) -> LogView:
        return LogView(digest.render(size, diff, pins), digest.numbered(diff))

    known = background(diagnosis, digest.evidence, facts)
    return ConsultationInput(diagnosis, digest.evidence, facts, view, incidents, known)
