"""What a question about a failure is answered from: its log, its facts, and what people judged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.llm_stage import LLMStage
from diagnoser.failure_agent.consultation import ConsultationConfig
from diagnoser.failure_agent.inquiry import Reply, answer_question
from diagnoser.model import Job
from diagnoser.model.errors import BadInput, existing
from diagnoser.model.jobs import cluster_of
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.ports import LanguageModel
from diagnoser.wording.words import answer

HISTORY = 15
"""Failures of a node, and reports about it, that are told."""


@dataclass(frozen=True, slots=True)
class Inquiries:
    """model: behind the budget that all who ask it share. config: with the prompt for questions."""

    stage: LLMStage
    model: LanguageModel
    config: ConsultationConfig

    async def answer(self, context: DiagnosisContext, record: DiagnosisRecord, text: str) -> Reply:
        """context: finds what the person who asks may see. Raises ModelFailed, NotFound."""
        key = record.attempt
        attempt = existing(await context.store.jobs.attempt(key), f"the log of {key.job}, attempt {key.number}")
        job = await context.store.jobs.find(key.job) or Job(key.job)
        facts = await context.facts(Claim(attempt, job, ""))
        subject = await self.stage.subject(record, await context.logs.load(key), facts)

        async def node_history(node: str) -> Sequence[str]:
            if node not in facts.nodes:
                raise BadInput("this job did not run on a node of that name")
            return await history_of_node(context.store, cluster_of(job), node)

        subject = replace(subject, evidence=replace(subject.evidence, node_history=node_history))
        return await answer_question(self.model, subject, self.config, text)


async def history_of_node(store: SqlStore, cluster: str, node: str) -> list[str]:
    """What failed on a node, and what became of it, the newest first. store: finds what the person who asks may see."""
    failures = await store.diagnoses.page(DiagnosisFilter(node=node, cluster=cluster), "", HISTORY)
    told = []
    for failure in failures:
        key, verdict = failure.attempt, failure.diagnosis
        told.append((failure.created, f"{answer(verdict)} in {key.job}, attempt {key.number}"))
    for event in await store.nodes.history(cluster, node, HISTORY):
        told.append((event.time, f"{event.kind} by {event.by}: {event.reason}"))
    newest = sorted(told, reverse=True)
    return [f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}: {text}" for time, text in newest]
