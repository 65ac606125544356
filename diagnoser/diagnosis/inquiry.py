"""What a question about a failure is answered from: its log, its facts, and what people judged."""

from dataclasses import dataclass

from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.llm_stage import LLMStage
from diagnoser.failure_agent.consultation import ConsultationConfig
from diagnoser.failure_agent.inquiry import Reply, answer_question
from diagnoser.model import Job
from diagnoser.model.errors import NotFound
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.ports import LanguageModel


@dataclass(frozen=True, slots=True)
class Inquiries:
    """model: behind the budget that all who ask it share. config: with the prompt for questions."""

    stage: LLMStage
    model: LanguageModel
    config: ConsultationConfig

    async def answer(self, context: DiagnosisContext, record: DiagnosisRecord, text: str) -> Reply:
        """context: finds what the person who asks may see. Raises ModelFailed, NotFound."""
        key = record.attempt
        attempts = await context.store.jobs.attempts(key.job)
        attempt = next((attempt for attempt in attempts if attempt.key == key), None)
        if attempt is None:
            raise NotFound(f"the log of {key.job}, attempt {key.number}")
        job = await context.store.jobs.find(key.job) or Job(key.job)
        facts = await context.facts(Claim(attempt, job, ""))
        subject = await self.stage.subject(record, await context.logs.load(key), facts)
        return await answer_question(self.model, subject, self.config, text)
