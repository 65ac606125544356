"""Carries a run out: looks at its batches, records what came of them, and gives free slots their next work.

Everything is in the ledger, and each step begins by reading it: a coordinator that was killed anywhere is followed by
another one, and several at once do the work of one. The order of a step matters. A batch is in the ledger before it is
started; where only the ledger knows it, it is started again, which its id makes safe.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import structlog

from diagnoser.adapters.sql.trials import TrialRepository
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.trials import (
    TRIALS_OVER,
    Batch,
    BatchKind,
    BatchRecord,
    BatchState,
    Done,
    Node,
    Piece,
    PieceRecord,
    PieceState,
    Placement,
    RunProgress,
    RunState,
    Runtime,
    Schedule,
    Suite,
    Task,
    TrialRecord,
    TrialState,
)
from diagnoser.ports import Clock, Command, CommandResult, NodeExecutor, Order, OrderState, OrderStatus
from diagnoser.trials.batch_folder import link_samples, read_scores
from diagnoser.trials.prior import Prior, prior
from diagnoser.trials.progress import job_of
from diagnoser.trials.reporting import FailedTrial
from diagnoser.trials.runner import log_of
from diagnoser.trials.schedule import rescheduled

Planner = Callable[[Suite, Prior, Sequence[Node], Done, Sequence[Placement], float], Schedule]
"""As ``schedule.rescheduled``."""


class FailureReporter(Protocol):
    """``reporting.LogReporter``."""

    def report(self, failed: FailedTrial) -> None: ...


RUNTIMES = 10_000
"""Of earlier runs, that are looked at."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """batch_seconds: of work that a node is given at once; what waits can still be given to another one.

    failures_max: of a piece, or of a trial's scoring, before the trial fails. scorers: trials that are scored at once,
    where the suite does not say. late_factor, late_seconds: a batch that takes this many times what was expected, and
    then this much longer, is given to a slot that is idle, once.
    """

    batch_seconds: float = 60.0
    failures_max: int = 3
    scorers: int = 1
    late_factor: float = 4.0
    late_seconds: float = 60.0


class Coordinator:
    """Call ``step`` until it says that the run is over, or ``carry_out``. new_id: a name that was never given."""

    def __init__(
        self,
        ledger: TrialRepository,
        executor: NodeExecutor,
        clock: Clock,
        new_id: Callable[[], str],
        planner: Planner = rescheduled,
        settings: CoordinatorSettings = CoordinatorSettings(),
        reporter: FailureReporter | None = None,
    ) -> None:
        self._ledger = ledger
        self._executor = executor
        self._clock = clock
        self._new_id = new_id
        self._planner = planner
        self._settings = settings
        self._reporter = reporter
        self._plan: list[Placement] = []
        self._planned_for: tuple[tuple[Node, ...], frozenset[str]] = (), frozenset()
        self._prior: Prior | None = None

    async def carry_out(
        self, run: str, pause: Callable[[], Awaitable[None]], changed: Callable[[RunProgress], None]
    ) -> RunProgress:
        """Step until the run is over.

        pause: between two steps. What does not answer is asked again after the next pause.
        """
        while True:
            try:
                progress = await self.step(run)
                changed(progress)
                if progress.run.state is not RunState.RUNNING:
                    return progress
            except Unavailable as error:
                log.warning("trials_wait", run=run, error=str(error))
            await pause()

    async def step(self, run: str) -> RunProgress:
        """Record what ended, and start what can be started. Returns what the ledger knows then. Raises Unavailable,
        BadInput.
        """
        progress = await self._progress(run)
        if progress.run.state is RunState.RUNNING:
            nodes = await self._executor.nodes()
            if await self._settle(progress, nodes):
                progress = await self._progress(run)
            progress = await self._score(progress)
            progress = await self._infer(progress, nodes)
            if all(trial.state in TRIALS_OVER for trial in progress.trials) and not _running(progress):
                await self._ledger.end_run(run, RunState.ENDED, self._clock())
                progress = await self._progress(run)
        if progress.run.state is not RunState.RUNNING:
            await self._end(progress)
            progress = await self._progress(run)
        return progress

    async def _progress(self, run: str) -> RunProgress:
        progress = await self._ledger.progress(run)
        if progress is None:
            raise BadInput(f"there is no run {run}")
        return progress

    async def _end(self, progress: RunProgress) -> None:
        for batch in _running(progress):
            await self._executor.cancel(_order(progress, batch))
            await self._close(batch, BatchState.CANCELLED)
        nodes = sorted({batch.node for batch in progress.batches if batch.kind is BatchKind.INFER})
        await self._executor.finish(progress.run.suite.checkpoints, nodes)

    async def _close(self, batch: BatchRecord, state: BatchState) -> None:
        await self._ledger.settle_batch(replace(batch, state=state, ended=self._clock()))

    # --- what came of the batches ---

    async def _settle(self, progress: RunProgress, nodes: Sequence[Node]) -> bool:
        """Whether there was anything to record."""
        batches = _running(progress)
        orders = [_order(progress, batch) for batch in batches]
        statuses = await self._executor.poll(orders) if orders else []
        idle, settled = _has_idle_slot(progress, nodes), False
        for batch, order, status in zip(batches, orders, statuses, strict=True):
            if status.state is OrderState.UNKNOWN:
                await self._start(progress, batch, order)
                continue
            state = await self._state_of(batch, order, status, nodes, progress, idle)
            if batch.kind is BatchKind.INFER:
                settled |= await self._settle_inference(progress, batch, order, state, status)
            else:
                settled |= await self._settle_scoring(progress, batch, order, state, status)
        return settled

    async def _state_of(
        self,
        batch: BatchRecord,
        order: Order,
        status: OrderStatus,
        nodes: Sequence[Node],
        progress: RunProgress,
        idle: bool,
    ) -> BatchState:
        """A batch that is cancelled here counts as lost, unless it has not begun: then nothing is held against it."""
        if status.state in (OrderState.ENDED, OrderState.LOST):
            return BatchState.ENDED if status.state is OrderState.ENDED else BatchState.LOST
        if batch.kind is BatchKind.INFER:
            is_gone = batch.node not in {node.name for node in nodes}
            if status.state is OrderState.QUEUED and is_gone:
                await self._executor.cancel(order)
                return BatchState.CANCELLED
            if idle and self._is_late(batch, progress):
                log.warning("trial_batch_late", batch=batch.id, node=batch.node)
                await self._executor.cancel(order)
                return BatchState.LOST
        return BatchState.RUNNING

    def _is_late(self, batch: BatchRecord, progress: RunProgress) -> bool:
        """Whether a batch takes too long. Once for each piece: where the expectation was wrong, the second try is left
        alone.
        """
        limit = self._settings.late_factor * batch.seconds + self._settings.late_seconds
        tried = any(record.failures for record in _pieces_of(progress, batch))
        return not tried and self._clock() - batch.started > limit

    async def _settle_inference(
        self, progress: RunProgress, batch: BatchRecord, order: Order, state: BatchState, status: OrderStatus
    ) -> bool:
        """Record the results of a batch's pieces. Whether there was something to record."""
        results = {result.output: result for result in status.results}
        changes, runtimes = self._outcomes(progress, batch, state, status)
        failed = {
            record.piece.checkpoint + record.piece.task: record
            for record in changes
            if record.state is PieceState.FAILED
        }
        trials = [_failed_trial(record) for record in failed.values()]
        if not changes and state is BatchState.RUNNING:
            return False
        if await self._ledger.settle_batch(self._at(batch, state), changes, trials, runtimes):
            for record in failed.values():
                output = _samples_of(progress, record.piece)
                self._report(progress, record.piece, _log_of(order, output), results.get(output))
        return True

    def _outcomes(
        self, progress: RunProgress, batch: BatchRecord, state: BatchState, status: OrderStatus
    ) -> tuple[list[PieceRecord], dict[str, Runtime]]:
        """The pieces of a batch that have changed, and how long those took that were inferred."""
        results = {result.output: result for result in status.results}
        changes: list[PieceRecord] = []
        runtimes: dict[str, Runtime] = {}
        without_result: list[PieceRecord] = []
        for record in _pieces_of(progress, batch):
            result = results.get(_samples_of(progress, record.piece))
            if result is None:
                without_result.append(record)
            elif result.code == 0:
                changes.append(_inferred(record, result))
                runtimes |= _runtime(progress, changes[-1])
            else:
                changes.append(self._failed(record, f"exit code {result.code}\n{result.tail}"))
        if state is not BatchState.RUNNING:
            changes += self._not_inferred(without_result, batch, state, status)
        return changes, runtimes

    def _not_inferred(
        self, pieces: Sequence[PieceRecord], batch: BatchRecord, state: BatchState, status: OrderStatus
    ) -> list[PieceRecord]:
        """Let the pieces without a result wait again. Of a batch that is lost, the first one ran, and has failed."""
        waiting = [replace(record, state=PieceState.WAITING) for record in pieces]
        if pieces and state is not BatchState.CANCELLED:
            why = f"its process on {batch.node} ended without a result\n{status.detail}"
            waiting[0] = self._failed(pieces[0], why)
        return waiting

    def _report(
        self, progress: RunProgress, of: Piece | TrialRecord, failed_log: Path, result: CommandResult | None
    ) -> None:
        """Report a failed trial. Only the coordinator that recorded it does, so that a trial is not reported twice."""
        if self._reporter is not None and failed_log.exists():
            job, name = job_of(progress.run, of.checkpoint, of.task), f"{progress.run.suite.name} {of.task}"
            self._reporter.report(FailedTrial(job, name, failed_log, result.code if result else None))

    def _failed(self, record: PieceRecord, why: str) -> PieceRecord:
        failures = record.failures + 1
        state = PieceState.FAILED if failures >= self._settings.failures_max else PieceState.WAITING
        piece = record.piece
        log.warning("trial_piece_failed", task=piece.task, first=piece.first, failures=failures, why=why[:200])
        return replace(record, state=state, failures=failures, error=why)

    def _at(self, batch: BatchRecord, state: BatchState) -> BatchRecord:
        return replace(batch, state=state, ended=None if state is BatchState.RUNNING else self._clock())

    async def _settle_scoring(
        self, progress: RunProgress, batch: BatchRecord, order: Order, state: BatchState, status: OrderStatus
    ) -> bool:
        if state is BatchState.RUNNING:
            return False
        trial = _trial(progress, batch.checkpoint, batch.task)
        result = status.results[0] if status.results else None
        runtimes: dict[str, Runtime] = {}
        try:
            if result is None:
                raise BadInput(f"it died\n{status.detail}")
            if result.code:
                raise BadInput(f"exit code {result.code}\n{result.tail}")
            scores = read_scores(Path(result.output))
            trial = replace(trial, state=TrialState.SCORED, scores=scores, error="", scored=self._clock())
            first = next(record for record in progress.pieces if _is_inferred_of(record, trial))
            runtimes = _runtime(progress, first, result.seconds)
        except BadInput as error:
            trial = self._not_scored(trial, str(error))
        settled = await self._ledger.settle_batch(self._at(batch, state), (), [trial], runtimes)
        if settled and trial.state is TrialState.FAILED:
            self._report(progress, trial, _log_of(order, order.commands[0].output), result)
        return True

    def _not_scored(self, trial: TrialRecord, why: str) -> TrialRecord:
        """The trial after a try to score it that failed: it is tried again, as often as pieces are."""
        failures = trial.failures + 1
        state = TrialState.FAILED if failures >= self._settings.failures_max else TrialState.SCORING
        return replace(trial, state=state, failures=failures, error=f"scoring: {why}")

    # --- scoring ---

    async def _score(self, progress: RunProgress) -> RunProgress:
        """Start scoring where a scorer is free. Returns what the ledger knows afterwards."""
        whole = [(trial.checkpoint, trial.task) for trial in progress.trials if _is_inferred(progress, trial)]
        if whole:
            await self._ledger.begin_scoring(progress.run.id, whole)
            progress = await self._progress(progress.run.id)
        running = [batch for batch in _running(progress) if batch.kind is BatchKind.SCORE]
        waiting = _waiting_for_scorer(progress, running)
        if not waiting:
            return progress
        expected = (await self._expected(progress)).scores
        waiting.sort(key=lambda trial: -expected[trial.task])  # the longest first: it ends last
        scorers = progress.run.suite.scorers or self._settings.scorers
        free = [slot for slot in range(scorers) if slot not in {batch.slot for batch in running}]
        for slot, trial in zip(free, waiting, strict=False):
            batch = BatchRecord(
                self._name(progress),
                progress.run.id,
                BatchKind.SCORE,
                "",
                slot,
                self._clock(),
                expected[trial.task],
                checkpoint=trial.checkpoint,
                task=trial.task,
            )
            if await self._ledger.start_batch(batch, ()):
                await self._start(progress, batch, _order(progress, batch))
        return await self._progress(progress.run.id)

    # --- inference ---

    async def _infer(self, progress: RunProgress, nodes: Sequence[Node]) -> RunProgress:
        """Start batches on free slots. Returns what the ledger knows afterwards."""
        free = _free_slots(progress, nodes)
        if not free or not _is_unplanned(progress, []):
            return progress
        now_nodes, now_running = tuple(nodes), frozenset(batch.id for batch in _running(progress))
        nodes_before, running_before = self._planned_for
        is_starving = now_running != running_before and any(not self._next(node, slot) for node, slot in free)
        if is_starving or now_nodes != nodes_before or _is_unplanned(progress, _pieces(self._plan)):
            progress = await self._replan(progress, nodes)
            self._planned_for = now_nodes, now_running
        for node, slot in free:
            await self._give(progress, node, slot)
        return await self._progress(progress.run.id)

    async def _replan(self, progress: RunProgress, nodes: Sequence[Node]) -> RunProgress:
        """Plan anew. Where another coordinator was faster, nothing is planned until the next step."""
        self._plan = []
        waiting = [record.piece for record in progress.pieces if record.state is PieceState.WAITING]
        running = list(_placements(progress, self._clock()))
        begun = progress.run.created
        schedule = self._planner(
            progress.run.suite,
            await self._expected(progress),
            nodes,
            _done(progress),
            [replace(placed, start=placed.start - begun, end=placed.end - begun) for placed in running],
            self._clock() - begun,
        )
        cut = _pieces(schedule.placements)
        if set(cut) != set(waiting) and not await self._ledger.cut(progress.run.id, progress.run.cuts, waiting, cut):
            return progress
        self._plan = list(schedule.placements)
        return await self._progress(progress.run.id)

    def _next(self, node: str, slot: int) -> Placement | None:
        mine = (placed for placed in self._plan if (placed.node, placed.slot) == (node, slot) and placed.batch.pieces)
        return next(mine, None)

    async def _give(self, progress: RunProgress, node: str, slot: int) -> None:
        """The next pieces of the slot's part of the plan, behind one load."""
        placed = self._next(node, slot)
        if placed is None:
            return
        expected = await self._expected(progress)
        pieces, seconds = _first_of(placed.batch, expected, self._settings.batch_seconds)
        batch = BatchRecord(self._name(progress), progress.run.id, BatchKind.INFER, node, slot, self._clock(), seconds)
        left = replace(placed, batch=replace(placed.batch, pieces=placed.batch.pieces[len(pieces) :]))
        self._plan[self._plan.index(placed)] = left
        if not await self._ledger.start_batch(batch, pieces):
            self._plan = []  # somebody else has changed what waits
            return
        await self._start(progress, batch, _order(progress, batch, pieces))

    async def _start(self, progress: RunProgress, batch: BatchRecord, order: Order) -> None:
        """Start a batch. Where the node does not answer, the batch is unknown to it, and started by the next step."""
        if batch.kind is BatchKind.SCORE:
            pieces = [record.piece for record in progress.pieces if _is_inferred_of(record, batch)]
            link_samples(Path(order.folder) / "samples", [Path(_samples_of(progress, piece)) for piece in pieces])
        try:
            await self._executor.start(order)
        except Unavailable as error:
            log.warning("trial_batch_waits", batch=batch.id, node=batch.node, error=str(error))

    def _name(self, progress: RunProgress) -> str:
        return f"{progress.run.id}-{self._new_id()}"

    async def _expected(self, progress: RunProgress) -> Prior:
        """Estimate from the runs before this one: what is expected does not change within it."""
        if self._prior is None:
            tasks = [task.name for task in progress.run.suite.tasks]
            self._prior = prior(progress.run.suite, await self._ledger.runtimes(tasks, RUNTIMES))
        return self._prior


