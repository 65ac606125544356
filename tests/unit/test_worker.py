"""The worker: claims what is due, saves it as one, and survives what goes wrong on the way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.compress import AttemptLog
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.localize.hang_detection import ExpectedSilence
from diagnoser.model import (
    Attempt,
    AttemptKey,
    Baseline,
    Diagnosis,
    Event,
    EventKind,
    Facts,
    HangFindings,
    HangSuspect,
    Job,
    Provenance,
    Stage,
    SuspectKind,
    TransitionResult,
)
from diagnoser.model.errors import Unavailable
from diagnoser.model.logs import Cursor
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.planner import Decision
from diagnoser.worker.worker import WorkerConfig, is_sound
from tests.contract.records import KEY, OUT, TIMING, append, diagnosis, outbox_message, plan
from tests.databases import sqlite_store
from tests.scripted_worker import Bystander, delta_of, scripted_worker

CONFIG = WorkerConfig(TIMING, lease=60.0, llm_deadline=5.0, hang_check_idle=1e6)
IDLE = replace(CONFIG, hang_check_idle=15.0, hang_diagnosis_idle=300.0, hang_check_interval=1.0)
ALL = DiagnosisFilter(current_only=False)
QUICK_STEPS = ExpectedSilence(Stage.TRAIN, 0.0, 1.0, 11.0, 60.0, 11.0)
SOUND = Diagnosis(Outcome.UNKNOWN, Category.NONE, FailureType.KEY_ERROR, 0.0, "heuristic:none")


class Bench(Bystander):
    """A worker on a real store, with a scripted engine and planner, and a clock that the test moves."""

    def __init__(
        self,
        store: SqlStore,
        llm_stage: Any = None,
        config: WorkerConfig = CONFIG,
        evidence: "Evidence | None" = None,
    ) -> None:
        self.store = store
        self.now = 1000.0
        self.seen: list[tuple[list[str], Facts]] = []
        self.verdicts: list[Diagnosis | Exception] = []
        self.outbox = LocalWakeSignal()
        self.metrics = Metrics(CollectorRegistry())
        self.numbers = iter(range(1, 100))
        self.limit: ExpectedSilence | None = None
        self.worker = scripted_worker(
            store,
            self,
            self,
            self.clock,
            config,
            self.metrics,
            llm_stage=llm_stage,
            outbox=self.outbox,
            evidence=cast(EvidenceCollection | None, evidence),
        )

    def clock(self) -> float:
        return self.now

    async def patience(self, job: Job, log: AttemptLog, known: Baseline) -> ExpectedSilence | None:
        return self.limit

    async def analyze(self, log: AttemptLog, facts: Facts) -> Diagnosis:
        self.seen.append((texts(log), facts))
        verdict = self.verdicts.pop(0) if self.verdicts else diagnosis()
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def decide(self, claim: Claim, diagnosis: Diagnosis, now: float) -> Decision:
        number = next(self.numbers)
        record = DiagnosisRecord(f"{number:02}", claim.attempt.key, claim.attempt.revision, now, True, diagnosis)
        return Decision(
            record, plan(), (outbox_message(f"effect-{number}"),), lambda proposal, _: TransitionResult(proposal)
        )

    async def lines(self, at: float = 100.0, fatal: bool = True, text: str = "a line") -> None:
        read: Cursor | None = (await self.store.logs.cursors([KEY]))[KEY].get(OUT)
        await self.store.logs.append(
            [append(at=at, fatal=fatal, read=read, delta=delta_of(text, read.next if read else 1))]
        )

    async def found(self) -> list[DiagnosisRecord]:
        return await self.store.diagnoses.page(ALL, "", 10)


@dataclass
class ScriptedStage:
    """A model's stage whose answer the test scripts."""

    answer: Callable[[DiagnosisRecord, AttemptLog, Facts], Awaitable[Diagnosis | None]]

    async def run(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        return await self.answer(record, log, facts)


def texts(log: AttemptLog) -> list[str]:
    return [line.text for line in log.digest.lines]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def test_a_due_attempt_is_diagnosed_and_saved_with_what_follows(store: SqlStore) -> None:
    """One step turns a due attempt into diagnosis, plan and messages, and wakes the outbox."""
    bench = Bench(store)
    await store.jobs.register(Job(KEY.job, cluster="east", created=50.0))
    await bench.lines(text="one")
    await bench.lines(text="2001-09-09T01:46:40Z step 7 loss 0.5")
    ended = Event(EventKind.EXIT, 110.0, code=1)
    await store.jobs.add_event(KEY, ended)
    assert (await bench.worker.step(), await bench.worker.step()) == (1, 0)
    ((lines, facts),) = bench.seen
    assert sorted(lines) == ["2001-09-09T01:46:40Z step 7 loss 0.5", "one"]
    assert [attempt.first_step for attempt in await store.jobs.attempts(KEY.job)] == [1e9]
    assert facts == Facts(Job(KEY.job, cluster="east", created=50.0), 1, (ended,))
    (record,) = await bench.found()
    assert (record.diagnosis, record.plan, record.revision) == (diagnosis(), plan(), 3)
    assert len(await store.outbox.messages()) == 1
    await asyncio.wait_for(bench.outbox.wait(3600.0), 60.0)
    labels = {"category": "infrastructure", "type": "gpu_lost"}
    assert bench.metrics.registry.get_sample_value("diagnoser_diagnoses_total", {"outcome": "failed"}) == 1
    assert bench.metrics.registry.get_sample_value("diagnoser_failures_total", labels) == 1


async def test_a_sound_attempt_that_runs_on_is_released(store: SqlStore) -> None:
    """A fatal mark without a cause behind it stores nothing and is not looked at again."""
    bench = Bench(store)
    bench.verdicts = [SOUND]
    await bench.lines()
    assert (await bench.worker.step(), await bench.worker.step()) == (1, 0)
    assert await bench.found() == []
    assert (await store.jobs.attempts(KEY.job))[0].fatal is None


async def test_an_attempt_that_ended_gets_its_verdict_also_without_a_cause(store: SqlStore) -> None:
    """Once it has ended, "completed" and "unknown" are answers."""
    bench = Bench(store)
    bench.verdicts = [SOUND]
    await store.jobs.add_event(KEY, Event(EventKind.EXIT, 110.0, code=0))
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


async def test_the_wait_after_failures_has_a_bound(store: SqlStore) -> None:
    """However often it failed, an attempt is tried again after the longest wait."""
    bench = Bench(store, config=replace(CONFIG, backoff_max=100.0))
    bench.verdicts = [ValueError("a fault of the engine")]
    await bench.lines()
    assert await bench.worker.step() == 1
    bench.now += 100.0
    assert await bench.worker.step() == 1
    assert len(await bench.found()) == 1


async def test_a_verdict_on_a_part_of_the_log_is_not_published_once_the_run_has_ended(store: SqlStore) -> None:
    """Of a run that ends while its log is analysed, the last words decide: the lines before them told of something
    else, and people would be sent the wrong cause first."""
    bench = Bench(store)
    analyze = bench.analyze

    async def slow(log: AttemptLog, facts: Facts) -> Diagnosis:
        verdict = await analyze(log, facts)
        if len(bench.seen) == 1:
            await bench.lines(at=bench.now, text="uncorrectable ECC error encountered")
            await store.jobs.add_event(KEY, Event(EventKind.EXIT, bench.now, code=1))
            bench.now += TIMING.exit_grace
        return verdict

    bench.analyze = slow  # type: ignore[method-assign]
    bench.verdicts = [diagnosis("No such file or directory"), diagnosis("ECC")]
    await bench.lines(text="/bin/bash: /etc/release: No such file or directory")
    with capture_logs() as logs:
        assert (await bench.worker.step(), await bench.worker.step(), await bench.worker.step()) == (1, 1, 0)
    assert [entry["reason"] for entry in logs if "reason" in entry] == ["ended_meanwhile", "saved"]
    assert [(record.diagnosis, record.revision) for record in await bench.found()] == [(diagnosis("ECC"), 3)]
    assert len(await store.outbox.messages()) == 1
    assert (await store.jobs.attempts(KEY.job))[0].fatal == 100.0, "its first fatal line still tells when it failed"


async def test_a_worker_that_died_before_the_save_is_replaced(store: SqlStore) -> None:
    """What a dead worker held is diagnosed once by the next one when the lease ends."""
    bench = Bench(store)
    await bench.lines()
    await store.work.claim_attempts(bench.now, TIMING, CONFIG.lease, 1)
    assert await bench.worker.step() == 0
    bench.now += CONFIG.lease
    assert await bench.worker.step() == 1
    assert len(await bench.found()) == 1


async def test_a_worker_that_is_cancelled_half_way_leaves_nothing_behind(store: SqlStore) -> None:
    """Killed between the verdict and the save, an attempt has no diagnosis and no messages, and is done again."""
    bench = Bench(store)
    await bench.lines()
    save, reached = store.work.save_diagnosis, asyncio.Event()

    async def never(*arguments: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    store.work.save_diagnosis = never  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(bench.worker.step())
    await reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    store.work.save_diagnosis = save  # type: ignore[method-assign]
    assert (await bench.found(), await store.outbox.messages()) == ([], [])
    assert await bench.worker.step() == 1, "a process that stops hands over what it holds"
    assert (len(await bench.found()), len(await store.outbox.messages())) == (1, 1)


async def test_a_worker_that_was_overtaken_saves_nothing(store: SqlStore) -> None:
    """When the lease ran out and somebody else holds the attempt, the verdict is dropped."""
    bench = Bench(store)
    await bench.lines()
    others: list[Claim] = []
    save = store.work.save_diagnosis

    async def late(claim: Claim, *rest: object) -> TransitionResult:
        bench.now += CONFIG.lease
        others.extend(await store.work.claim_attempts(bench.now, TIMING, CONFIG.lease, 1))
        return await save(claim, *rest)  # type: ignore[arg-type]

    store.work.save_diagnosis = late  # type: ignore[method-assign, assignment]
    with capture_logs() as logs:
        await bench.worker.step()
    assert [entry["reason"] for entry in logs] == ["overtaken"]
    assert await bench.found() == []
    decision = bench.decide(others[0], diagnosis(), bench.now)
    await save(others[0], decision.record, decision.plan, decision.messages)


async def test_the_lease_is_kept_while_a_diagnosis_takes_its_time(store: SqlStore) -> None:
    """A long diagnosis is not started a second time by another worker."""
    bench = Bench(store, config=replace(CONFIG, lease=0.03))
    await bench.lines()
    extended = asyncio.Event()
    extend = store.work.extend

    async def seen(claim: Claim, until: float) -> None:
        await extend(claim, until)
        extended.set()

    store.work.extend = seen  # type: ignore[method-assign]

    async def slow(log: AttemptLog, facts: Facts) -> Diagnosis:
        await extended.wait()
        return diagnosis()

    bench.analyze = slow  # type: ignore[method-assign]
    assert await bench.worker.step() == 1
    assert len(await bench.found()) == 1


async def test_a_database_that_is_away_is_waited_for(store: SqlStore) -> None:
    """The loop goes on after the database comes back, without a crash."""
    bench = Bench(store, config=replace(CONFIG, poll=0.001))
    await bench.lines()
    claim, faults = store.work.claim_attempts, [Unavailable("database away")] * 3

    async def flaky(*arguments: object) -> list[Claim]:
        if faults:
            raise faults.pop()
        return await claim(*arguments)  # type: ignore[arg-type]

    store.work.claim_attempts = flaky  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(bench.worker.run())
    await asyncio.wait_for(bench.outbox.wait(3600.0), 60.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(await bench.found()) == 1


async def test_a_better_verdict_is_published_after_the_first(store: SqlStore) -> None:
    """Enrichment comes after the save, sees the log and the published verdict, and replaces it."""
    better = diagnosis("what the model cites")
    asked: list[tuple[str, list[str], str]] = []

    async def enrich(record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        asked.append((record.id, texts(log), facts.job.id))
        return better

    bench = Bench(store, ScriptedStage(enrich))
    await bench.lines()
    await bench.worker.step()
    await bench.worker.finish()
    assert asked == [("01", ["a line"], KEY.job)]
    assert [(found.id, found.current, found.diagnosis) for found in await bench.found()] == [
        ("02", True, better),
        ("01", False, diagnosis()),
    ]


async def test_a_model_that_hangs_delays_nobody(store: SqlStore) -> None:
    """Attempts are saved while an enrichment waits for its answer and further ones for a seat."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def hang(record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        asked.set()
        await answer.wait()
        return None

    bench = Bench(store, ScriptedStage(hang), replace(CONFIG, llm_deadline=3600.0, llm_stages_max=1))
    await bench.lines()
    await bench.worker.step()
    await asked.wait()
    await bench.lines(at=990.0)
    bench.now = 1100.0
    await bench.worker.step()
    assert [found.id for found in await bench.found()] == ["02", "01"]
    answer.set()
    await bench.worker.finish()


async def test_a_model_that_never_answers_is_given_up(store: SqlStore) -> None:
    """The deadline ends the enrichment, and the published verdict stands."""

    async def hang(record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        await asyncio.Event().wait()
        raise AssertionError

    bench = Bench(store, ScriptedStage(hang), replace(CONFIG, llm_deadline=0.05))
    await bench.lines()
    with capture_logs() as logs:
        await bench.worker.step()
        await bench.worker.finish()
    assert sorted(entry["reason"] for entry in logs) == ["llm_stage_late", "saved"]
    assert [found.id for found in await bench.found()] == ["01"]


@pytest.mark.parametrize("answer", [None, ValueError("a fault of the model stage")])
async def test_without_a_better_verdict_the_first_one_stands(store: SqlStore, answer: Exception | None) -> None:
    """Nothing found and a fault in the model stage leave the published verdict current."""

    async def enrich(record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        if answer:
            raise answer
        return None

    bench = Bench(store, ScriptedStage(enrich))
    await bench.lines()
    await bench.worker.step()
    await bench.worker.finish()
    assert [(found.id, found.current) for found in await bench.found()] == [("01", True)]
    assert len(await store.outbox.messages()) == 1


async def test_a_better_verdict_on_old_lines_is_dropped(store: SqlStore) -> None:
    """When a newer verdict was published meanwhile, the late answer on the older lines changes nothing."""
    go = asyncio.Event()

    async def enrich(record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        if record.id != "01":
            return None
        await go.wait()
        return diagnosis("late")

    bench = Bench(store, ScriptedStage(enrich))
    await bench.lines()
    await bench.worker.step()
    await bench.lines(at=990.0)
    bench.now = 1100.0
    await bench.worker.step()
    go.set()
    with capture_logs() as logs:
        await bench.worker.finish()
    assert [(found.id, found.current) for found in await bench.found()] == [("02", True), ("01", False)]
    reasons = [entry["reason"] for entry in logs]
    assert "llm_verdict_stale" in reasons and "llm_verdict_saved" not in reasons


async def test_a_run_that_fell_silent_is_looked_at_ever_more_rarely(store: SqlStore) -> None:
    """A sound one is looked at again when its silence has doubled; one that hangs gets its verdict."""
    bench = Bench(store, config=replace(CONFIG, hang_check_idle=300.0, hang_check_interval=1.0))
    await bench.lines(at=1000.0, fatal=False)
    bench.verdicts = [SOUND, replace(diagnosis(), outcome=Outcome.HUNG)]
    looked = []
    for bench.now in (1299.0, 1301.0, 1400.0, 1601.0, 1603.0, 9000.0):
        looked.append(await bench.worker.step())
    assert looked == [0, 1, 0, 0, 1, 0]
    assert [record.diagnosis.outcome for record in await bench.found()] == [Outcome.HUNG]


async def test_no_run_hangs_because_the_service_was_away(store: SqlStore) -> None:
    """After a start or a standstill of our own, shippers have a moment to send what they kept."""
    bench = Bench(store, config=replace(CONFIG, hang_check_idle=300.0, hang_check_interval=1.0, catch_up=60.0))
    bench.verdicts = [replace(diagnosis(), outcome=Outcome.HUNG)]
    await bench.lines(at=400.0, fatal=False)
    looked = []
    for bench.now in (1000.0, 1008.0, 9000.0, 9008.0, 9016.0, 9024.0, 9032.0, 9040.0, 9048.0, 9056.0, 9060.0):
        looked.append(await bench.worker.step())
    assert looked == [0] * 10 + [1]


async def test_time_in_which_a_run_was_suspended_or_the_machine_slept_is_no_silence(store: SqlStore) -> None:
    """It hangs once it has been silent for too long after it was resumed, and after the clock leapt."""
    bench = Bench(store, config=replace(CONFIG, hang_check_idle=10.0, hang_diagnosis_idle=300.0, catch_up=60.0))
    bench.worker.evidence = Evidence()  # type: ignore[assignment]
    bench.verdicts = [replace(diagnosis(), outcome=Outcome.HUNG)]
    bench.limit = ExpectedSilence(Stage.TRAIN, 0.0, 50.0, 150.0, 250.0, 150.0)
    await bench.lines(at=1000.0, fatal=False)
    told, counts = {1010.0: EventKind.SUSPENDED, 3000.0: EventKind.RESUMED}, {}
    for bench.now in (*map(float, range(1000, 3200, 10)), *map(float, range(30_000, 30_300, 10))):
        if bench.now in told:
            await store.jobs.add_event(KEY, Event(told[bench.now], bench.now, provenance=Provenance.SCHEDULER))
        await bench.worker.step()
        counts[bench.now] = len(await bench.found())
    assert [counts[moment] for moment in (2990.0, 3190.0, 30_200.0, 30_290.0)] == [0, 0, 0, 1]


async def test_a_service_that_stands_still_now_and_then_finds_a_hang_all_the_same(store: SqlStore) -> None:
    """Its database is away for half a minute every two: the run is silent through all of that."""
    bench = Bench(store, config=replace(CONFIG, hang_check_idle=10.0, hang_diagnosis_idle=300.0, catch_up=60.0))
    bench.worker.evidence = Evidence()  # type: ignore[assignment]
    bench.verdicts = [replace(diagnosis(), outcome=Outcome.HUNG)]
    bench.limit = ExpectedSilence(Stage.TRAIN, 0.0, 50.0, 150.0, 250.0, 150.0)
    await bench.lines(at=1000.0, fatal=False)
    for begin in range(1000, 1600, 120):
        for bench.now in map(float, range(begin, begin + 100, 10)):
            await bench.worker.step()
    assert len(await bench.found()) == 1


async def test_a_run_that_was_sound_in_spite_of_a_fatal_line_may_still_hang(store: SqlStore) -> None:
    """The next look for silent runs finds it, as if it had not been looked at for its line."""
    bench = Bench(store, config=replace(CONFIG, hang_check_idle=300.0, hang_check_interval=1.0))
    await bench.lines(at=600.0)
    bench.verdicts = [SOUND, replace(diagnosis(), outcome=Outcome.HUNG)]
    assert await bench.worker.step() == 1
    bench.now += 1.0
    assert await bench.worker.step() == 1
    assert [record.diagnosis.outcome for record in await bench.found()] == [Outcome.HUNG]


async def test_silent_runs_are_looked_for_now_and_then(store: SqlStore) -> None:
    """That reads all running attempts, which each round must not."""
    bench = Bench(store, config=replace(CONFIG, hang_check_interval=30.0))
    looks, claim_silent = [], store.work.claim_silent

    async def seen(now: float, silent: float, lease: float, limit: int) -> list[Claim]:
        looks.append(now)
        return await claim_silent(now, silent, lease, limit)

    store.work.claim_silent = seen  # type: ignore[method-assign]
    for bench.now in (1000.0, 1001.0, 1029.9, 1030.0, 1059.9):
        await bench.worker.step()
    assert looks == [1000.0, 1030.0]


STEADY = ExpectedSilence(Stage.TRAIN, 0.0, 1.0, suspected=15.0, confirmed=60.0, in_training=15.0)


@dataclass
class Evidence:
    """Stands for what asks agents for dumps. asked, ended: newest lines of the attempts, by what became of them."""

    came: bool = False
    asked: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    async def suspected(self, claim: Claim) -> bool:
        self.asked.append(claim.attempt.last_line)
        return self.came

    async def look_again(self, claim: Claim) -> None:
        raise AssertionError("no plan waits for a second look")

    async def failed(self, claim: Claim, diagnosis: Diagnosis) -> None:
        self.ended.append(claim.attempt.last_line)


async def test_dumps_that_came_have_a_suspected_run_diagnosed_at_once(store: SqlStore) -> None:
    """Whether it hangs is then for the dumps to say, long before the silence alone is certain."""
    bench = Bench(store, config=IDLE, evidence=Evidence(came=True))
    bench.limit = STEADY
    await bench.lines(at=1000.0, fatal=False)
    bench.verdicts = [replace(diagnosis(), outcome=Outcome.HUNG)]
    bench.now = 1016.0
    assert await bench.worker.step() == 1
    assert [record.diagnosis.outcome for record in await bench.found()] == [Outcome.HUNG]


async def test_a_run_with_a_rhythm_is_suspected_and_then_diagnosed_in_its_own_time(store: SqlStore) -> None:
    """After three steps evidence is asked for; when the silence is certain the attempt is diagnosed; in between
    its log is not read."""
    evidence = Evidence()
    bench = Bench(store, config=IDLE, evidence=evidence)
    bench.limit = STEADY
    await bench.lines(at=1000.0, fatal=False)
    bench.verdicts = [replace(diagnosis(), outcome=Outcome.HUNG)]
    looked = []
    for bench.now in (1014.0, 1015.0, 1016.0, 1040.0, 1059.0, 1060.0):
        looked.append(await bench.worker.step())
    assert looked == [0, 1, 0, 0, 0, 1]
    assert (evidence.asked, evidence.ended) == ([1000.0, 1000.0], [1000.0])
    assert [record.diagnosis.outcome for record in await bench.found()] == [Outcome.HUNG]


async def test_a_run_that_is_merely_silent_is_not_diagnosed(store: SqlStore) -> None:
    """An error that training survived is no failure because the next step takes half a minute."""
    bench = Bench(store, config=IDLE)
    bench.limit = replace(STEADY, usual=30.0, suspected=90.0, confirmed=300.0, in_training=90.0)
    await bench.lines(at=1000.0, fatal=False)
    bench.now = 1030.0
    assert await bench.worker.step() == 1
    assert bench.seen == [] and await bench.found() == []


async def test_a_run_with_slow_steps_is_looked_at_once(store: SqlStore) -> None:
    """Afterwards it is left alone for as long as three steps take."""
    bench = Bench(store, config=IDLE)
    bench.limit = replace(STEADY, usual=30.0, suspected=90.0, confirmed=300.0, in_training=90.0)
    looked = []
    for minute in range(10):
        await bench.lines(at=1000.0 + 60 * minute, fatal=False)
        bench.now = 1050.0 + 60 * minute
        looked.append(await bench.worker.step())
    assert looked == [1] + 9 * [0]


async def test_a_run_without_a_rhythm_is_looked_at_ever_less_often(store: SqlStore) -> None:
    """One that prints each twenty seconds, and no steps, is soon left alone."""
    bench = Bench(store, config=IDLE)
    looked = []
    for number in range(20):
        await bench.lines(at=1000.0 + 20 * number, fatal=False)
        bench.now = 1019.0 + 20 * number
        looked.append(await bench.worker.step())
    assert looked == 3 * [1] + 17 * [0]


async def test_more_silent_runs_than_a_round_takes_are_looked_at_in_the_next_one(store: SqlStore) -> None:
    """The time between two searches is for when there are few."""
    bench = Bench(store, config=replace(IDLE, hang_check_interval=30.0, claims_max=2))
    for job in range(5):
        key = AttemptKey(f"run-{job}", 1)
        await store.logs.append([replace(append(at=1000.0, delta=delta_of("a line")), attempt=key)])
    bench.now = 1020.0
    assert [await bench.worker.step() for _ in range(4)] == [2, 2, 1, 0]


async def test_a_run_that_says_it_ended_is_judged_after_a_short_silence(store: SqlStore) -> None:
    """Its scheduler's agent has said nothing yet. Without that word it is only looked at, and left for long."""
    bench = Bench(store, config=IDLE)
    await store.jobs.register(Job(KEY.job, nodes=("n1",), created=1.0, registered=True), 1)
    await bench.lines(at=1000.0, fatal=False)
    bench.now = 1016.0
    assert await bench.worker.step() == 1
    assert await bench.found() == []
    await store.jobs.add_event(KEY, Event(EventKind.EXIT, 1016.5, code=1))
    bench.now = 1018.0
    assert await bench.worker.step() == 1
    assert [record.diagnosis.outcome for record in await bench.found()] == [Outcome.FAILED]
    ((_, facts),) = bench.seen
    assert not [event for event in facts.events if event.kind is EventKind.EXIT], "no fact, only a hint"


async def test_a_run_that_its_scheduler_shows_running_is_no_failure_while_it_may_go_on(store: SqlStore) -> None:
    """A line looks fatal; the verdict waits for a silence that the run's rhythm does not explain, and each new line
    begins that anew."""
    bench = Bench(store)
    bench.limit = ExpectedSilence(Stage.TRAIN, 0.0, 30.0, 90.0, 300.0, 90.0)
    await store.jobs.register(Job(KEY.job, nodes=("n1",), created=1.0, registered=True), 1)
    await bench.lines(at=1000.0)
    for printed, silent in ((None, 21.0), (1040.0, 89.0)):
        if printed:
            await bench.lines(at=printed, fatal=False)
        bench.now = (printed or 1000.0) + silent
        assert await bench.worker.step() == 1
        assert await bench.worker.step() == 0, "put off"
    assert await bench.found() == []
    bench.now = 1130.5
    assert await bench.worker.step() == 1
    assert [record.diagnosis for record in await bench.found()] == [diagnosis()]


@pytest.mark.parametrize("limit", [None, QUICK_STEPS])
async def test_any_run_may_go_on_for_a_minute(store: SqlStore, limit: ExpectedSilence | None) -> None:
    """A process died as the job began, and its peers wait without a word."""
    bench = Bench(store)
    bench.limit = limit
    await store.jobs.register(Job(KEY.job, nodes=("n1",), created=1.0, registered=True), 1)
    await bench.lines(at=1000.0)
    counts = []
    for bench.now in (1059.0, 1060.5):
        await bench.worker.step()
        counts.append(len(await bench.found()))
    assert counts == [0, 1]


async def test_a_run_that_only_talks_after_an_error_fails_within_an_hour(store: SqlStore) -> None:
    """What is left of it prints each half minute, and no step: it would never be silent for long enough."""
    bench = Bench(store)
    await store.jobs.register(Job(KEY.job, nodes=("n1",), created=1.0, registered=True), 1)
    await bench.lines(at=1000.0)
    counts = []
    for printed in (4500.0, 4605.0):
        await bench.lines(at=printed, fatal=False)
        bench.now = printed + 21.0
        await bench.worker.step()
        counts.append(len(await bench.found()))
    assert counts == [0, 1]


async def test_a_long_stay_in_a_stage_is_no_failure_either(store: SqlStore) -> None:
    """No line looks fatal, but one of a run that is silent for minutes would explain a failure."""
    bench = Bench(store, config=IDLE)
    bench.limit = ExpectedSilence(Stage.EVAL, 0.0, 0.0, 540.0, 1800.0, 0.0, known=False)
    await store.jobs.register(Job(KEY.job, nodes=("n1",), created=1.0, registered=True), 1)
    await bench.lines(at=1000.0, fatal=False)
    counts = []
    for bench.now in (1301.0, 1302.0, 1541.0):
        counts.append((await bench.worker.step(), len(await bench.found())))
    assert counts == [(1, 0), (0, 0), (1, 1)]


async def test_ranks_that_wait_for_one_end_what_may_go_on(store: SqlStore) -> None:
    """A process died as the job began. After a minute of silence its peers are looked at: they show whom they await."""
    bench = Bench(store, evidence=Evidence())
    bench.limit = ExpectedSilence(Stage.INIT, 0.0, 0.0, 270.0, 900.0, 0.0, known=False)
    await store.jobs.register(Job(KEY.job, nodes=("n1",), created=1.0, registered=True), 1)
    await bench.lines(at=1000.0)
    at_work, stuck = (HangSuspect(3, kind, "", 0.8) for kind in (SuspectKind.AT_WORK, SuspectKind.STACK))
    seen = [diagnosis(), diagnosis(), *(replace(diagnosis(), hang=HangFindings((rank,))) for rank in (at_work, stuck))]
    bench.verdicts = [*seen]
    counts = []
    for bench.now in (1021.0, 1061.0, 1080.0, 1110.0):
        assert await bench.worker.step() == 1
        counts.append(len(await bench.found()))
    assert counts == [0, 0, 0, 1]
    assert not bench.verdicts


async def test_a_verdict_that_was_put_off_comes_with_the_end_of_the_run(store: SqlStore) -> None:
    """The scheduler tells the end long before the silence would have told it."""
    bench = Bench(store)
    bench.limit = ExpectedSilence(Stage.TRAIN, 0.0, 600.0, 1800.0, 6000.0, 1800.0)
    await store.jobs.register(Job(KEY.job, nodes=("n1",), created=1.0, registered=True), 1)
    await bench.lines(at=1000.0)
    bench.now = 1021.0
    assert (await bench.worker.step(), await bench.found()) == (1, [])
    await store.jobs.add_event(KEY, Event(EventKind.EXIT, 1030.0, code=1, provenance=Provenance.SCHEDULER))
    bench.now = 1033.0
    assert await bench.worker.step() == 1
    assert len(await bench.found()) == 1
