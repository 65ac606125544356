"""Stored attempts as cases: what rules are learned from, and what they are held against."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, baseline
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.baseline import RUNS_NEEDED
from diagnoser.diagnosis.context import clean_runs_id
from diagnoser.learning.rule_context import LabelledCase, known_type
from diagnoser.model import AttemptKey, Facts, Job, Line
from diagnoser.model.access import Viewer
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of
from diagnoser.model.work import DiagnosisRecord

RECENT, HEALTHY, OTHERS, CONFIRMED = 1000, 200, 200, 300
"""Newest attempts that are scanned; how many completed ones and ones of other types are read from them; and how many
confirmed cases are read."""
_OF_TYPE = 20
"""Most attempts of any one other type: a flood of one failure must not hide the rest."""
_PAGE = 200


class ReplayGroup(Enum):
    COMPLETED = auto()
    OTHER_TYPE = auto()
    CONFIRMED = auto()


@dataclass(frozen=True)
class ReplayHistory:
    store: SqlStore
    logs: AttemptLogs

    async def case_of(self, record: DiagnosisRecord) -> LabelledCase:
        """The case of a diagnosis, without the logs of its nodes."""
        job = await self.store.jobs.find(record.attempt.job) or Job(record.attempt.job)
        attempt = await self.store.jobs.attempt(record.attempt)
        facts = Facts(job, record.attempt.number, attempt.events if attempt else ())
        log = await self.logs.load(record.attempt)
        evidence, printed = await asyncio.to_thread(lambda: (log.evidence, log.messages))
        return LabelledCase(record, facts, evidence, printed)

    async def completed(self, limit: int, tenant: str) -> list[LabelledCase]:
        """The newest attempts that completed, of a tenant's jobs, "" for all: a model may read them."""
        return [await self.case_of(record) for record in await self.completed_records(limit, tenant)]

    async def completed_records(self, limit: int, tenant: str = "") -> list[DiagnosisRecord]:
        """The same without their logs."""
        own = self.store.scoped_to(Viewer(tenant=tenant))
        return await own.diagnoses.page(DiagnosisFilter(outcome=str(Outcome.COMPLETED)), "", limit)

    async def history(self, kind: FailureType, own: AttemptKey) -> AsyncIterator[tuple[ReplayGroup, LabelledCase]]:
        """What a rule for ``kind`` is replayed on, without the attempt that it is learned from."""
        remaining = {ReplayGroup.COMPLETED: HEALTHY, ReplayGroup.OTHER_TYPE: OTHERS}
        seen: Counter[FailureType] = Counter()
        async for record in self._recent():
            group = _group_of(record, kind)
            if record.attempt == own:
                continue
            if group is None:
                continue
            if not remaining[group]:
                continue
            seen[known_type(record)] += 1
            if group is ReplayGroup.OTHER_TYPE and seen[known_type(record)] > _OF_TYPE:
                continue
            remaining[group] -= 1
            yield group, await self.case_of(record)
        async for record in self.confirmed(CONFIRMED):
            if record.attempt != own:
                yield ReplayGroup.CONFIRMED, await self.case_of(record)

    async def judged(self) -> AsyncIterator[LabelledCase]:
        """Every attempt whose cause a person named, oldest first; where people spoke twice, by the later diagnosis."""
        latest: dict[AttemptKey, DiagnosisRecord] = {}
        after = ""
        while page := await self.store.cases.judged(after, _PAGE):
            for diagnosis in page:
                judged = await self.store.diagnoses.find(diagnosis)
                if judged and judged.feedback:
                    latest[judged.attempt] = judged
            after = page[-1]
        for record in sorted(latest.values(), key=lambda record: record.created):
            if category_of(known_type(record)) is not Category.UNKNOWN:
                yield await self.case_of(record)

    async def in_clean_runs(self, case: LabelledCase, root: Line) -> bool:
        """Whether clean runs of the job's family print lines like ``root`` (where such runs are stored)."""
        family = clean_runs_id(case.facts.job)
        stored = (await self.store.node_logs.parts([family], 0, newest=baseline.KEPT)).get(family, [])
        log = await self.logs.load(case.record.attempt)
        return await asyncio.to_thread(_printed_by_clean_runs, log, stored, root)

    async def _recent(self) -> AsyncIterator[DiagnosisRecord]:
        after, count = "", 0
        while count < RECENT:
            page = await self.store.diagnoses.page(DiagnosisFilter(), after, _PAGE)
            if not page:
                return
            for record in page:
                yield record
            count += len(page)
            after = page[-1].id

    async def confirmed(self, limit: int) -> AsyncIterator[DiagnosisRecord]:
        """Failures whose cause is confirmed, those that changed last first."""
        for diagnosis in await self.store.feedback.confirmed(limit):
            record = await self.store.diagnoses.find(diagnosis)
            if record and category_of(known_type(record)) is not Category.UNKNOWN:
                yield record


def _group_of(record: DiagnosisRecord, kind: FailureType) -> ReplayGroup | None:
    """A verdict of a model or a confirmed failure does not prove that an attempt is of another type."""
    verdict, cause = record.diagnosis, known_type(record)
    if (verdict.outcome, cause) == (Outcome.COMPLETED, FailureType.COMPLETED):
        return ReplayGroup.COMPLETED
    if cause is kind:
        return None
    if category_of(cause) is Category.UNKNOWN:
        return None
    if record.feedback:
        return ReplayGroup.OTHER_TYPE
    if verdict.decided_by.startswith(("rule:", "heuristic:")):
        return ReplayGroup.OTHER_TYPE
    return None


def _printed_by_clean_runs(log: AttemptLog, stored: Sequence[bytes], root: Line) -> bool:
    diff = baseline.diff(log.digest, baseline.load(stored))
    if diff.runs < RUNS_NEEDED:
        return False
    return (root.number, root.stream) in diff.known
