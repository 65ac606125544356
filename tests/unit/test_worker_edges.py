"""What the worker says of its work: the result of every claim, and a trace of every verdict."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog
from diagnoser.localize.hang_detection import ExpectedSilence
from diagnoser.model import Attempt, AttemptKey, Diagnosis, Event, EventKind, Facts, TransitionResult
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.observability.tracing import TraceStep
from diagnoser.worker.worker import failure_visible_at, is_sound
from tests.contract.records import KEY, diagnosis, the_claim
from tests.databases import sqlite_store
from tests.unit.test_worker import CONFIG, IDLE, SOUND, STEADY, Bench, ScriptedStage


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


class Traces:
    """Every step that was traced, with what it says."""

    def __init__(self) -> None:
        self.steps: list[tuple[TraceStep, AttemptKey, dict[str, object]]] = []

    def __call__(self, step: TraceStep, attempt: AttemptKey, since: float, **facts: object) -> None:
        self.steps.append((step, attempt, {"since": since, **facts}))

    def of(self, step: TraceStep) -> list[dict[str, object]]:
        return [facts for traced, _, facts in self.steps if traced is step]


async def test_each_verdict_is_traced(store: SqlStore) -> None:
    """The first one and the model's, each with its own diagnosis, its plan, and since when it was worked on."""
    better = replace(diagnosis("what the model cites"), decided_by="llm:m", confidence=0.5)

    async def enrich(record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        return better

    bench, traces = Bench(store, ScriptedStage(enrich)), Traces()
    bench.worker.trace = traces
    await bench.lines(at=100.0)
    await bench.worker.step()
    await bench.worker.finish()
    first = {"outcome": "failed", "type": "gpu_lost", "decided_by": "rule:gpu-lost", "confidence": 0.9, "since": 1000.0}
    second = first | {"decided_by": "llm:m", "confidence": 0.5}
    assert traces.of(TraceStep.DIAGNOSE) == [first | {"diagnosis": "01"}, second | {"diagnosis": "02"}]
    assert traces.of(TraceStep.ATTEMPT) == [{"since": 100.0}]
    assert {attempt for _, attempt, _ in traces.steps} == {KEY}


async def test_a_second_verdict_of_an_attempt_is_no_second_attempt(store: SqlStore) -> None:
    """Its span begins with its first sign, once."""
    bench, traces = Bench(store), Traces()
    bench.worker.trace = traces
    for at in (100.0, 990.0):
        await bench.lines(at=at)
        await bench.worker.step()
        bench.now += 200.0
    assert (len(traces.of(TraceStep.ATTEMPT)), len(traces.of(TraceStep.DIAGNOSE))) == (1, 2)


@pytest.mark.parametrize(
    ("times", "expected"),
    [({"fatal": 7.0, "ended": 9.0}, 7.0), ({"fatal": None, "ended": 9.0}, 9.0), ({"fatal": None, "ended": None}, 5.0)],
)
def test_the_failure_visible_at_of_an_end(times: dict[str, float | None], expected: float) -> None:
    """A fatal line, else the end, else the last line of a run that hangs."""
    assert failure_visible_at(replace(Attempt(KEY, 1.0, 5.0), **times)) == expected  # type: ignore[arg-type]


async def test_the_result_of_each_claim_is_logged(store: SqlStore) -> None:
    """With its job and attempt."""
    bench = Bench(store)
    bench.verdicts = [SOUND, ValueError("a fault of ours")]
    with capture_logs() as logs:
        for at in (100.0, 990.0):
            await bench.lines(at=at)
            await bench.worker.step()
            bench.now += 200.0
    told = [(entry["event"], entry["job"], entry["attempt"], entry["reason"]) for entry in logs]
    assert told == [
        ("attempt_handled", KEY.job, KEY.number, "sound"),
        ("attempt_failed", KEY.job, KEY.number, "diagnosis_failed"),
    ]
    assert (logs[1]["error_class"], logs[1]["log_level"], logs[0]["log_level"]) == ("ValueError", "error", "info")


async def test_a_fault_of_a_worker_that_was_overtaken_stops_nobody(store: SqlStore) -> None:
    """Its claim is somebody else's: it is not put off, and the round goes on."""
    bench = Bench(store, config=replace(CONFIG, lease=0.0))

    async def analyze(log: AttemptLog, facts: Facts) -> Diagnosis:
        await the_claim(store, now=bench.now + 1.0)
        raise ValueError("a fault of ours")

    bench.analyze = analyze  # type: ignore[method-assign]
    await bench.lines()
    with capture_logs() as logs:
        await bench.worker.step()
    assert [entry["reason"] for entry in logs if "reason" in entry][-1] in ("diagnosis_failed", "overtaken")


async def test_an_ended_attempt_is_never_sound(store: SqlStore) -> None:
    """Whatever its log shows: it gets a verdict."""
    await store.jobs.add_event(KEY, Event(EventKind.EXIT, 100.0, code=0))
    claim: Claim = await the_claim(store)
    assert not is_sound(claim, SOUND)
    running = replace(claim, attempt=replace(claim.attempt, ended=None))
    assert is_sound(running, SOUND)
    assert not is_sound(running, diagnosis())


@pytest.mark.parametrize(("limit", "reason"), [(STEADY, "suspected"), (None, "sound")])
async def test_a_run_that_is_silent_beyond_its_rhythm_is_suspected(
    store: SqlStore, limit: ExpectedSilence | None, reason: str
) -> None:
    """One without a rhythm is sound so far: the log says which."""
    bench = Bench(store, config=IDLE)
    bench.limit = limit
    await bench.lines(at=bench.now - 20.0, fatal=False)
    with capture_logs() as logs:
        await bench.worker.step()
    assert [entry["reason"] for entry in logs] == [reason]


async def test_what_a_better_verdict_plans_is_traced(store: SqlStore) -> None:
    """With the plan that follows from it."""

    async def enrich(record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        return diagnosis("what the model cites")

    bench, traces = Bench(store, ScriptedStage(enrich)), list[tuple[str, TransitionResult]]()

    def note(record: DiagnosisRecord, result: TransitionResult, started: float) -> None:
        traces.append((record.id, result))

    bench.worker._trace_verdict = note  # type: ignore[method-assign]
    await bench.lines()
    await bench.worker.step()
    await bench.worker.finish()
    assert [name for name, _ in traces] == ["01", "02"]
    assert all(isinstance(result, TransitionResult) for _, result in traces)
