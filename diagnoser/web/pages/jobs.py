"""The pages of jobs: what runs now, what fell silent and what ended; one job beside the runs of its family; and what
changed between two of them."""

from dataclasses import dataclass
from itertools import zip_longest

from fastapi import Request
from fastapi.responses import Response

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis.context import nodes_of
from diagnoser.localize.checkpoints import Checkpoint, reported
from diagnoser.model import Attempt, AttemptKey, Job
from diagnoser.model.job_contract import contract_of
from diagnoser.model.queries import AttemptState, DiagnosisFilter
from diagnoser.model.sorting import NEWEST
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.views import ListName
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.retry_history import family
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.jobs import RunQuery, find_attempt, find_job, latest, list_runs
from diagnoser.web.api.params import JobPath
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages.column_order import ColumnOrder, filled
from diagnoser.web.pages.rendering import Drawn, page_query, reading_pages
from diagnoser.web.pages.run_view import run_view
from diagnoser.web.pages.time_axis import TimeAxis, checkpoint_axis
from diagnoser.web.pages.views import views_of
from diagnoser.wording.phrases import contract_terms

FILTERS = ("user", "cluster", "framework")

router = reading_pages()


@router.get("/jobs")
async def jobs_page(request: Request, core: Core, logs: Logs, pages: Drawn) -> Response:
    query = page_query(RunQuery, request)
    runs = await list_runs(core, logs, query)
    typed = {name: getattr(query, name) for name in FILTERS}
    filters = filled({"state": query.state or "", **typed})
    order = ColumnOrder("/jobs", filters, query.order, NEWEST)
    return pages.draw(
        "jobs.html",
        runs=runs,
        states=list(AttemptState),
        chosen=query.state,
        typed=typed,
        running=await core.store.attempts.count_running(runs.silent_since),
        is_first=not query.cursor,
        order=order,
        next_url=order.page(runs.next),
        saved=await views_of(core, ListName.JOBS, order.chosen, query),
    )


RUNS = 8
"""Runs of a family beside each other."""
LOOKED_AT = 50
"""Runs among which the last one before a failure is looked for."""
DRAWN = 3
"""Attempts whose checkpoints are drawn: the newest."""


@dataclass(frozen=True, slots=True)
class Run:
    """One launch. record: its current diagnosis, None while there is none. nodes: as the scheduler or the registration
    says, empty where neither does. lasted: seconds from its beginning to the last that was heard of it.
    """

    key: AttemptKey
    record: DiagnosisRecord | None
    nodes: tuple[str, ...] = ()
    lasted: float = 0.0

    def nodes_since(self, other: "Run") -> tuple[list[str], list[str]]:
        """Nodes that came and nodes that went; none where those of one of the runs are not known."""
        if not self.nodes or not other.nodes:
            return [], []
        return sorted({*self.nodes} - {*other.nodes}), sorted({*other.nodes} - {*self.nodes})


def _checkpoints(attempt: Attempt, now: float) -> tuple[list[Checkpoint], TimeAxis] | None:
    """What the job reported of the checkpoints of one attempt, the newest first; None where it reported none."""
    axis = checkpoint_axis(attempt, now)
    saved = sorted(reported(attempt.events), key=lambda one: (one.step or 0, one.saved), reverse=True)
    return (saved, axis) if axis else None


@router.get("/jobs/{id}")
async def job_page(id: JobPath, core: Core, logs: Logs, pages: Drawn) -> Response:
    """With the runs of its family, of whatever job, beside each other."""
    store = core.store
    job = await find_job(store, id)
    attempts = await store.jobs.attempts(id)
    records = await store.diagnoses.page(DiagnosisFilter(family=family(job)), "", RUNS + 1)
    runs = [await _run(store, record.attempt, record) for record in records]
    newest = None
    if attempts and attempts[-1].last_line:
        newest = attempts[-1]
    contract = contract_of(job)
    return pages.draw(
        "job.html",
        job=job,
        contract=contract,
        contract_terms=list(contract_terms(contract)),
        newest=await run_view(logs, job, newest) if newest else None,
        silent_since=core.clock() - core.config.silent_seconds,
        attempts=attempts[::-1],
        records=await latest(store, id),
        family=family(job),
        runs=list(zip_longest(runs, runs[1:]))[:RUNS],
        checkpoints={attempt.key.number: _checkpoints(attempt, core.clock()) for attempt in attempts[-DRAWN:]},
    )


@router.get("/jobs/{id}/attempts/{attempt}/changes")
async def changes_page(id: JobPath, attempt: AttemptPath, core: Core, logs: Logs, pages: Drawn) -> Response:
    """What is different since the last run of the family that went well; where none did, since the run before."""
    store, key = core.store, AttemptKey(id, attempt)
    job = await find_job(store, id)
    await find_attempt(store, key)
    run = await _run(store, key, (await latest(store, id)).get(attempt))
    before = await _run_before(store, job, run)
    comparison = await logs.context.compare(key, before.key) if before else None
    return pages.draw("changes.html", job=job, run=run, before=before, comparison=comparison)


async def _run(store: SqlStore, key: AttemptKey, record: DiagnosisRecord | None) -> Run:
    job = await store.jobs.find(key.job)
    attempt = await store.jobs.attempt(key)
    if attempt is None or job is None:
        return Run(key, record)
    return Run(key, record, nodes_of(attempt, job), max(0.0, attempt.last_seen - attempt.opened))


async def _run_before(store: SqlStore, job: Job, run: Run) -> Run | None:
    """The last one of the family that completed before this one was diagnosed; else the last one of any outcome."""
    for outcome in (Outcome.COMPLETED.value, ""):
        records = await store.diagnoses.page(DiagnosisFilter(family=family(job), outcome=outcome), "", LOOKED_AT)
        for record in records:
            if record.attempt == run.key:
                continue
            if run.record is None:
                return await _run(store, record.attempt, record)
            if record.id < run.record.id:
                return await _run(store, record.attempt, record)
    return None
