"""Contract of the ledger of evaluation runs: two coordinators at once do the work of one."""

from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model.errors import Conflict
from diagnoser.model.evaluations import (
    BatchKind,
    BatchRecord,
    BatchState,
    EvaluationRun,
    RunProgress,
    RunState,
    Runtime,
    ShardRecord,
    ShardState,
    Suite,
    Task,
    TrialRecord,
    TrialShard,
    TrialState,
)

SUITE = Suite(
    "nightly", ("/ckpt/1000",), (Task("code", 10, ("infer", "{first}"), ("score",)), Task("maths", 4, (), ()))
)
RUN = EvaluationRun("r1", SUITE, "local@host", "/runs/r1", "/suites", 100.0)
LEFT, RIGHT = TrialShard("/ckpt/1000", "code", 0, 5), TrialShard("/ckpt/1000", "code", 5, 10)
MATHS = TrialShard("/ckpt/1000", "maths", 0, 4)
BATCH = BatchRecord("r1-a", "r1", BatchKind.INFER, "gpu-1", 0, 110.0, 30.0)
SCORING = BatchRecord("r1-s", "r1", BatchKind.SCORE, "", 0, 140.0, checkpoint="/ckpt/1000", task="code")
TIME = Runtime("code", "7B", "h100", 5, 12.5, 3.0)


async def look(store: SqlStore) -> RunProgress:
    progress = await store.evaluations.progress("r1")
    assert progress is not None
    return progress


async def states(store: SqlStore) -> dict[tuple[str, int, int], ShardState]:
    found = (await look(store)).shards
    return {(record.shard.task, record.shard.first, record.shard.last): record.state for record in found}


@pytest.fixture
async def cut(store: SqlStore) -> SqlStore:
    """A run with three waiting shards."""
    await store.evaluations.add_run(RUN)
    assert await store.evaluations.cut("r1", 0, (), (LEFT, RIGHT, MATHS))
    return store


async def inferred(store: SqlStore, batch: BatchRecord, *shards: TrialShard) -> bool:
    records = [ShardRecord(shard, ShardState.INFERRED, seconds=12.5, load=3.0) for shard in shards]
    return await store.evaluations.record_batch(
        replace(batch, state=BatchState.ENDED, ended=130.0), records, (), {"x": TIME}
    )


async def test_a_run_comes_back_as_it_was_made(store: SqlStore, second: SqlStore) -> None:
    """With its suite, its trials in the suite's order, and once only; the newest run is listed first."""
    await store.evaluations.add_run(RUN)
    with pytest.raises(Conflict):
        await second.evaluations.add_run(RUN)
    await store.evaluations.add_run(replace(RUN, id="r2", created=200.0))
    assert [run.id for run in await second.evaluations.runs(9)] == ["r2", "r1"]
    assert await second.evaluations.runs(1) == [replace(RUN, id="r2", created=200.0)]
    progress = await look(second)
    assert progress == RunProgress(RUN, tuple(TrialRecord("/ckpt/1000", task) for task in ("code", "maths")), (), ())
    assert await store.evaluations.progress("none") is None


async def test_a_cut_is_made_once(store: SqlStore, second: SqlStore) -> None:
    """Of two coordinators that cut the same samples one wins, and no sample is in two shards."""
    await store.evaluations.add_run(RUN)
    assert await store.evaluations.cut("r1", 0, (), (LEFT, RIGHT))
    assert not await second.evaluations.cut("r1", 0, (), (TrialShard("/ckpt/1000", "code", 0, 10),))
    assert await states(store) == {("code", 0, 5): ShardState.WAITING, ("code", 5, 10): ShardState.WAITING}


async def test_a_slot_and_a_shard_are_taken_once(cut: SqlStore, second: SqlStore) -> None:
    """A second batch on the slot, and one with a shard that runs, change nothing."""
    assert await cut.evaluations.start_batch(BATCH, (LEFT,))
    assert not await second.evaluations.start_batch(replace(BATCH, id="r1-b"), (RIGHT,))
    assert not await second.evaluations.start_batch(replace(BATCH, id="r1-c", slot=1), (LEFT, RIGHT))
    assert await second.evaluations.start_batch(replace(BATCH, id="r1-d", slot=1), (RIGHT,))
    found = await look(cut)
    assert [batch.id for batch in found.batches] == ["r1-a", "r1-d"]
    assert (await states(cut))["code", 5, 10] is ShardState.RUNNING