def _pieces(placements: Sequence[Placement]) -> list[Piece]:
    return [piece for placement in placements for piece in placement.batch.pieces]


def _waiting_for_scorer(progress: RunProgress, scoring: Sequence[BatchRecord]) -> list[TrialRecord]:
    """Trials whose samples are all there and that nothing scores. scoring: the batches that run."""
    busy = {(batch.checkpoint, batch.task) for batch in scoring}
    inferred = [trial for trial in progress.trials if trial.state is TrialState.SCORING]
    return [trial for trial in inferred if (trial.checkpoint, trial.task) not in busy]


def _running(progress: RunProgress) -> list[BatchRecord]:
    return [batch for batch in progress.batches if batch.state is BatchState.RUNNING]


def _pieces_of(progress: RunProgress, batch: BatchRecord) -> list[PieceRecord]:
    """List the pieces that the batch has not ended yet, in their order."""
    mine = (record for record in progress.pieces if record.batch == batch.id)
    return [record for record in mine if record.state is PieceState.RUNNING]


def _trial(progress: RunProgress, checkpoint: str, task: str) -> TrialRecord:
    return next(trial for trial in progress.trials if (trial.checkpoint, trial.task) == (checkpoint, task))


def _task(suite: Suite, name: str) -> Task:
    return next(task for task in suite.tasks if task.name == name)


