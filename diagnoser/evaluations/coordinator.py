"""Carries a run out: looks at its batches, records what came of them, and gives free slots their next work.

Everything is in the ledger, and each step begins by reading it: a coordinator that was killed anywhere is followed by
another one, and several at once do the work of one. The order of a step matters. A batch is in the ledger before it is
started; where only the ledger knows it, it is started again, which its id makes safe.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import structlog

from diagnoser.adapters.sql.evaluations import EvaluationRepository
from diagnoser.evaluations.batch_folder import link_samples, read_scores
from diagnoser.evaluations.progress import job_of
from diagnoser.evaluations.reporting import LogReporter
from diagnoser.evaluations.runner import log_of
from diagnoser.evaluations.runtime_estimates import RuntimeEstimates, estimate_runtimes
from diagnoser.evaluations.schedule import rescheduled
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.evaluations import (
    TRIALS_OVER,
    Batch,
    BatchKind,
    BatchRecord,
    BatchState,
    Done,
    Goal,
    Node,
    Placement,
    RunProgress,
    RunState,
    Runtime,
    ShardRecord,
    ShardState,
    Suite,
    TrialKey,
    TrialRecord,
    TrialShard,
    TrialState,
)
from diagnoser.ports import Clock, Command, CommandResult, NodeExecutor, Order, OrderState, OrderStatus

SERVER_STARTS = 20.0
"""A batch that starts a server lasts so many times the start, where its slot has that much to do."""
STARTS_AT_ONCE = 8
"""Batches that the scheduler is asked to start at the same time."""
RUNTIMES = 10_000
"""Of earlier runs, that are looked at."""

_OVER = {
    OrderState.ENDED: BatchState.ENDED,
    OrderState.LOST: BatchState.LOST,
    OrderState.PREEMPTED: BatchState.CANCELLED,
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """batch_seconds: of work that a node is given at once; what waits can still be given to another one.

    failures_max: of a shard, or of a trial's scoring, before the trial fails. scorers: trials that are scored at once,
    where the suite does not say. late_factor, late_seconds: a batch that takes this many times what was expected, and
    then this much longer, is given to a slot that is idle, once. queue_seconds: a batch whose node others use for so
    long is given to a slot that the run has given back, and its node is left alone for as long. patience: seconds for
    which nodes or scheduler may not answer before the coordinator gives up. fast: use all nodes, even where fewer end
    about as early.
    """

    batch_seconds: float = 60.0
    failures_max: int = 3
    scorers: int = 1
    late_factor: float = 4.0
    late_seconds: float = 60.0
    queue_seconds: float = 60.0
    patience: float = 3600.0
    fast: bool = False


class _PlanBasis(NamedTuple):
    """What a plan was made for. running: ids of the batches that ran."""

    nodes: tuple[Node, ...] = ()
    running: frozenset[str] = frozenset()


class _EmptyBatches(NamedTuple):
    """Batches of a node, in a row, that stored nothing. counted: when the last of them was counted."""

    in_a_row: int = 0
    counted: float = 0.0


@dataclass(eq=False)
class Coordinator:
    """Call ``step`` until it says that the run is over, or ``carry_out``. new_id: a name that was never given."""

    ledger: EvaluationRepository
    executor: NodeExecutor
    clock: Clock
    new_id: Callable[[], str]
    settings: CoordinatorSettings = CoordinatorSettings()
    reporter: LogReporter | None = None
    _plan: list[Placement] = field(default_factory=list, init=False)
    _planned_for: _PlanBasis = field(default=_PlanBasis(), init=False)
    _goal: Goal | None = field(default=None, init=False)
    """Of the first plan."""
    _prior: RuntimeEstimates | None = field(default=None, init=False)
    _busy_until: dict[str, float] = field(default_factory=dict, init=False)
    """By node whose GPUs others use."""
    _empty_batches: dict[str, _EmptyBatches] = field(default_factory=dict, init=False)
    """By node whose last batches stored nothing."""

    async def carry_out(
        self, run: str, pause: Callable[[], Awaitable[None]], changed: Callable[[RunProgress], None]
    ) -> RunProgress:
        """Step until the run is over.

        pause: between two steps. What does not answer is asked again after the next pause.
        Raises Unavailable when nothing has answered for as long as the settings allow. The ledger keeps the run, and
        another coordinator can go on with it.
        """
        answered = self.clock()
        while True:
            try:
                progress = await self.step(run)
                changed(progress)
                if progress.run.state is not RunState.RUNNING:
                    return progress
                answered = self.clock()
            except Unavailable as error:
                log.warning("trials_wait", run=run, error=str(error))
                silent = self.clock() - answered
                if silent > self.settings.patience:
                    why = f"no answer for {silent / 60:.0f} minutes, so the run is left as it is: {error}"
                    raise Unavailable(why) from error
            await pause()

    async def step(self, run: str) -> RunProgress:
        """Record what ended, and start what can be started. Returns what the ledger knows then. Raises Unavailable,
        BadInput.
        """
        progress = await self._progress(run)
        if progress.run.state is RunState.RUNNING:
            nodes = await self._nodes()
            if await self._record_outcomes(progress, nodes):
                progress = await self._progress(run)
            progress = await self._score(progress)
            progress = await self._infer(progress, nodes)
            if not progress.running and {trial.state for trial in progress.trials} <= TRIALS_OVER:
                await self.ledger.end_run(run, RunState.ENDED, self.clock())
                progress = await self._progress(run)
        if progress.run.state is not RunState.RUNNING:
            await self._end(progress)
            progress = await self._progress(run)
        return progress

    async def _progress(self, run: str) -> RunProgress:
        progress = await self.ledger.progress(run)
        if progress is None:
            raise BadInput(f"there is no run {run}")
        return progress

    async def _nodes(self) -> list[Node]:
        """List the nodes that take work now: none that others use, and none that rests unless all do."""
        now = self.clock()
        free = [node for node in await self.executor.nodes() if self._busy_until.get(node.name, now) <= now]
        return [node for node in free if self._rests_until(node.name) <= now] or free

    def _rests_until(self, node: str) -> float:
        """Find until when a node rests after a batch that stored nothing, twice as long after each further one in a
        row: a node on which every command fails at once would else take, and fail, whatever waits."""
        empty = self._empty_batches.get(node, _EmptyBatches())
        if not empty.in_a_row:
            return 0.0
        return empty.counted + self.settings.late_seconds * 2.0 ** (empty.in_a_row - 1)

    def _count_empty_batch(self, progress: RunProgress, batch: BatchRecord, changes: Sequence[ShardRecord]) -> None:
        """Count a batch that stored nothing; of several that ran on the node at once, one.

        changes: of the batch's shards, with its end.
        """
        empty = self._empty_batches.get(batch.node, _EmptyBatches())
        inferred = [record for record in (*changes, *progress.inferred) if record.state is ShardState.INFERRED]
        if any(record.batch == batch.id for record in inferred):
            self._empty_batches.pop(batch.node, None)
        elif batch.started >= empty.counted:
            self._empty_batches[batch.node] = _EmptyBatches(empty.in_a_row + 1, self.clock())

    async def _end(self, progress: RunProgress) -> None:
        for batch in progress.running:
            await self.executor.cancel(_order(progress, batch))
            await self.ledger.record_batch(self._with_state(batch, BatchState.CANCELLED))
        nodes = sorted({batch.node for batch in progress.batches if batch.kind is BatchKind.INFER})
        await self.executor.finish(progress.run.suite.all_checkpoints, nodes)

    # --- what came of the batches ---

    async def _record_outcomes(self, progress: RunProgress, nodes: Sequence[Node]) -> bool:
        """Record what came of the batches. Returns whether there was anything to record."""
        batches = progress.running
        if not batches:
            return False
        orders = [_order(progress, batch) for batch in batches]
        statuses = await self.executor.poll(orders)
        idle, is_changed = _idle_nodes(progress, nodes), False
        for batch, order, status in zip(batches, orders, statuses, strict=True):
            if status.state is OrderState.UNKNOWN:
                await self._start(progress, batch, order)
                continue
            state = await self._state_of(batch, order, status, nodes, progress, idle)
            if batch.kind is BatchKind.INFER:
                is_changed |= await self._record_inference(progress, batch, order, state, status)
            else:
                is_changed |= await self._record_scoring(progress, batch, order, state, status)
        return is_changed

    async def _state_of(
        self,
        batch: BatchRecord,
        order: Order,
        status: OrderStatus,
        nodes: Sequence[Node],
        progress: RunProgress,
        idle: set[str],
    ) -> BatchState:
        """Cancel a batch that waits in vain, or takes too long. One that has begun counts as lost then; nothing is held
        against one that has not, or that its scheduler has preempted.

        idle: nodes with a slot that has nothing to do.
        """
        if status.state in _OVER:
            return _OVER[status.state]
        if batch.kind is not BatchKind.INFER:
            return BatchState.RUNNING
        if status.state is OrderState.QUEUED:
            if not self._waits_in_vain(batch, nodes, progress, idle):
                return BatchState.RUNNING
            await self.executor.cancel(order)
            return BatchState.CANCELLED
        if idle and self._is_late(batch, progress):
            log.warning("trial_batch_late", batch=batch.id, node=batch.node)
            await self.executor.cancel(order)
            return BatchState.LOST
        return BatchState.RUNNING

    def _waits_in_vain(self, batch: BatchRecord, nodes: Sequence[Node], progress: RunProgress, idle: set[str]) -> bool:
        """Tell whether a batch in the queue is for another slot: its node is gone, or others use it while a slot is
        idle on which this run has ended something, so that it is not one more that others use."""
        if batch.node not in {node.name for node in nodes}:
            return True
        now = self.clock()
        if now - batch.started <= self.settings.queue_seconds:
            return False
        given_back = {ended.node for ended in progress.batches if ended.state is BatchState.ENDED}
        if not (idle & given_back) - {batch.node}:
            return False
        self._busy_until[batch.node] = now + self.settings.queue_seconds
        return True

    def _is_late(self, batch: BatchRecord, progress: RunProgress) -> bool:
        """Tell whether a batch takes too long. Once for each shard: where the expectation was wrong, the second try is
        left alone.
        """
        if any(record.failures for record in progress.open_shards(batch)):
            return False
        limit = self.settings.late_factor * batch.seconds + self.settings.late_seconds
        return self.clock() - batch.started > limit

    async def _record_inference(
        self, progress: RunProgress, batch: BatchRecord, order: Order, state: BatchState, status: OrderStatus
    ) -> bool:
        """Record the results of a batch's shards. Returns whether there was something to record."""
        changes, runtimes = self._outcomes(progress, batch, state, status)
        if not changes and state is BatchState.RUNNING:
            return False
        failed: dict[TrialKey, ShardRecord] = {}
        for record in changes:
            if record.state is ShardState.FAILED:
                failed[record.shard.trial] = record
        trials: list[TrialRecord] = []
        for record in failed.values():
            trials += _failed_trials(progress.run.suite, record)
        if await self.ledger.record_batch(self._with_state(batch, state), changes, trials, runtimes):
            if state in (BatchState.ENDED, BatchState.LOST):
                self._count_empty_batch(progress, batch, changes)
            results = _by_output(status)
            for record in failed.values():
                output = _samples_of(progress, record.shard)
                self._report(progress, record.shard, _log_of(order, output), results.get(output))
        return True

    def _outcomes(
        self, progress: RunProgress, batch: BatchRecord, state: BatchState, status: OrderStatus
    ) -> tuple[list[ShardRecord], dict[str, Runtime]]:
        """Find the shards of a batch that have changed, and how long those took that were inferred. A command that
        failed counts once its batch is over, and not at all where the batch was preempted."""
        results = _by_output(status)
        changes: list[ShardRecord] = []
        runtimes: dict[str, Runtime] = {}
        without_result: list[ShardRecord] = []
        for record in progress.open_shards(batch):
            result = results.get(_samples_of(progress, record.shard))
            if result is None:
                without_result.append(record)
            elif result.code == 0:
                inferred = replace(record, state=ShardState.INFERRED, error="", seconds=result.seconds)
                changes.append(replace(inferred, load=result.load))
                runtimes |= _runtime(progress, changes[-1])
            elif state is BatchState.CANCELLED:
                without_result.append(record)  # it may have ended a moment before its batch did, by the same signal
            elif state is not BatchState.RUNNING:
                changes.append(self._failed(record, f"exit code {result.code}\n{result.tail}"))
        if state is not BatchState.RUNNING:
            changes += self._not_inferred(without_result, batch, state, status)
        return changes, runtimes

    def _not_inferred(
        self, shards: Sequence[ShardRecord], batch: BatchRecord, state: BatchState, status: OrderStatus
    ) -> list[ShardRecord]:
        """Let the shards without a result wait again. Of a batch that is lost, the first one ran, and has failed."""
        waiting = [replace(record, state=ShardState.WAITING) for record in shards]
        if shards and state is not BatchState.CANCELLED:
            why = f"its process on {batch.node} ended without a result\n{status.detail}"
            waiting[0] = self._failed(shards[0], why)
        return waiting

    def _report(
        self, progress: RunProgress, of: TrialShard | TrialRecord, failed_log: Path, result: CommandResult | None
    ) -> None:
        """Report a failed trial. Only the coordinator that recorded it does, so that a trial is not reported twice."""
        if self.reporter is None:
            return
        if not failed_log.exists():
            return
        run = progress.run
        code = result.code if result else None
        self.reporter.report(job_of(run, of.checkpoint, of.task), f"{run.suite.name} {of.task}", failed_log, code)

    def _failed(self, record: ShardRecord, why: str) -> ShardRecord:
        failures = record.failures + 1
        state = ShardState.FAILED if failures >= self.settings.failures_max else ShardState.WAITING
        shard = record.shard
        log.warning("trial_piece_failed", task=shard.task, first=shard.first, failures=failures, why=why[:200])
        return replace(record, state=state, failures=failures, error=why)

    def _with_state(self, batch: BatchRecord, state: BatchState) -> BatchRecord:
        if state is BatchState.RUNNING:
            return replace(batch, state=state, ended=None)
        return replace(batch, state=state, ended=self.clock())

    async def _record_scoring(
        self, progress: RunProgress, batch: BatchRecord, order: Order, state: BatchState, status: OrderStatus
    ) -> bool:
        if state is BatchState.RUNNING:
            return False
        trial, result = progress.trial(batch.key), next(iter(status.results), None)
        if state is BatchState.CANCELLED:  # preempted: it is scored again
            await self.ledger.record_batch(self._with_state(batch, state), (), [trial])
            return True
        runtimes: dict[str, Runtime] = {}
        try:
            if result is None:
                raise BadInput(f"it died\n{status.detail}")
            if result.code:
                raise BadInput(f"exit code {result.code}\n{result.tail}")
            scores = read_scores(Path(result.output))
            trial = replace(trial, state=TrialState.SCORED, scores=scores, error="", scored=self.clock())
            runtimes = _runtime(progress, progress.inferred_of(trial.key)[0], result.seconds)
        except BadInput as error:
            trial = self._not_scored(trial, str(error))
        is_recorded = await self.ledger.record_batch(self._with_state(batch, state), (), [trial], runtimes)
        if is_recorded and trial.state is TrialState.FAILED:
            self._report(progress, trial, _log_of(order, order.commands[0].output), result)
        return True

    def _not_scored(self, trial: TrialRecord, why: str) -> TrialRecord:
        """Count a try to score the trial that failed: it is tried again, as often as shards are."""
        failures = trial.failures + 1
        state = TrialState.FAILED if failures >= self.settings.failures_max else TrialState.SCORING
        return replace(trial, state=state, failures=failures, error=f"scoring: {why}")

    # --- scoring ---

    async def _score(self, progress: RunProgress) -> RunProgress:
        """Start scoring where a scorer is free. Returns what the ledger knows afterwards."""
        whole = []
        for trial in progress.trials:
            if trial.state is not TrialState.INFERRING:
                continue
            if progress.is_whole(trial.key):
                whole.append(trial.key)
        if whole:
            await self.ledger.begin_scoring(progress.run.id, whole)
            progress = await self._progress(progress.run.id)
        running = {batch.key: batch.slot for batch in progress.running if batch.kind is BatchKind.SCORE}
        waiting = _waiting_for_scorer(progress, running)
        if not waiting:
            return progress
        expected = (await self._expected(progress)).scores
        waiting.sort(key=lambda trial: -expected[trial.task])  # the longest first: it ends last
        scorers = progress.run.suite.scorers or self.settings.scorers
        free = sorted(set(range(scorers)).difference(running.values()))
        given = list[tuple[BatchRecord, Order]]()
        for slot, trial in zip(free, waiting, strict=False):
            batch = BatchRecord(
                self._name(progress),
                progress.run.id,
                BatchKind.SCORE,
                "",
                slot,
                self.clock(),
                expected[trial.task],
                checkpoint=trial.checkpoint,
                task=trial.task,
            )
            if await self.ledger.start_batch(batch, ()):
                given.append((batch, _order(progress, batch)))
        await self._start_all(progress, given)
        return await self._progress(progress.run.id)

    # --- inference ---

    async def _infer(self, progress: RunProgress, nodes: Sequence[Node]) -> RunProgress:
        """Start batches on free slots. Returns what the ledger knows afterwards."""
        free = _free_slots(progress, nodes)
        if not free:
            return progress
        if not _is_unplanned(progress, []):
            return progress
        basis = _PlanBasis(tuple(nodes), frozenset(batch.id for batch in progress.running))
        if self._needs_plan(progress, basis, free):
            progress = await self._replan(progress, nodes)
            self._planned_for = basis
        given = [await self._cut_batch(progress, node, slot) for node, slot in free]
        await self._start_all(progress, filter(None, given))
        return await self._progress(progress.run.id)

    def _needs_plan(self, progress: RunProgress, basis: _PlanBasis, free: Sequence[tuple[str, int]]) -> bool:
        """Tell whether the plan is out of date. basis: what a plan would be made for now."""
        if basis.nodes != self._planned_for.nodes:
            return True
        if _is_unplanned(progress, _shards(self._plan)):
            return True
        if basis.running == self._planned_for.running:
            return False
        planned = {(placed.node, placed.slot) for placed in self._plan}
        return not all(self._next_placement(node, slot) for node, slot in free if (node, slot) in planned)

    async def _replan(self, progress: RunProgress, nodes: Sequence[Node]) -> RunProgress:
        """Plan anew. Where another coordinator was faster, nothing is planned until the next step."""
        self._plan = []
        waiting, begun = progress.waiting, progress.run.created
        running = []
        for placed in _placements(progress, self.clock()):
            running.append(replace(placed, start=placed.start - begun, end=placed.end - begun))
        # In a thread: thousands of trials take seconds, in which batches end and the progress is shown.
        schedule = await asyncio.to_thread(
            rescheduled,
            progress.run.suite,
            await self._expected(progress),
            nodes,
            _done(progress),
            running,
            self.clock() - begun,
            None if self.settings.fast else self._goal or Goal(),
        )
        self._goal = self._goal or schedule.goal
        cut = _shards(schedule.placements)
        if set(cut) != set(waiting) and not await self.ledger.cut(progress.run.id, progress.run.cuts, waiting, cut):
            return progress
        self._plan = list(schedule.placements)
        return await self._progress(progress.run.id)

    def _next_placement(self, node: str, slot: int) -> Placement | None:
        for placed in self._plan:
            if (placed.node, placed.slot) != (node, slot):
                continue
            if placed.batch.shards:
                return placed
        return None

    async def _cut_batch(self, progress: RunProgress, node: str, slot: int) -> tuple[BatchRecord, Order] | None:
        """Make a batch of the next shards of the slot's part of the plan, behind one load; None where there is none."""
        placed = self._next_placement(node, slot)
        if placed is None:
            return None
        task = progress.run.suite.task(placed.batch.shards[0].task)
        expected = (await self._expected(progress)).of_task(task.name)
        batch_seconds = self.settings.batch_seconds
        if progress.run.suite.part(task.model).server is not None:
            batch_seconds = max(batch_seconds, SERVER_STARTS * expected.load)
        shards, seconds = _first_of(placed.batch, expected, batch_seconds)
        batch = BatchRecord(self._name(progress), progress.run.id, BatchKind.INFER, node, slot, self.clock(), seconds)
        left = replace(placed, batch=replace(placed.batch, shards=placed.batch.shards[len(shards) :]))
        self._plan[self._plan.index(placed)] = left
        await asyncio.to_thread(_link_answers, progress, {shard.trial for shard in shards})
        if not await self.ledger.start_batch(batch, shards):
            self._plan = []  # somebody else has changed what waits
            return None
        return batch, _order(progress, batch, shards)

    async def _start_all(self, progress: RunProgress, batches: Iterable[tuple[BatchRecord, Order]]) -> None:
        """Start batches beside each other: a scheduler takes its time for each."""
        at_once = asyncio.Semaphore(STARTS_AT_ONCE)

        async def start(batch: BatchRecord, order: Order) -> None:
            async with at_once:
                await self._start(progress, batch, order)

        await asyncio.gather(*(start(batch, order) for batch, order in batches))

    async def _start(self, progress: RunProgress, batch: BatchRecord, order: Order) -> None:
        """Start a batch. Where the node does not answer, the batch is unknown to it, and started by the next step."""
        if batch.kind is BatchKind.SCORE:
            link_samples(Path(order.folder) / "samples", _folders(progress, batch.key))
        try:
            await self.executor.start(order)
        except Unavailable as error:
            log.warning("trial_batch_waits", batch=batch.id, node=batch.node, error=str(error))

    def _name(self, progress: RunProgress) -> str:
        return f"{progress.run.id}-{self.new_id()}"

    async def _expected(self, progress: RunProgress) -> RuntimeEstimates:
        """Estimate from the runs before this one: what is expected does not change within it."""
        if self._prior is None:
            tasks = list(progress.run.suite.tasks_by_name)
            self._prior = estimate_runtimes(progress.run.suite, await self.ledger.runtimes(tasks, RUNTIMES))
        return self._prior


