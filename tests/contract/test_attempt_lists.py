"""Contract of the list of attempts."""

from itertools import product
from typing import Any

import pytest
from sqlalchemy import event

from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import NODE_LOG, AttemptKey, Event, EventKind, Job
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import AttemptState, AttemptSummary, JobFilter
from diagnoser.model.sorting import NEWEST, Sort
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from tests.contract.records import append, claimed, record

SILENT_SINCE = 1_000.0


async def running(store: SqlStore, job: str, at: float = 1_500.0) -> None:
    await store.logs.append([append(AttemptKey(job), at=at)])


async def ended(store: SqlStore, job: str, at: float) -> None:
    await store.logs.append([append(AttemptKey(job), at=at - 10)])
    await store.jobs.add_event(AttemptKey(job), Event(EventKind.EXIT, at, code=0))


async def failed(store: SqlStore, job: str, id: str, at: float, *, has_ended: bool = True) -> None:
    await store.logs.append([append(AttemptKey(job), at=at - 10, fatal=True)])
    if has_ended:
        await store.jobs.add_event(AttemptKey(job), Event(EventKind.EXIT, at, code=1))
    (claim,) = [claim for claim in await claimed(store, at + 1_000) if claim.attempt.key.job == job]
    await store.work.save_diagnosis(claim, record(id, claim, created=at + 5), None, [])


async def listed(store: SqlStore, state: AttemptState | None = None, after: str = "", limit: int = 10) -> list[str]:
    return [attempt.key.job for attempt in await store.attempts.page(state, SILENT_SINCE, after, limit)]


async def fill(store: SqlStore) -> None:
    await running(store, "run-a", 1_400.0)
    await running(store, "run-b", 1_300.0)
    await running(store, "quiet-a", 900.0)
    await running(store, "quiet-b", 950.0)
    await ended(store, "done-a", 300.0)
    await ended(store, "done-b", 200.0)
    await failed(store, "failed-a", "01", 250.0)
    await failed(store, "failed-b", "02", 350.0)


@pytest.mark.parametrize(
    ("state", "jobs"),
    [
        (AttemptState.RUNNING, ["run-a", "run-b"]),
        (AttemptState.SILENT, ["quiet-b", "quiet-a"]),
        (AttemptState.ENDED, ["failed-b", "done-a", "failed-a", "done-b"]),
        (AttemptState.FAILED, ["failed-b", "failed-a"]),
        (None, ["run-a", "run-b", "quiet-b", "quiet-a", "failed-b", "done-a", "failed-a", "done-b"]),
    ],
)
async def test_each_state_lists_its_attempts_the_newest_first(
    store: SqlStore, state: AttemptState | None, jobs: list[str]
) -> None:
    """Whole, and the same page by page; without a state the running ones come first."""
    await fill(store)
    assert await listed(store, state) == jobs
    for size in (1, 2, 3):
        paged: list[str] = []
        after = ""
        while page := await store.attempts.page(state, SILENT_SINCE, after, size):
            paged += [attempt.key.job for attempt in page]
            after = page[-1].position
        assert paged == jobs, size


async def test_an_attempt_shows_its_current_verdict(store: SqlStore) -> None:
    """With the id that leads to it; one without a verdict has none."""
    await fill(store)
    by_job = {attempt.key.job: attempt for attempt in await store.attempts.page(None, SILENT_SINCE, "", 10)}
    bad, good = by_job["failed-a"], by_job["done-a"]
    assert (bad.diagnosis, bad.outcome, bad.category, bad.type) == (
        "01",
        Outcome.FAILED,
        Category.INFRASTRUCTURE,
        FailureType.GPU_LOST,
    )
    assert (good.diagnosis, good.outcome, good.ended, good.last_line) == ("", None, 300.0, 290.0)
    assert bad.state(SILENT_SINCE) is AttemptState.FAILED
    assert good.state(SILENT_SINCE) is AttemptState.ENDED


async def test_a_failure_without_a_reported_end_is_among_the_failed(store: SqlStore) -> None:
    """A log shipper alone reports no end; the verdict says enough."""
    await failed(store, "shipped", "01", 500.0, has_ended=False)
    (summary,) = await store.attempts.page(AttemptState.FAILED, SILENT_SINCE, "", 10)
    assert summary.state(SILENT_SINCE) is AttemptState.FAILED
    assert await listed(store, AttemptState.ENDED) == []


