"""Contract of retention: what is old goes whole and by steps, and what anybody needs stays."""

from dataclasses import replace
from time import time as wall_time

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.retention import Dropped
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    AttemptKey,
    ConfirmedFailure,
    Event,
    EventKind,
    EvidenceKind,
    Feedback,
    FeedbackVerdict,
    Job,
    NodeActor,
    NodeEvent,
    NodeEventKind,
    PlanState,
    RuntimeFile,
    Signature,
)
from diagnoser.model.logs import Cursor
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.taxonomy import FailureType
from diagnoser.observability.metrics import Metrics
from diagnoser.worker.retention import DAY, PAUSE, Retention, RetentionAges
from tests.contract.records import append, outbox_message, plan, record, the_claim

OLD = 1_000.0
CUTOFF = 10_000.0


async def diagnosed(store: SqlStore, id: str, key: AttemptKey, state: PlanState = PlanState.ADVISED) -> None:
    """An old attempt that ended, with its verdict and plan."""
    await store.logs.append([append(key, fatal=True)])
    claim = await the_claim(store)
    made = replace(plan(key, f"plan-{id}"), state=state)
    await store.work.save_diagnosis(claim, record(id, claim), made, [])


async def jobs_left(store: SqlStore) -> list[str]:
    return sorted({found.attempt.job for found in await store.diagnoses.page(DiagnosisFilter(), "", 100)})


async def test_an_old_attempt_goes_with_all_that_belongs_to_it(store: SqlStore) -> None:
    """Log, events, diagnoses, words, plans and dumps, and its job; what is counted is what went."""
    key = AttemptKey("old", 1)
    await store.jobs.register(Job("old", nodes=("gpu-1",)))
    await diagnosed(store, "01", key)
    await store.jobs.add_event(key, Event(EventKind.HEARTBEAT, OLD))
    await store.evidence.add_runtime_files(
        key, [RuntimeFile(EvidenceKind.STACKS, b"x" * 100, 3, "gpu-1", OLD)], due=False
    )
    dropped = await store.retention.drop_attempts(CUTOFF, 10)
    assert (dropped.attempts, dropped.diagnoses, dropped.plans) == (1, 1, 1)
    assert dropped.stored > len(b"delta")
    assert await store.jobs.find("old") is None
    assert await store.plans.find("plan-01") is None
    assert await store.diagnoses.page(DiagnosisFilter(text="NVRM"), "", 10) == []
    assert (await store.logs.pieces(key), await store.evidence.runtime_files(key)) == ([], [])
    assert await store.retention.stored_bytes() == 0
    assert await store.retention.drop_attempts(CUTOFF, 10) == Dropped()


async def test_what_anybody_needs_stays(store: SqlStore) -> None:
    """However old: a case that a person judged, a plan under way, a due attempt, and one that got lines lately."""
    await diagnosed(store, "01", AttemptKey("judged"))
    given = Feedback("f1", "01", OLD, FeedbackVerdict.CONFIRMED, "maria")
    judged = (FailureType.GPU_LOST, FeedbackVerdict.CONFIRMED, "maria", Signature())
    confirmed = ConfirmedFailure("01", AttemptKey("judged"), OLD, OLD, *judged)
    await store.feedback.add(given, confirmed)
    await diagnosed(store, "02", AttemptKey("waiting"), PlanState.WAITING)
    await diagnosed(store, "03", AttemptKey("sent"), PlanState.SENT)
    await diagnosed(store, "04", AttemptKey("late"))
    await store.logs.append([append(AttemptKey("late"), at=CUTOFF + 1, read=(await _cursor(store, "late")))])
    await diagnosed(store, "05", AttemptKey("gone"))
    await store.logs.append([append(AttemptKey("due"), fatal=True)])
    assert (await store.retention.drop_attempts(CUTOFF, 10)).attempts == 1
    assert await jobs_left(store) == ["judged", "late", "sent", "waiting"]
    assert await store.jobs.attempts("due") != []
    assert await store.retention.drop_dumps(CUTOFF, 10) == 0


async def _cursor(store: SqlStore, job: str) -> Cursor:
    key = AttemptKey(job)
    return next(iter((await store.logs.cursors([key]))[key].values()))


async def test_a_number_of_an_attempt_is_not_given_twice(store: SqlStore) -> None:
    """The last attempt goes alone, after the others; where one of these has to stay, so does the last."""
    for number in (1, 2):
        await diagnosed(store, f"0{number}", AttemptKey("twice", number))
        await diagnosed(
            store, f"1{number}", AttemptKey("kept", number), [PlanState.WAITING, PlanState.ADVISED][number - 1]
        )
    assert (await store.retention.drop_attempts(CUTOFF, 10)).attempts == 1
    assert await store.logs.current_attempt("twice") == 2
    assert (await store.retention.drop_attempts(CUTOFF, 10)).attempts == 1
    assert await store.jobs.find("twice") is None
    assert (await store.retention.drop_attempts(CUTOFF, 10)).attempts == 0
    assert await store.logs.current_attempt("kept") == 2


async def test_messages_go_once_they_are_done(store: SqlStore) -> None:
    """Those that are pending stay, however old."""
    await store.logs.append([append(fatal=True)])
    claim = await the_claim(store)
    messages = [outbox_message("a"), outbox_message("b"), outbox_message("c", created=CUTOFF)]
    await store.work.save_diagnosis(claim, record("01", claim), None, messages)
    due = {message.message.key: message for message in await store.outbox.claim(CUTOFF, 60.0, 10)}
    for key in ("a", "c"):
        await store.outbox.record_delivery(due[key], "sent")
    assert await store.retention.drop_messages(CUTOFF, 10) == 1
    assert [kept.message.key for kept in await store.outbox.messages()] == ["b", "c"]