def _by_output(status: OrderStatus) -> dict[str, CommandResult]:
    return {result.output: result for result in status.results}


def _open_shards(progress: RunProgress, batch: BatchRecord) -> tuple[TrialShard, ...]:
    return tuple(record.shard for record in progress.open_shards(batch))


def _shards(placements: Sequence[Placement]) -> list[TrialShard]:
    shards: list[TrialShard] = []
    for placement in placements:
        shards += placement.batch.shards
    return shards


def _waiting_for_scorer(progress: RunProgress, scored: Collection[TrialKey]) -> list[TrialRecord]:
    """List trials whose samples are all there and that nothing scores. scored: those that a batch scores now."""
    waiting = []
    for trial in progress.trials:
        if trial.state is not TrialState.SCORING:
            continue
        if trial.key not in scored:
            waiting.append(trial)
    return waiting


def _failed_trials(suite: Suite, record: ShardRecord) -> list[TrialRecord]:
    """List the trial of a shard that failed, and those that come after it and now cannot start."""
    shard = record.shard
    error = f"samples {shard.first} to {shard.last}: {record.error}"
    failed = [TrialRecord(shard.checkpoint, shard.task, TrialState.FAILED, error=error)]
    names = {shard.task}
    for task in suite.tasks:  # a task stands below the one that it comes after
        if task.after in names:
            names.add(task.name)
            error = f"it comes after {task.after}, which failed"
            failed.append(TrialRecord(shard.checkpoint, task.name, TrialState.FAILED, error=error))
    return failed


