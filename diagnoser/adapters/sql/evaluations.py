"""Evaluation runs. The first statement of each change is its compare-and-set: who comes second changes nothing.

Nobody owns a run: the ledger is its whole state, and the id of a batch is the fence. A coordinator that was killed is
followed by another, and two at once do the work of one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

import orjson
from sqlalchemy import ColumnElement, RowMapping, Table, and_, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql.database import Repository, insert, insert_new
from diagnoser.adapters.sql.statements import pick, read_record
from diagnoser.adapters.sql.tables import trial_batches, trial_pieces, trial_runs, trial_runtimes
from diagnoser.adapters.sql.tables import trials as trial_table
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
    TrialRecord,
    TrialShard,
    TrialState,
)
from diagnoser.model.record_json import RecordJson, fields_of

_SUITE = RecordJson(Suite)
_AT_ONCE = 500
"""Rows that one statement names."""
_OPEN_SHARDS = (ShardState.WAITING, ShardState.RUNNING)
_OPEN_TRIALS = (TrialState.INFERRING, TrialState.SCORING)


class _Lost(Exception):
    """Somebody else was first: the transaction is rolled back."""


class EvaluationRepository(Repository):
    """The ledger of evaluation runs.

    Each change is one transaction; an answer of False says that somebody else was first and nothing has changed.
    """

    async def add_run(self, run: EvaluationRun) -> None:
        """With a trial for each checkpoint and task. Raises Conflict for an id that is there."""
        row = asdict(run) | {"suite": _SUITE.dump(run.suite)}
        async with self._db.writing() as connection:
            if not await insert_new(connection, trial_runs, [row]):
                raise Conflict(f"there is a run {run.id}")
            rows = []
            for checkpoint, task in product(run.suite.checkpoints, run.suite.tasks):
                rows.append(_trial_row(run.id, TrialRecord(checkpoint, task.name)))
            await insert_new(connection, trial_table, rows)

    async def runs(self, limit: int, ended_since: float | None = None) -> list[EvaluationRun]:
        """The newest first. ended_since: only those that have not ended before."""
        query = select(trial_runs).order_by(trial_runs.c.created.desc(), trial_runs.c.id).limit(limit)
        if ended_since is not None:
            query = query.where(or_(trial_runs.c.ended.is_(None), trial_runs.c.ended >= ended_since))
        return await self._db.rows(query, _run)

    async def progress(self, run: str) -> RunProgress | None:
        async with self._db.reading() as connection:
            found = (await connection.execute(select(trial_runs).where(trial_runs.c.id == run))).mappings().first()
            if found is None:
                return None
            record = _run(found)
            trials = map(_trial, await _rows_of(connection, trial_table, run))
            shards = map(_shard, await _rows_of(connection, trial_pieces, run))
            batches = map(partial(read_record, BatchRecord), await _rows_of(connection, trial_batches, run))
        return RunProgress(
            record,
            tuple(sorted(trials, key=_place_in(record.suite))),
            tuple(sorted(shards, key=lambda shard: shard.shard)),
            tuple(sorted(batches, key=lambda batch: (batch.started, batch.id))),
        )

    async def trials_of(self, runs: Collection[str]) -> dict[str, list[TrialRecord]]:
        """By run, in no order."""
        found: dict[str, list[TrialRecord]] = {run: [] for run in runs}
        query = select(trial_table).where(trial_table.c.run.in_(runs))
        async with self._db.reading() as connection:
            for row in (await connection.execute(query)).mappings():
                found[row["run"]].append(_trial(row))
        return found

    async def cut(self, run: str, cuts: int, old: Collection[TrialShard], new: Collection[TrialShard]) -> bool:
        """Put new shards in place of waiting ones, which hold the same samples. cuts: as it was read. False where one
        of those replaced does not wait any more."""
        mine = and_(
            trial_runs.c.id == run,
            trial_runs.c.cuts == cuts,
            trial_runs.c.state == RunState.RUNNING.value,
        )
        try:
            async with self._db.writing() as connection:
                if not (await connection.execute(update(trial_runs).where(mine).values(cuts=cuts + 1))).rowcount:
                    raise _Lost
                gone = await _taken(connection, run, set(old) - set(new), {"state": ShardState.SPLIT.value})
                for shard in sorted(set(new) - set(old)):
                    await _revive(connection, run, ShardRecord(shard, failures=_failures(shard, gone)))
        except _Lost:
            return False
        return True

    async def start_batch(self, batch: BatchRecord, shards: Sequence[TrialShard]) -> bool:
        """Take a free slot and waiting shards; for scoring, a trial that is to be scored. All or nothing."""
        try:
            async with self._db.writing() as connection:
                await _start(connection, batch, shards)
        except _Lost:
            return False
        return True

    async def record_batch(
        self,
        batch: BatchRecord,
        shards: Sequence[ShardRecord] = (),
        trials: Sequence[TrialRecord] = (),
        runtimes: Mapping[str, Runtime] = MappingProxyType({}),
    ) -> bool:
        """What has come out of a batch so far, and its state. Of shards only those that this batch runs are changed; a
        trial that is over keeps its state, and the waiting shards of a trial that fails are cancelled. runtimes: by a
        name that stays the same when they are stored again. False where the batch was over already."""
        row = trial_batches.c
        is_open = and_(row.id == batch.id, row.state == BatchState.RUNNING.value)
        changed = update(trial_batches).where(is_open).values(state=batch.state.value, ended=batch.ended)
        async with self._db.writing() as connection:
            if not (await connection.execute(changed)).rowcount:
                return False
            for record in shards:
                await _settle_shard(connection, batch, record)
            for trial in trials:
                await _settle_trial(connection, batch.run, trial)
            for name, runtime in runtimes.items():
                await connection.execute(self._runtime(name, runtime, batch.ended or batch.started))
        return True

    def _runtime(self, name: str, runtime: Runtime, now: float) -> Any:
        statement = self._db.insert(trial_runtimes).values({**asdict(runtime), "name": name, "time": now})
        return statement.on_conflict_do_update(
            index_elements=["name"],
            set_={"score": statement.excluded.score},
            where=statement.excluded.score.is_not(None),
        )

    async def begin_scoring(self, run: str, which: Collection[tuple[str, str]], again: bool = False) -> int:
        """Trials (checkpoint, task) whose shards are all inferred; how many changed state. again: also those scored or
        failed before, of a run that is over, which goes on."""
        row = trial_table.c
        before = (TrialState.INFERRING, TrialState.SCORED, TrialState.FAILED) if again else (TrialState.INFERRING,)
        found = and_(tuple_(row.checkpoint, row.task).in_(which), row.run == run, row.state.in_(before))
        values = {"state": TrialState.SCORING.value, "failures": 0, "error": ""}
        is_over = and_(trial_runs.c.id == run, trial_runs.c.state == RunState.ENDED.value)
        async with self._db.writing() as connection:
            changed = (await connection.execute(update(trial_table).where(found).values(values))).rowcount
            if again and changed:
                goes_on = {"state": RunState.RUNNING.value, "ended": None}
                await connection.execute(update(trial_runs).where(is_over).values(goes_on))
        return changed

    async def set_suite(self, run: str, suite: Suite) -> None:
        """With other commands. Its checkpoints, tasks and samples are to stay the same."""
        text = _SUITE.dump(suite)
        await self._db.execute(update(trial_runs).where(trial_runs.c.id == run).values(suite=text))

    async def end_run(self, run: str, state: RunState, now: float) -> bool:
        """CANCELLED also cancels its trials and shards that are not over."""
        is_open = and_(trial_runs.c.id == run, trial_runs.c.state == RunState.RUNNING.value)
        values = {"state": state.value, "ended": now}
        async with self._db.writing() as connection:
            if not (await connection.execute(update(trial_runs).where(is_open).values(values))).rowcount:
                return False
            if state is RunState.CANCELLED:
                shards = and_(trial_pieces.c.run == run, trial_pieces.c.state.in_(_OPEN_SHARDS))
                await connection.execute(update(trial_pieces).where(shards).values(state=ShardState.CANCELLED.value))
                open_trials = and_(trial_table.c.run == run, trial_table.c.state.in_(_OPEN_TRIALS))
                cancelled = {"state": TrialState.CANCELLED.value}
                await connection.execute(update(trial_table).where(open_trials).values(cancelled))
        return True

    async def runtimes(self, tasks: Collection[str], limit: int) -> list[Runtime]:
        """Of earlier shards of these tasks, the newest first."""
        row = trial_runtimes.c
        columns = (row.task, row.size, row.hardware, row.samples, row.seconds, row.load, row.score)
        query = select(*columns).where(row.task.in_(tasks)).order_by(row.time.desc(), row.name).limit(limit)
        return await self._db.records(query, Runtime)

    async def drop(self, before: float, limit: int) -> int:
        """Drop runs that ended before, and runtimes from before."""
        row = trial_runs.c
        ended = select(row.id).where(row.ended < before).order_by(row.ended)
        times = select(trial_runtimes.c.name).where(trial_runtimes.c.time < before).order_by(trial_runtimes.c.time)
        runs = await self._db.drop_rows(ended, limit, row.id)
        return runs + await self._db.drop_rows(times, limit, trial_runtimes.c.name)


async def _revive(connection: AsyncConnection, run: str, record: ShardRecord) -> None:
    """Store a new shard. A cut may come back after another cut: its row is there."""
    values = {"state": ShardState.WAITING.value, "failures": record.failures, "batch": ""}
    is_split = trial_pieces.c.state == ShardState.SPLIT.value
    keys = list(trial_pieces.primary_key.columns.keys())
    statement = insert(connection, trial_pieces).values(_shard_row(run, record))
    await connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values, where=is_split))


async def _start(connection: AsyncConnection, batch: BatchRecord, shards: Sequence[TrialShard]) -> None:
    """The run's row is locked, so that it is not cancelled meanwhile."""
    is_open = and_(trial_runs.c.id == batch.run, trial_runs.c.state == RunState.RUNNING.value)
    if (await connection.execute(select(trial_runs.c.id).where(is_open).with_for_update())).first() is None:
        raise _Lost
    if not await insert_new(connection, trial_batches, [asdict(batch)]):
        raise _Lost
    if batch.kind is BatchKind.INFER:
        await _taken(connection, batch.run, shards, {"state": ShardState.RUNNING.value, "batch": batch.id})
        return
    row = trial_table.c
    is_free = and_(
        _is_trial(batch.run, batch.checkpoint, batch.task), row.state == TrialState.SCORING.value, row.batch == ""
    )
    if not (await connection.execute(update(trial_table).where(is_free).values(batch=batch.id))).rowcount:
        raise _Lost