def _is_inferred_of(record: PieceRecord, of: TrialRecord | BatchRecord) -> bool:
    same = (record.piece.checkpoint, record.piece.task) == (of.checkpoint, of.task)
    return same and record.state is PieceState.INFERRED


def _is_inferred(progress: RunProgress, trial: TrialRecord) -> bool:
    if trial.state is not TrialState.INFERRING:
        return False
    stored = sum(record.piece.last - record.piece.first for record in progress.pieces if _is_inferred_of(record, trial))
    return stored == _task(progress.run.suite, trial.task).samples


def _failed_trial(record: PieceRecord) -> TrialRecord:
    piece = record.piece
    error = f"samples {piece.first} to {piece.last}: {record.error}"
    return TrialRecord(piece.checkpoint, piece.task, TrialState.FAILED, error=error)


def _inferred(record: PieceRecord, result: CommandResult) -> PieceRecord:
    return replace(record, state=PieceState.INFERRED, error="", seconds=result.seconds, load=result.load)


def _runtime(progress: RunProgress, record: PieceRecord, score: float | None = None) -> dict[str, Runtime]:
    """Measure a piece; nothing where its samples were there already."""
    suite, piece = progress.run.suite, record.piece
    if not record.seconds:
        return {}
    name = f"{progress.run.id} {piece.checkpoint} {piece.task} {piece.first}"
    samples, load = piece.last - piece.first, record.load or 0.0
    return {name: Runtime(piece.task, suite.size, suite.hardware, samples, record.seconds, load, score)}