async def test_what_runs_is_not_cut(cut: SqlStore, second: SqlStore) -> None:
    """A cut that would take a running shard's samples is refused as a whole."""
    await cut.evaluations.start_batch(BATCH, (LEFT,))
    whole = TrialShard("/ckpt/1000", "code", 0, 10)
    assert not await second.evaluations.cut("r1", 1, (LEFT, RIGHT), (whole,))
    halves = (TrialShard("/ckpt/1000", "code", 5, 7), TrialShard("/ckpt/1000", "code", 7, 10))
    assert await second.evaluations.cut("r1", 1, (RIGHT, MATHS), (*halves, MATHS))
    assert (await states(cut))["code", 5, 10] is ShardState.SPLIT
    assert await cut.evaluations.cut("r1", 2, halves, (RIGHT,))
    assert (await states(cut))["code", 5, 10] is ShardState.WAITING


async def test_a_new_shard_has_failed_as_often_as_the_one_it_replaces(cut: SqlStore) -> None:
    """A sample that kills its process is not tried for ever in ever new shards."""
    await cut.evaluations.start_batch(BATCH, (LEFT,))
    failed = ShardRecord(LEFT, ShardState.WAITING, failures=2, error="exit code 9")
    assert await cut.evaluations.record_batch(replace(BATCH, state=BatchState.LOST, ended=120.0), [failed])
    assert await cut.evaluations.cut(
        "r1", 1, (LEFT, RIGHT), (TrialShard("/ckpt/1000", "code", 0, 3), TrialShard("/ckpt/1000", "code", 3, 10))
    )
    waiting = [record for record in (await look(cut)).shards if record.state is ShardState.WAITING]
    assert [record.failures for record in waiting] == [2, 2, 0], "code, code, maths"


async def test_a_batch_is_settled_once(cut: SqlStore, second: SqlStore) -> None:
    """Who comes second changes nothing, and what a batch does not run stays as it is."""
    await cut.evaluations.start_batch(BATCH, (LEFT,))
    assert await inferred(cut, BATCH, LEFT, RIGHT)
    assert not await inferred(second, BATCH, LEFT, RIGHT)
    assert await states(second) == {
        ("code", 0, 5): ShardState.INFERRED,
        ("code", 5, 10): ShardState.WAITING,
        ("maths", 0, 4): ShardState.WAITING,
    }
    assert (
        await second.evaluations.runtimes(["code"], 9) == [TIME]
        and await second.evaluations.runtimes(["maths"], 9) == []
    )
    assert await cut.evaluations.start_batch(replace(BATCH, id="r1-b"), (RIGHT,)), "the slot is free again"


async def test_a_trial_that_fails_takes_its_waiting_shards_along(cut: SqlStore) -> None:
    """Those of other trials go on waiting, and the first reason stays."""
    await cut.evaluations.start_batch(BATCH, (LEFT,))
    failed = TrialRecord("/ckpt/1000", "code", TrialState.FAILED, error="exit code 1")
    assert await cut.evaluations.record_batch(BATCH, [ShardRecord(LEFT, ShardState.FAILED, failures=3)], [failed])
    await cut.evaluations.record_batch(replace(BATCH, state=BatchState.ENDED), (), [replace(failed, error="later")])
    assert await states(cut) == {
        ("code", 0, 5): ShardState.FAILED,
        ("code", 5, 10): ShardState.CANCELLED,
        ("maths", 0, 4): ShardState.WAITING,
    }
    assert (await look(cut)).trials == (failed, TrialRecord("/ckpt/1000", "maths"))


async def test_a_trial_is_scored_by_one_batch_at_a_time(cut: SqlStore, second: SqlStore) -> None:
    """Only when it is to be scored; after a failure by another one, and not any more once it has its scores."""
    assert not await cut.evaluations.start_batch(SCORING, ())
    assert await cut.evaluations.begin_scoring("r1", [("/ckpt/1000", "code")]) == 1
    assert await second.evaluations.begin_scoring("r1", [("/ckpt/1000", "code")]) == 0
    assert await cut.evaluations.start_batch(SCORING, ())
    assert not await second.evaluations.start_batch(replace(SCORING, id="r1-t", slot=1), ())
    trial = TrialRecord("/ckpt/1000", "code", TrialState.SCORING, failures=1)
    assert await cut.evaluations.record_batch(replace(SCORING, state=BatchState.LOST, ended=150.0), (), [trial])
    again = replace(SCORING, id="r1-u", slot=1)
    assert await second.evaluations.start_batch(again, ())
    scored = replace(trial, state=TrialState.SCORED, scores={"pass@1": 0.25}, scored=160.0)
    assert await second.evaluations.record_batch(replace(again, state=BatchState.ENDED, ended=160.0), (), [scored])
    assert (await look(cut)).trials[0] == scored
    assert not await cut.evaluations.start_batch(replace(SCORING, id="r1-v"), ())


