"""What clean runs of a family leave for the next one: what they print, and how long they pause."""

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import zstandard

from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.compress import AttemptLog, Compressor, baseline
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.context import DiagnosisContext, clean_runs_id, family_of
from diagnoser.diagnosis.node_logs import hour_of
from diagnoser.model import (
    Attempt,
    AttemptKey,
    CheckpointPhase,
    CleanRun,
    Diagnosis,
    Event,
    EventKind,
    Facts,
    Job,
    LineBlock,
    Stage,
    Stream,
)
from diagnoser.model.logs import Append
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import Claim
from tests.rule_files import ANALYZER

NOW = 1_772_400_000.0
COMPLETED = Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 1.0, "heuristic:exit_event")
JOB = Job("run-1", name="mix")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await open_store(f"sqlite:///{tmp_path}/test.db")
    yield opened
    await opened.close()


def steps(first: int, last: int, at: float) -> list[tuple[float, str]]:
    return [(at + n - first, f"iteration {n:8d}/    9000 | lm loss: {9 - n / 100:.4f} |") for n in range(first, last)]


def log_of(lines: list[tuple[float, str]]) -> AttemptLog:
    compressor = ANALYZER.compressor()
    for number, (received, text) in enumerate(lines, 1):
        compressor.feed(LineBlock(Stream(), text.encode(), number, received=received))
    return AttemptLog(compressor.take())


async def test_the_pauses_of_a_clean_run_are_known_to_the_next_one(store: SqlStore) -> None:
    """A clean run paused for two minutes: five minutes into such a pause the next run does not hang, for all that its
    own log shows; without that run it would, and after seven minutes it does."""
    context = DiagnosisContext(store, AttemptLogs(store, Compressor), lambda: NOW, baseline_days=30)
    attempt = Attempt(AttemptKey(JOB.id), NOW, events=(Event(EventKind.EXIT, NOW, code=0),))
    paused = log_of([*steps(1, 30, NOW), *steps(30, 60, NOW + 148)])
    await context.record_baseline(Claim(attempt, JOB, ""), COMPLETED, paused)
    known = await context.baseline(Job("run-2", name="mix"))
    assert known.runs[0].pauses[Stage.TRAIN] == 120.0
    running, last = log_of(steps(1, 30, NOW)), NOW + 28

    def outcome(quiet: float, facts: Facts) -> Outcome:
        return ANALYZER.analyze(running, facts, last + quiet).outcome

    with_family, alone = Facts(failed=(last, last), baseline=known), Facts(failed=(last, last))
    assert (outcome(330.0, with_family), outcome(330.0, alone)) == (Outcome.UNKNOWN, Outcome.HUNG)
    assert outcome(420.0, with_family) is Outcome.HUNG


def test_models_of_other_sizes_do_not_lend_each_other_their_pauses() -> None:
    """What a small one compiles in a minute takes a large one half an hour; of one size only numbers differ."""
    names = ("llama-7b-r3", "llama-7b-r12", "llama-70b-r3", "llama-1.5B_x", "node7b2", "llama-r3")
    found = [family_of(Job(name, name=name)) for name in names]
    assert found == ["//llama-b-r:7b", "//llama-b-r:7b", "//llama-b-r:70b", "//llama-.B_x:1.5B", "//nodeb", "//llama-r"]


async def test_clean_runs_that_an_older_version_stored_are_still_known(store: SqlStore) -> None:
    """They tell of no pauses; what the family prints is not learned anew."""
    fields = {"name": "run-0/1", "lines": 3, "counts": [[7, 3]], "unmatched": [], "filters": [], "asked": 0.0}
    old = zstandard.ZstdCompressor().compress(orjson.dumps(fields))
    context = DiagnosisContext(store, AttemptLogs(store, Compressor), lambda: NOW, baseline_days=30)
    await store.logs.append([Append(AttemptKey(clean_runs_id(JOB, 2), hour_of(NOW)), old, NOW, {}, False)])
    await context.store_run(JOB, CleanRun("run-1/1", 3, {7: 4}, pauses={"train": 9.0}))
    runs = (await context.baseline(JOB)).runs
    assert [(run.name, dict(run.counts), dict(run.pauses)) for run in runs] == [
        ("run-0/1", {7: 3}, {}),
        ("run-1/1", {7: 4}, {"train": 9.0}),
    ]
    assert baseline.load([]).runs == ()


async def test_the_facts_hold_the_checkpoints_of_the_attempts_before(store: SqlStore) -> None:
    """A launch that fails before its own first save goes back to one of them."""
    saved = Event(EventKind.CHECKPOINT, NOW, step=40, path="/ckpt/40", phase=CheckpointPhase.VERIFIED)
    await store.jobs.add_event(AttemptKey("run-1", 1), saved)
    context = DiagnosisContext(store, AttemptLogs(store, Compressor), lambda: NOW)
    for number, earlier in ((1, ()), (2, ((saved,),))):
        claim = Claim(Attempt(AttemptKey("run-1", number), NOW), JOB, "t")
        assert (await context.facts(claim)).earlier_checkpoints == earlier
