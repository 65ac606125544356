"""The worker: claims what is due, saves it as one, and survives what goes wrong on the way."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from diagnoser.adapters.memory import LocalWakeSignal
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.model import Attempt, Diagnosis, Event, EventKind, Facts, Job, OutboxMessage, Plan
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Claim, Cursor, DiagnosisFilter, DiagnosisRecord
from diagnoser.worker.maintenance import RetentionConfig
from diagnoser.worker.worker import Enrich, Work, Worker, WorkerConfig, is_sound
from tests.contract.records import KEY, OUT, TIMING, append, diagnosis, effect, plan

PACE = WorkerConfig(lease=60.0, enrich=5.0, silent=1e6, bounds=RetentionConfig(crowd=3))
ALL = DiagnosisFilter(current_only=False)
SOUND = Diagnosis(Outcome.UNKNOWN, Category.NONE, FailureType.KEY_ERROR, 0.0, "heuristic:none")


class Bench:
    """A worker on a real store, with a scripted engine and a clock that the test moves."""

    def __init__(self, store: SqlStore, enrich: Enrich | None = None, pace: WorkerConfig = PACE) -> None:
        self.store = store
        self.now = 1000.0
        self.seen: list[tuple[list[bytes], Facts]] = []
        self.verdicts: list[Diagnosis | Exception] = []
        self.outbox = LocalWakeSignal()
        self.metrics = Metrics(CollectorRegistry())
        self.numbers = iter(range(1, 100))
        work = Work(self.diagnose, self.decide, b"+".join, enrich)
        self.worker = Worker(store, work, self.clock, LocalWakeSignal(), self.outbox, TIMING, self.metrics, pace)

    def clock(self) -> float:
        return self.now

    def diagnose(self, deltas: list[bytes], facts: Facts) -> Diagnosis:
        self.seen.append((deltas, facts))
        verdict = self.verdicts.pop(0) if self.verdicts else diagnosis()
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def decide(
        self, claim: Claim, verdict: Diagnosis, now: float
    ) -> tuple[DiagnosisRecord, Plan | None, list[OutboxMessage]]:
        number = next(self.numbers)
        record = DiagnosisRecord(f"{number:02}", claim.attempt.key, claim.attempt.revision, now, True, verdict)
        return record, plan(), [effect(f"effect-{number}")]

    async def lines(self, at: float = 100.0, fatal: bool = True, delta: bytes = b"delta") -> None:
        read: Cursor | None = (await self.store.cursors([KEY]))[KEY].get(OUT)
        await self.store.append([append(at=at, fatal=fatal, read=read, delta=delta)])

    async def found(self) -> list[DiagnosisRecord]:
        return await self.store.diagnoses(ALL, "", 10)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await open_store(f"sqlite:///{tmp_path}/test.db")
    yield opened
    await opened.close()


async def test_a_due_attempt_is_diagnosed_and_saved_with_what_follows(store: SqlStore) -> None:
    """One step turns a due attempt into diagnosis, plan and effects, and wakes the outbox."""
    bench = Bench(store)
    await store.register(Job(KEY.job, cluster="east", created=50.0))
    await bench.lines(delta=b"one")
    await bench.lines(delta=b"two")
    ended = Event(EventKind.EXIT, 110.0, code=1)
    await store.add_event(KEY, ended)
    assert (await bench.worker.step(), await bench.worker.step()) == (1, 0)
    ((deltas, facts),) = bench.seen
    assert deltas == [b"one", b"two"]
    assert facts == Facts(Job(KEY.job, cluster="east", created=50.0), 1, (ended,))
    (record,) = await bench.found()
    assert (record.diagnosis, record.plan, record.revision) == (diagnosis(), plan(), 3)
    assert len(await store.effects()) == 1
    await asyncio.wait_for(bench.outbox.wait(60.0), 5.0)
    labels = {"outcome": "failed", "type": "gpu_lost"}
    assert bench.metrics.registry.get_sample_value("diagnoser_diagnoses_total", labels) == 1


async def test_a_sound_attempt_that_runs_on_is_released(store: SqlStore) -> None:
    """A fatal mark without a cause behind it stores nothing and is not looked at again."""
    bench = Bench(store)
    bench.verdicts = [SOUND]
    await bench.lines()
    assert (await bench.worker.step(), await bench.worker.step()) == (1, 0)
    assert await bench.found() == []
    assert (await store.attempts(KEY.job))[0].fatal is None


async def test_an_attempt_that_ended_gets_its_verdict_also_without_a_cause(store: SqlStore) -> None:
    """Once it has ended, "completed" and "unknown" are answers."""
    bench = Bench(store)
    bench.verdicts = [SOUND]
    await store.add_event(KEY, Event(EventKind.EXIT, 110.0, code=0))
    await bench.worker.step()
    assert [record.diagnosis for record in await bench.found()] == [SOUND]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_a_run_without_findings_is_sound(outcome: Outcome) -> None:
    """A hang or a failure is a finding even when no line shows the cause."""
    claim = Claim(attempt(None), Job(KEY.job), "token")
    verdict = replace(SOUND, outcome=outcome)
    assert is_sound(claim, verdict) == (outcome in (Outcome.COMPLETED, Outcome.UNKNOWN))
    assert not is_sound(claim, replace(verdict, root_cause=diagnosis().root_cause))
    assert not is_sound(replace(claim, attempt=attempt(110.0)), verdict)


def attempt(ended: float | None) -> Attempt:
    return Attempt(KEY, 100.0, ended=ended)


async def test_a_diagnosis_that_fails_waits_longer_each_time(store: SqlStore) -> None:
    """A log that the engine cannot read neither blocks others nor is tried in a hot loop."""
    bench = Bench(store)
    bench.verdicts = [ValueError("a fault of the engine"), ValueError("again")]
    await bench.lines()
    with capture_logs() as logs:
        assert (await bench.worker.step(), await bench.worker.step()) == (1, 0)
    assert [entry["reason"] for entry in logs] == ["diagnosis_failed"]
    bench.now += 119.0
    assert await bench.worker.step() == 0
    bench.now += 1.0
    assert await bench.worker.step() == 1
    bench.now += 239.0
    assert await bench.worker.step() == 0
    bench.now += 1.0
    assert await bench.worker.step() == 1
    assert len(await bench.found()) == 1


async def test_a_worker_that_died_before_the_save_is_replaced(store: SqlStore) -> None:
    """What a dead worker held is diagnosed once by the next one when the lease ends."""
    bench = Bench(store)
    await bench.lines()
    await store.claim_attempts(bench.now, TIMING, PACE.lease, 1)
    assert await bench.worker.step() == 0
    bench.now += PACE.lease
    assert await bench.worker.step() == 1
    assert len(await bench.found()) == 1


async def test_a_worker_that_is_cancelled_half_way_leaves_nothing_behind(store: SqlStore) -> None:
    """Killed between the verdict and the save, an attempt has no diagnosis and no effects, and is done again."""
    bench = Bench(store)
    await bench.lines()
    save, reached = store.save_diagnosis, asyncio.Event()

    async def never(*arguments: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    store.save_diagnosis = never  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(bench.worker.step())
    await reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    store.save_diagnosis = save  # type: ignore[method-assign]
    assert (await bench.found(), await store.effects()) == ([], [])
    bench.now += PACE.lease
    assert await bench.worker.step() == 1
    assert (len(await bench.found()), len(await store.effects())) == (1, 1)


async def test_a_worker_that_was_overtaken_saves_nothing(store: SqlStore) -> None:
    """When the lease ran out and somebody else holds the attempt, the verdict is dropped."""
    bench = Bench(store)
    await bench.lines()
    others: list[Claim] = []
    save = store.save_diagnosis

    async def late(claim: Claim, *rest: object) -> None:
        bench.now += PACE.lease
        others.extend(await store.claim_attempts(bench.now, TIMING, PACE.lease, 1))
        await save(claim, *rest)  # type: ignore[arg-type]

    store.save_diagnosis = late  # type: ignore[method-assign, assignment]
    with capture_logs() as logs:
        await bench.worker.step()
    assert [entry["reason"] for entry in logs] == ["overtaken"]
    assert await bench.found() == []
    await save(others[0], *bench.decide(others[0], diagnosis(), bench.now))


async def test_the_lease_is_kept_while_a_diagnosis_takes_its_time(store: SqlStore) -> None:
    """A long diagnosis is not started a second time by another worker."""
    bench = Bench(store, pace=replace(PACE, lease=0.03))
    await bench.lines()
    extended = asyncio.Event()
    extend = store.extend

    async def seen(claim: Claim, until: float) -> None:
        await extend(claim, until)
        extended.set()

    store.extend = seen  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()

    def slow(deltas: list[bytes], facts: Facts) -> Diagnosis:
        asyncio.run_coroutine_threadsafe(extended.wait(), loop).result(30.0)
        return diagnosis()

    bench.worker._work = replace(bench.worker._work, diagnose=slow)
    assert await bench.worker.step() == 1
    assert len(await bench.found()) == 1


async def test_a_database_that_is_away_is_waited_for(store: SqlStore) -> None:
    """The loop goes on after the database comes back, without a crash."""
    bench = Bench(store, pace=replace(PACE, poll=0.001))
    await bench.lines()
    claim, faults = store.claim_attempts, [Unavailable("database away")] * 3

    async def flaky(*arguments: object) -> list[Claim]:
        if faults:
            raise faults.pop()
        return await claim(*arguments)  # type: ignore[arg-type]

    store.claim_attempts = flaky  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(bench.worker.run())
    await asyncio.wait_for(bench.outbox.wait(60.0), 30.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(await bench.found()) == 1


async def test_crowded_attempts_are_compacted_though_they_run(store: SqlStore) -> None:
    """A long healthy run does not pile up deltas: they are merged without waiting for its end."""
    bench = Bench(store)
    for number in range(4):
        await bench.lines(fatal=False, delta=b"%d" % number)
    assert await bench.worker.step() == 0
    assert [delta.data for delta in await store.deltas(KEY)] == [b"0+1+2+3"]


async def test_deltas_that_cannot_be_merged_are_left_alone_for_a_while(store: SqlStore) -> None:
    """A merge that fails is told once, not at every round."""
    bench = Bench(store)

    def broken(deltas: list[bytes]) -> bytes:
        raise ValueError("not a delta")

    bench.worker._housekeeping._merge = broken
    for _ in range(4):
        await bench.lines(fatal=False)
    with capture_logs() as logs:
        await bench.worker.step()
        await bench.worker.step()
    assert [entry["event"] for entry in logs] == ["merge_failed"]
    assert len(await store.deltas(KEY)) == 4


async def test_a_better_verdict_is_published_after_the_first(store: SqlStore) -> None:
    """Enrichment comes after the save, sees the log and the published verdict, and replaces it."""
    better = diagnosis("what the model cites")
    asked: list[tuple[str, list[bytes], str]] = []

    async def enrich(record: DiagnosisRecord, deltas: list[bytes], facts: Facts) -> Diagnosis | None:
        asked.append((record.id, deltas, facts.job.id))
        return better

    bench = Bench(store, enrich)
    await bench.lines()
    await bench.worker.step()
    await bench.worker.finish()
    assert asked == [("01", [b"delta"], KEY.job)]
    assert [(found.id, found.current, found.diagnosis) for found in await bench.found()] == [
        ("02", True, better),
        ("01", False, diagnosis()),
    ]


async def test_a_model_that_hangs_delays_nobody(store: SqlStore) -> None:
    """Attempts are saved while an enrichment waits, and the deadline ends it."""

    async def hang(record: DiagnosisRecord, deltas: list[bytes], facts: Facts) -> Diagnosis | None:
        await asyncio.Event().wait()
        raise AssertionError

    bench = Bench(store, hang, replace(PACE, enrich=0.05, enrich_at_once=1))
    await bench.lines()
    await bench.worker.step()
    assert len(await bench.found()) == 1
    with capture_logs() as logs:
        await bench.worker.finish()
    assert [entry["reason"] for entry in logs] == ["enrichment_late"]
    assert [found.id for found in await bench.found()] == ["01"]


@pytest.mark.parametrize("answer", [None, ValueError("a fault of the model stage")])
async def test_without_a_better_verdict_the_first_one_stands(store: SqlStore, answer: Exception | None) -> None:
    """Nothing found and a fault in the model stage leave the published verdict current."""

    async def enrich(record: DiagnosisRecord, deltas: list[bytes], facts: Facts) -> Diagnosis | None:
        if answer:
            raise answer
        return None

    bench = Bench(store, enrich)
    await bench.lines()
    await bench.worker.step()
    await bench.worker.finish()
    assert [(found.id, found.current) for found in await bench.found()] == [("01", True)]
    assert len(await store.effects()) == 1


async def test_a_better_verdict_on_old_lines_is_dropped(store: SqlStore) -> None:
    """When a newer verdict was published meanwhile, the late answer on the older lines changes nothing."""
    go = asyncio.Event()

    async def enrich(record: DiagnosisRecord, deltas: list[bytes], facts: Facts) -> Diagnosis | None:
        if record.id != "01":
            return None
        await go.wait()
        return diagnosis("late")

    bench = Bench(store, enrich)
    await bench.lines()
    await bench.worker.step()
    await bench.lines(at=990.0)
    bench.now = 1100.0
    await bench.worker.step()
    go.set()
    await bench.worker.finish()
    assert [(found.id, found.current) for found in await bench.found()] == [("02", True), ("01", False)]


async def test_a_run_that_fell_silent_is_looked_at_ever_more_rarely(store: SqlStore) -> None:
    """A sound one is looked at again when its silence has doubled; one that hangs gets its verdict."""
    bench = Bench(store, pace=replace(PACE, silent=300.0, look=1.0))
    await bench.lines(at=1000.0, fatal=False)
    bench.verdicts = [SOUND, replace(diagnosis(), outcome=Outcome.HUNG)]
    looked = []
    for bench.now in (1299.0, 1301.0, 1400.0, 1601.0, 1603.0, 9000.0):
        looked.append(await bench.worker.step())
    assert looked == [0, 1, 0, 0, 1, 0]
    assert [record.diagnosis.outcome for record in await bench.found()] == [Outcome.HUNG]