async def test_scores_are_computed_again_of_a_run_that_is_over(cut: SqlStore) -> None:
    """The run goes on until they are there."""
    await cut.evaluations.begin_scoring("r1", [("/ckpt/1000", "code")])
    await cut.evaluations.start_batch(SCORING, ())
    scored = TrialRecord("/ckpt/1000", "code", TrialState.SCORED, {"pass@1": 0.25}, scored=160.0)
    await cut.evaluations.record_batch(replace(SCORING, state=BatchState.ENDED, ended=160.0), (), [scored])
    assert await cut.evaluations.end_run("r1", RunState.ENDED, 170.0)
    assert await cut.evaluations.begin_scoring("r1", [("/ckpt/1000", "code")], again=True) == 1
    found = await look(cut)
    assert (found.run.state, found.run.ended, found.trials[0].state) == (RunState.RUNNING, None, TrialState.SCORING)


async def test_a_score_joins_the_time_of_its_shard(cut: SqlStore) -> None:
    """What inference took stays when the time of the metric comes."""
    await cut.evaluations.start_batch(BATCH, (LEFT,))
    await inferred(cut, BATCH, LEFT)
    await cut.evaluations.begin_scoring("r1", [("/ckpt/1000", "code")])
    await cut.evaluations.start_batch(SCORING, ())
    with_score = replace(TIME, seconds=99.0, score=7.0)
    await cut.evaluations.record_batch(replace(SCORING, state=BatchState.ENDED, ended=160.0), (), (), {"x": with_score})
    assert await cut.evaluations.runtimes(["code", "maths"], 9) == [replace(TIME, score=7.0)]


async def test_a_cancelled_run_starts_nothing(cut: SqlStore, second: SqlStore) -> None:
    """Its shards and trials are cancelled, as far as they are not over, and no batch begins after it."""
    await cut.evaluations.start_batch(BATCH, (LEFT,))
    assert await second.evaluations.end_run("r1", RunState.CANCELLED, 150.0)
    assert not await cut.evaluations.end_run("r1", RunState.ENDED, 151.0)
    assert set((await states(cut)).values()) == {ShardState.CANCELLED}
    assert {trial.state for trial in (await look(cut)).trials} == {TrialState.CANCELLED}
    assert not await cut.evaluations.start_batch(replace(BATCH, id="r1-b", slot=1), (RIGHT,))
    assert not await cut.evaluations.cut("r1", 1, (), (RIGHT,))
    assert await cut.evaluations.record_batch(replace(BATCH, state=BatchState.CANCELLED, ended=152.0))


async def test_old_runs_go_with_all_that_is_theirs(cut: SqlStore) -> None:
    """A run that is not over stays."""
    await cut.evaluations.start_batch(BATCH, (LEFT,))
    await inferred(cut, BATCH, LEFT)
    assert await cut.evaluations.drop(100.0, 9) == 0
    await cut.evaluations.end_run("r1", RunState.ENDED, 170.0)
    assert await cut.evaluations.drop(200.0, 9) == 2
    assert await cut.evaluations.progress("r1") is None and await cut.evaluations.runtimes(["code"], 9) == []


async def test_trials_of_several_runs_are_read_at_once(cut: SqlStore) -> None:
    """By run; and runs that ended long ago can be left out."""
    await cut.evaluations.add_run(replace(RUN, id="r2", created=200.0))
    assert {run: len(trials) for run, trials in (await cut.evaluations.trials_of(["r1", "r2"])).items()} == {
        "r1": 2,
        "r2": 2,
    }
    assert await cut.evaluations.end_run("r2", RunState.ENDED, 300.0)
    assert [run.id for run in await cut.evaluations.runs(9, 301.0)] == ["r1"]
    assert [run.id for run in await cut.evaluations.runs(9, 300.0)] == ["r2", "r1"]