def _free_slots(progress: RunProgress, nodes: Sequence[Node]) -> list[tuple[str, int]]:
    busy = {(batch.node, batch.slot) for batch in _running(progress)}
    slots = ((node.name, slot) for node in nodes for slot in range(node.gpus // progress.run.suite.gpus))
    return [slot for slot in slots if slot not in busy]


def _has_idle_slot(progress: RunProgress, nodes: Sequence[Node]) -> bool:
    waits = any(record.state is PieceState.WAITING for record in progress.pieces)
    return not waits and bool(_free_slots(progress, nodes))


def _done(progress: RunProgress) -> Done:
    stored = tuple(record.piece for record in progress.pieces if record.state is PieceState.INFERRED)
    over = frozenset(
        (trial.checkpoint, trial.task) for trial in progress.trials if trial.state is not TrialState.INFERRING
    )
    return Done(stored, over)


def _is_unplanned(progress: RunProgress, planned: Iterable[Piece]) -> bool:
    """Whether samples wait of which the plan knows nothing; those of a new run are in no piece yet."""
    waiting = {record.piece for record in progress.pieces if record.state is PieceState.WAITING}
    return not progress.run.cuts or not waiting <= set(planned)


def _log_of(order: Order, output: str) -> Path:
    """Log of the command that writes there."""
    outputs = [command.output for command in order.commands]
    return log_of(Path(order.folder), outputs.index(output))


def _placements(progress: RunProgress, now: float) -> Iterable[Placement]:
    for batch in _running(progress):
        pieces = tuple(record.piece for record in _pieces_of(progress, batch))
        if batch.kind is BatchKind.INFER and pieces:
            end = max(now, batch.started + batch.seconds)
            yield Placement(Batch(pieces, batch.seconds), batch.node, batch.slot, batch.started, end)


def _first_of(batch: Batch, expected: Prior, seconds: float) -> tuple[tuple[Piece, ...], float]:
    """As many pieces as take this long, at least one; with what they take, their load included."""
    taken: list[Piece] = []
    total = expected.load
    for piece in batch.pieces:
        took = expected.start + (piece.last - piece.first) * expected.samples[piece.task]
        if taken and total + took > seconds:
            break
        taken.append(piece)
        total += took
    return tuple(taken), total


def _samples_of(progress: RunProgress, piece: Piece) -> str:
    """Path of a piece's samples, once they are all there."""
    place = progress.run.suite.checkpoints.index(piece.checkpoint)
    folder = f"{progress.run.folder}/samples/checkpoint-{place}/{quote(piece.task, safe='')}"
    return f"{folder}/{piece.first:09}-{piece.last:09}"


def _order(progress: RunProgress, batch: BatchRecord, pieces: Sequence[Piece] | None = None) -> Order:
    suite, folder = progress.run.suite, f"{progress.run.folder}/batches/{batch.id}"
    if batch.kind is BatchKind.SCORE:
        values = {"checkpoint": batch.checkpoint, "task": batch.task, "samples": f"{folder}/samples"}
        commands = [Command(_task(suite, batch.task).score, values, f"{folder}/scores.json")]
        gpus, checkpoint = 0, ""
    else:
        mine = pieces if pieces is not None else [record.piece for record in _pieces_of(progress, batch)]
        commands = [_inference(progress, piece) for piece in mine]
        gpus, checkpoint = suite.gpus, mine[0].checkpoint if mine else ""
    return Order(
        batch.id, batch.kind, batch.node, batch.slot, gpus, checkpoint, folder, progress.run.directory, tuple(commands)
    )


def _inference(progress: RunProgress, piece: Piece) -> Command:
    values = {
        "task": piece.task,
        "first": str(piece.first),
        "last": str(piece.last),
        "start": str(piece.first + 1),
    }
    return Command(_task(progress.run.suite, piece.task).infer, values, _samples_of(progress, piece))