async def test_an_attempt_that_just_began_is_running(store: SqlStore) -> None:
    """Before its first line; one that never printed is silent after a while."""
    await store.jobs.add_event(AttemptKey("new"), Event(EventKind.STARTED, 1_200.0))
    await store.jobs.add_event(AttemptKey("mute"), Event(EventKind.STARTED, 800.0))
    assert await listed(store, AttemptState.RUNNING) == ["new"]
    assert await listed(store, AttemptState.SILENT) == ["mute"]
    assert await store.attempts.count_running(SILENT_SINCE) == 1
    await running(store, "quiet", 900.0)
    await running(store, "abandoned", 400.0)
    assert await store.attempts.count_silent(500.0, SILENT_SINCE) == 1


async def test_logs_of_nodes_are_no_jobs(store: SqlStore) -> None:
    """They are stored like attempts, and stay out of the list."""
    await store.logs.append([append(AttemptKey(f"{NODE_LOG}east/gpu-1", 5), at=1_500.0)])
    assert await listed(store) == []


@pytest.mark.parametrize("after", ["nonsense", "running:", "running:x:1:job", "ended:1.0:1:job", "failed:01"])
async def test_a_cursor_of_another_list_is_refused(store: SqlStore, after: str) -> None:
    """The answer says what a cursor is, instead of a page that skips or repeats."""
    with pytest.raises(BadInput, match="is not the `next` of a page"):
        await store.attempts.page(AttemptState.RUNNING, SILENT_SINCE, after, 10)


async def test_pages_are_ranges_of_indexes(store: SqlStore, url: str) -> None:
    """No query reads all attempts or all diagnoses."""
    if not url.startswith("sqlite"):
        pytest.skip("what PostgreSQL plans depends on its statistics, which an empty database lacks")
    queries: list[tuple[str, Any]] = []

    def keep(connection: object, cursor: object, statement: str, values: Any, *more: object) -> None:
        queries.append((statement, values))

    event.listen(store.db._engine.sync_engine, "before_cursor_execute", keep)
    await store.attempts.page(None, SILENT_SINCE, "", 10)
    await store.attempts.page(AttemptState.ENDED, SILENT_SINCE, "ended:5.0:1:j", 10)
    await store.attempts.page(AttemptState.FAILED, SILENT_SINCE, "failed:01", 10)
    await store.attempts.count_running(SILENT_SINCE)
    event.remove(store.db._engine.sync_engine, "before_cursor_execute", keep)
    engine = create_engine(url)
    async with engine.connect() as connection:
        plans = [
            [str(tuple(row)[-1]) for row in await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]
            for statement, values in queries
            if "SELECT" in statement
        ]
    await engine.dispose()
    scans = {step for steps in plans for step in steps if step.startswith(("SCAN attempts", "SCAN diagnoses"))}
    assert scans <= {"SCAN attempts USING INDEX attempts_ended"}
    assert any("attempts_unended" in step for step in plans[0])


def test_a_summary_is_heard_at_its_last_line_or_its_begin() -> None:
    """So that an attempt without lines has an age, too."""
    assert AttemptSummary(AttemptKey("j"), 5.0, 0.0, None, 0).heard == 5.0
    assert AttemptSummary(AttemptKey("j"), 5.0, 7.0, None, 0).heard == 7.0


FOUND_BY: list[tuple[JobFilter, list[str]]] = [
    (JobFilter(user="maria"), ["a", "b"]),
    (JobFilter(user="maria", framework="nemo"), ["b"]),
    (JobFilter(cluster="east"), ["a", "c"]),
    (JobFilter(cluster="east", framework="nemo"), []),
]


async def test_attempts_are_found_by_their_jobs(store: SqlStore) -> None:
    """By user, cluster and framework, in each state and order; none failed."""
    for job in (
        Job("a", "east", framework="megatron", tenant="maria"),
        Job("b", "west", framework="nemo", tenant="maria"),
        Job("c", "east", framework="megatron", tenant="kai"),
    ):
        await store.jobs.register(job)
        await running(store, job.id)
    for state, sort in product((None, AttemptState.RUNNING, AttemptState.FAILED), (NEWEST, Sort("job"))):
        for where, jobs in FOUND_BY:
            rows = await store.attempts.page(state, SILENT_SINCE, "", 10, sort, where)
            expected = [] if state is AttemptState.FAILED else jobs
            assert sorted(row.key.job for row in rows) == expected, (state, sort, where)
    assert await store.alerts.jobs_down("no-such-incident") == frozenset()