async def test_what_happened_to_nodes_goes_but_for_their_state(store: SqlStore) -> None:
    """The last event of each node is still known."""
    for time in (OLD, OLD + 1):
        await store.nodes.add_event(NodeEvent("east", "gpu-1", NodeEventKind.RESUMED, NodeActor.PERSON, time))
    assert await store.retention.drop_node_events(CUTOFF, 1) == 1
    assert await store.retention.drop_node_events(CUTOFF, 10) == 1
    assert [mark.time for mark in await store.nodes.marks("east")] == [OLD + 1]


@pytest.fixture
def of_the_past(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's own clock does not tell that the test runs in another year."""
    clocks = store.retention.clocks

    async def without_database() -> tuple[float, float]:
        return (await clocks())[0], 0.0

    monkeypatch.setattr(store.retention, "clocks", without_database)


@pytest.mark.usefixtures("of_the_past")
@pytest.mark.parametrize("ages", [RetentionAges(attempts_days=30), RetentionAges(stored_bytes=1)])
async def test_retention_goes_by_steps_and_then_rests(store: SqlStore, ages: RetentionAges) -> None:
    """By age and by size; with nothing to do it looks again only after a pause."""
    for number in range(3):
        await diagnosed(store, f"0{number}", AttemptKey(f"job-{number}"))
    registry, now = CollectorRegistry(), [OLD + 7 * DAY]
    retention = Retention(store, lambda: now[0], ages, Metrics(registry), monotonic=lambda: now[0])
    assert await retention.step() == 0
    now[0] += 40 * DAY
    while await retention.step():
        pass
    assert await jobs_left(store) == []
    count = registry.get_sample_value("diagnoser_retention_dropped_total", {"kind": "diagnoses"})
    assert count == 3
    await diagnosed(store, "07", AttemptKey("next"))
    assert await retention.step() == 0
    now[0] += PAUSE
    assert await retention.step() == 1


@pytest.mark.usefixtures("of_the_past")
async def test_a_clock_that_leaps_ahead_is_followed_slowly(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By thirty days a day, and beside a replica whose clock is right for no more than a look; not at all where the
    database's clock differs."""
    registry, right, running = CollectorRegistry(), OLD + DAY, [0.0]
    metrics = Metrics(registry)
    sound = Retention(store, lambda: right, RetentionAges(), metrics)
    ahead = Retention(store, lambda: right + 400 * DAY, RetentionAges(), metrics, monotonic=lambda: running[0])
    assert await sound.trusted_time() == right
    trusted = list[float]()
    for _ in range(3):
        running[0] += DAY
        trusted.append((await ahead.trusted_time() - right) / DAY)
    await sound.trusted_time()
    running[0] += PAUSE
    trusted.append((await ahead.trusted_time() - right) / PAUSE)
    assert trusted == pytest.approx([30.0, 60.0, 90.0, 30.0], abs=0.1)
    assert registry.get_sample_value("diagnoser_retention_refused_total") == 4

    async def apart() -> tuple[float, float]:
        return right, right + 301.0

    monkeypatch.setattr(store.retention, "clocks", apart)
    assert await sound.trusted_time() == 0.0


async def test_the_database_s_clock_is_asked(store: SqlStore) -> None:
    """PostgreSQL has one of its own; SQLite has that of the service."""
    await store.retention.note_clock(7.5)
    last, database = await store.retention.clocks()
    assert last == 7.0 and (database == 0.0 or abs(database - wall_time()) < 300.0)


@pytest.mark.usefixtures("of_the_past")
async def test_retention_works_for_a_small_part_of_the_time(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that dropped something and took two seconds is followed by forty seconds of rest."""
    now = [OLD + 50 * DAY]
    retention = Retention(store, lambda: now[0], RetentionAges(attempts_days=30), Metrics(CollectorRegistry()))
    drop = retention.drop

    async def slowly(by: float) -> int:
        now[0] += 2.0
        return await drop(by)

    monkeypatch.setattr(retention, "drop", slowly)
    await diagnosed(store, "01", AttemptKey("first"))
    assert await retention.step() == 1
    await diagnosed(store, "02", AttemptKey("second"))
    now[0] += 39.0
    assert await retention.step() == 0
    now[0] += 1.0
    assert await retention.step() == 1


async def test_nothing_goes_without_a_setting(store: SqlStore) -> None:
    """Ages of 0 keep everything."""
    await diagnosed(store, "01", AttemptKey("old"))
    retention = Retention(store, lambda: 1e10, RetentionAges(), Metrics(CollectorRegistry()))
    assert await retention.drop() == 0
    assert await jobs_left(store) == ["old"]


async def test_jobs_that_never_ran_go(store: SqlStore) -> None:
    """A job that was registered, and nothing ever came of it; one that was registered lately waits for its launch."""
    await store.jobs.register(Job("never", created=OLD))
    await store.jobs.register(Job("lately", created=CUTOFF))
    await store.jobs.register(Job("ran", created=OLD))
    await store.logs.append([append(AttemptKey("ran"))])
    assert await store.retention.drop_empty_jobs(CUTOFF, 10) == 1
    assert [await store.jobs.find(job) is None for job in ("never", "lately", "ran")] == [True, False, False]
    await store.jobs.register(Job("again", created=OLD))
    later = CUTOFF + 40 * DAY
    retention = Retention(store, lambda: later, RetentionAges(attempts_days=39), Metrics(CollectorRegistry()))
    assert await retention.drop() > 0
    while await retention.drop():
        pass
    assert await store.jobs.find("again") is None