async def _rows_of(connection: AsyncConnection, table: Table, run: str) -> Sequence[RowMapping]:
    return (await connection.execute(select(table).where(table.c.run == run))).mappings().all()


def _place_in(suite: Suite) -> Callable[[TrialRecord], tuple[int, int]]:
    """Checkpoints in the order of the suite, and of each its tasks."""
    tasks = {task.name: place for place, task in enumerate(suite.tasks)}
    places = {path: place for place, path in enumerate(suite.checkpoints)}
    return lambda trial: (places[trial.checkpoint], tasks[trial.task])


async def _taken(
    connection: AsyncConnection, run: str, shards: Collection[TrialShard], values: dict[str, Any]
) -> list[ShardRecord]:
    """Change shards that wait, and what they were. Raises _Lost when one of them does not."""
    row, ordered = trial_pieces.c, sorted(shards)
    taken: list[ShardRecord] = []
    for start in range(0, len(ordered), _AT_ONCE):
        keys = [(shard.checkpoint, shard.task, shard.first, shard.last) for shard in ordered[start : start + _AT_ONCE]]
        of_keys = tuple_(row.checkpoint, row.task, row.first, row.last).in_(keys)
        are_waiting = and_(row.run == run, of_keys, row.state == ShardState.WAITING.value)
        changed = update(trial_pieces).where(are_waiting).values(values).returning(*row)
        taken += map(_shard, (await connection.execute(changed)).mappings())
    if len(taken) != len(ordered):
        raise _Lost
    return taken