def _runtime(progress: RunProgress, record: ShardRecord, score: float | None = None) -> dict[str, Runtime]:
    """Measure a shard; nothing where its samples were there already."""
    suite, shard = progress.run.suite, record.shard
    load, seconds = record.timing
    if not seconds:
        return {}
    name = f"{progress.run.id} {shard.checkpoint} {shard.task} {shard.first}"
    size = suite.part(suite.task(shard.task).model).size
    return {name: Runtime(shard.task, size, suite.hardware, shard.samples, seconds, load, score)}


def _free_slots(progress: RunProgress, nodes: Sequence[Node]) -> list[tuple[str, int]]:
    busy, free = {(batch.node, batch.slot) for batch in progress.running}, []
    for node in nodes:
        for slot in range(node.gpus // progress.run.suite.gpus):
            if (node.name, slot) not in busy:
                free.append((node.name, slot))
    return free


def _idle_nodes(progress: RunProgress, nodes: Sequence[Node]) -> set[str]:
    if progress.waiting:
        return set()
    return {node for node, _ in _free_slots(progress, nodes)}


def _done(progress: RunProgress) -> Done:
    """Find what needs no place in a plan now: also trials whose task comes after one that is not done."""
    stored = tuple(record.shard for record in progress.inferred)
    return Done(stored, progress.keys - _open_trials(progress))


def _open_trials(progress: RunProgress) -> set[TrialKey]:
    """Find the trials whose samples can be inferred, or are: those that their tasks come after are all there."""
    tasks = progress.run.suite.tasks_by_name
    found = set[TrialKey]()
    for trial in progress.trials:
        if trial.state is not TrialState.INFERRING:
            continue
        after = tasks[trial.task].after
        if not after or progress.is_whole((trial.checkpoint, after)):
            found.add(trial.key)
    return found


def _is_unplanned(progress: RunProgress, planned: Iterable[TrialShard]) -> bool:
    """Tell whether samples wait of which the plan knows nothing; those of a trial that can start now are in no shard
    yet."""
    if _open_trials(progress) - {record.shard.trial for record in progress.shards}:
        return True
    return not set(progress.waiting) <= set(planned)


def _log_of(order: Order, output: str) -> Path:
    outputs = [command.output for command in order.commands]
    return log_of(Path(order.folder), outputs.index(output))


def _placements(progress: RunProgress, now: float) -> Iterable[Placement]:
    for batch in progress.running:
        if batch.kind is not BatchKind.INFER:
            continue
        if shards := _open_shards(progress, batch):
            end = max(now, batch.started + batch.seconds)
            yield Placement(Batch(shards, batch.seconds), batch.node, batch.slot, batch.started, end)


def _first_of(batch: Batch, expected: RuntimeEstimates, seconds: float) -> tuple[tuple[TrialShard, ...], float]:
    """As many shards as take this long, at least one; with what they take, their load included."""
    taken: list[TrialShard] = []
    total = expected.load
    for shard in batch.shards:
        took = expected.start + shard.samples * expected.samples[shard.task]
        if taken and total + took > seconds:
            break
        taken.append(shard)
        total += took
    return tuple(taken), total


def _samples_of(progress: RunProgress, shard: TrialShard) -> str:
    """Path of a shard's samples, once they are all there."""
    place = progress.run.suite.checkpoints.index(shard.checkpoint)
    folder = f"{progress.run.folder}/samples/checkpoint-{place}/{quote(shard.task, safe='')}"
    return f"{folder}/{shard.first:09}-{shard.last:09}"


def _folders(progress: RunProgress, trial: TrialKey) -> list[Path]:
    return [Path(_samples_of(progress, record.shard)) for record in progress.inferred_of(trial)]


def _link_answers(progress: RunProgress, trials: Iterable[TrialKey]) -> None:
    """Link the samples that these trials come after, which are all there and stay as they are."""
    for checkpoint, task in trials:
        if after := progress.run.suite.task(task).after:
            link_samples(Path(_answers(progress, checkpoint, after)), _folders(progress, (checkpoint, after)))


def _answers(progress: RunProgress, checkpoint: str, task: str) -> str:
    """Folder of links to the samples of a trial that others come after."""
    place = progress.run.suite.checkpoints.index(checkpoint)
    return f"{progress.run.folder}/answers/checkpoint-{place}/{quote(task, safe='')}"


def _order(progress: RunProgress, batch: BatchRecord, shards: Sequence[TrialShard] | None = None) -> Order:
    """Say what the batch runs. shards: of a batch that the progress does not hold yet."""
    suite, folder = progress.run.suite, f"{progress.run.folder}/batches/{batch.id}"
    order = Order(batch.id, batch.kind, batch.node, batch.slot, 0, "", folder, progress.run.directory, ())
    if batch.kind is BatchKind.SCORE:
        values = {"checkpoint": batch.checkpoint, "task": batch.task, "samples": f"{folder}/samples"}
        return replace(order, commands=(Command(suite.task(batch.task).score, values, f"{folder}/scores.json"),))
    if shards is None:
        shards = _open_shards(progress, batch)
    commands = tuple(_inference(progress, shard) for shard in shards)
    order = replace(order, gpus=suite.gpus, commands=commands, server=suite.server)
    if not shards:
        return order
    task = suite.task(shards[0].task)
    checkpoint = suite.loaded_by(task, shards[0].checkpoint)
    return replace(order, checkpoint=checkpoint, server=suite.part(task.model).server)


def _inference(progress: RunProgress, shard: TrialShard) -> Command:
    task = progress.run.suite.task(shard.task)
    values = {
        "task": shard.task,
        "first": str(shard.first),
        "last": str(shard.last),
        "start": str(shard.first + 1),
    }
    if task.after:
        values["answers"] = _answers(progress, shard.checkpoint, task.after)
    return Command(task.infer, values, _samples_of(progress, shard))