def _failures(shard: TrialShard, replaced: Sequence[ShardRecord]) -> int:
    """A shard that takes samples over has failed as often as those that it takes them from."""
    most = 0
    for record in replaced:
        if _overlap(shard, record.shard):
            most = max(most, record.failures)
    return most


def _overlap(one: TrialShard, other: TrialShard) -> bool:
    same = (one.checkpoint, one.task) == (other.checkpoint, other.task)
    return same and one.first < other.last and other.first < one.last


async def _settle_shard(connection: AsyncConnection, batch: BatchRecord, record: ShardRecord) -> None:
    row, shard = trial_pieces.c, record.shard
    same = and_(row.checkpoint == shard.checkpoint, row.task == shard.task, row.first == shard.first)
    mine = and_(same, row.last == shard.last, row.run == batch.run, row.batch == batch.id)
    runs = and_(mine, row.state == ShardState.RUNNING.value)
    values = pick(_shard_row(batch.run, record), _SETTLED)
    await connection.execute(update(trial_pieces).where(runs).values(values))


_SETTLED = ("state", "failures", "error", "seconds", "load")


async def _settle_trial(connection: AsyncConnection, run: str, record: TrialRecord) -> None:
    row = trial_table.c
    mine = and_(_is_trial(run, record.checkpoint, record.task), row.state.in_(_OPEN_TRIALS))
    await connection.execute(update(trial_table).where(mine).values(_trial_row(run, record)))
    if record.state is TrialState.FAILED:
        left = trial_pieces.c
        of_trial = and_(left.run == run, left.checkpoint == record.checkpoint, left.task == record.task)
        waiting = and_(of_trial, left.state == ShardState.WAITING.value)
        await connection.execute(update(trial_pieces).where(waiting).values(state=ShardState.CANCELLED.value))


def _is_trial(run: str, checkpoint: str, task: str) -> ColumnElement[bool]:
    row = trial_table.c
    return and_(row.run == run, row.checkpoint == checkpoint, row.task == task)


def _run(row: RowMapping) -> EvaluationRun:
    return read_record(EvaluationRun, row, suite=_SUITE.load(row["suite"]))


def _trial_row(run: str, record: TrialRecord) -> dict[str, Any]:
    return asdict(record) | {"run": run, "scores": orjson.dumps(dict(record.scores)).decode(), "batch": ""}


def _trial(row: RowMapping) -> TrialRecord:
    return read_record(TrialRecord, row, scores=orjson.loads(row["scores"]))


def _shard_row(run: str, record: ShardRecord) -> dict[str, Any]:
    row = fields_of(record, ("state", "batch", "failures", "error", "seconds", "load"))
    return row | asdict(record.shard) | {"run": run}


def _shard(row: RowMapping) -> ShardRecord:
    return read_record(ShardRecord, row, shard=read_record(TrialShard, row))
