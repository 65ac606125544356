"""The ledger of evaluation runs, and the nodes that carry their batches out.

Nobody owns a run: the ledger is its whole state, each change is a compare-and-set, and the id of a batch is the fence.
A coordinator that was killed is followed by another, and two at once do the work of one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from diagnoser.model.evaluations import (
    BatchKind,
    BatchState,
    Node,
    RunState,
    Runtime,
    ShardState,
    Suite,
    TrialKey,
    TrialShard,
    TrialState,
)


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One evaluation of a suite. backend: which nodes carry it out, such as "local@host" or "slurm". folder: absolute,
    of samples, scores and logs. directory: absolute, where its commands run. cuts: how often its samples were cut into
    shards."""

    id: str
    suite: Suite
    backend: str
    folder: str
    directory: str
    created: float
    state: RunState = RunState.RUNNING
    ended: float | None = None
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A checkpoint on a task. error: why it failed, with the tail of the log. failures: of its scoring."""

    checkpoint: str
    task: str
    state: TrialState = TrialState.INFERRING
    scores: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    failures: int = 0
    scored: float | None = None

    @property
    def key(self) -> TrialKey:
        return self.checkpoint, self.task


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """batch: that runs it or ran it last. seconds: of its inference, of which load until the first
    sample."""

    shard: TrialShard
    state: ShardState = ShardState.WAITING
    batch: str = ""
    failures: int = 0
    error: str = ""
    seconds: float | None = None
    load: float | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What runs, or ran, on a slot of a node. Scoring has the node "" and slots of its own. seconds: expected.

    checkpoint, task: of scoring, "" for inference.
    """

    id: str
    run: str
    kind: BatchKind
    node: str
    slot: int
    started: float
    seconds: float = 0.0
    state: BatchState = BatchState.RUNNING
    ended: float | None = None
    checkpoint: str = ""
    task: str = ""

    @property
    def key(self) -> TrialKey:
        """Of the trial that is scored."""
        return self.checkpoint, self.task


@dataclass(frozen=True, slots=True)
class RunProgress:
    """All that the ledger knows of a run."""

    run: TrialRun
    trials: tuple[TrialRecord, ...]
    shards: tuple[ShardRecord, ...]
    batches: tuple[BatchRecord, ...]

    @property
    def running(self) -> list[BatchRecord]:
        return [batch for batch in self.batches if batch.state is BatchState.RUNNING]

    @property
    def waiting(self) -> list[TrialShard]:
        return [record.shard for record in self.shards if record.state is ShardState.WAITING]

    @property
    def inferred(self) -> list[ShardRecord]:
        return [record for record in self.shards if record.state is ShardState.INFERRED]

    def inferred_of(self, trial: TrialKey) -> list[ShardRecord]:
        return [record for record in self.inferred if record.shard.trial == trial]

    def open_shards(self, batch: BatchRecord) -> list[ShardRecord]:
        """List the shards that the batch has not ended yet, in their order."""
        open_records = (record for record in self.shards if record.state is ShardState.RUNNING)
        return [record for record in open_records if record.batch == batch.id]

    def trial(self, key: TrialKey) -> TrialRecord:
        return next(trial for trial in self.trials if trial.key == key)

    def is_whole(self, trial: TrialKey) -> bool:
        """Tell whether all samples of the trial are stored."""
        stored = sum(record.shard.samples for record in self.inferred_of(trial))
        return stored == self.run.suite.task(trial[1]).samples


class TrialLedger(Protocol):
    """Every method that changes something is one transaction. False: somebody else was first, nothing has changed."""

    async def add_run(self, run: TrialRun) -> None:
        """With a trial for each checkpoint and task. Raises Conflict for an id that is there."""

    async def trial_runs(self, limit: int, ended_since: float | None = None) -> list[TrialRun]:
        """The newest first. ended_since: only those that have not ended before."""

    async def run_progress(self, run: str) -> RunProgress | None: ...

    async def trials_of(self, runs: Collection[str]) -> dict[str, list[TrialRecord]]:
        """By run, in no order."""

    async def cut(self, run: str, cuts: int, old: Collection[TrialShard], new: Collection[TrialShard]) -> bool:
        """Put new shards in place of waiting ones, which hold the same samples. cuts: as it was read. False where one
        of those replaced does not wait any more."""

    async def start_batch(self, batch: BatchRecord, shards: Sequence[TrialShard]) -> bool:
        """Take a free slot and waiting shards; for scoring, a trial that is to be scored. All or nothing."""

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

    async def begin_scoring(self, run: str, which: Collection[tuple[str, str]], again: bool = False) -> int:
        """Trials (checkpoint, task) whose shards are all inferred; how many changed state. again: also those scored or
        failed before, of a run that is over, which goes on."""

    async def set_suite(self, run: str, suite: Suite) -> None:
        """With other commands. Its checkpoints, tasks and samples are to stay the same."""

    async def end_run(self, run: str, state: RunState, now: float) -> bool:
        """CANCELLED also cancels its trials and shards that are not over."""

    async def drop_trials(self, before: float, limit: int) -> int:
        """Drop runs that ended before, and runtimes from before."""

    async def runtimes(self, tasks: Collection[str], limit: int) -> list[Runtime]:
        """Of earlier shards of these tasks, the newest first."""


class OrderState(StrEnum):
    UNKNOWN = "unknown"
    """Never started, or not to be found: it may be started."""
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """It has ended without saying so, and does not run any more."""


@dataclass(frozen=True, slots=True)
class Command:
    """One program of a batch. words: with placeholders in braces; values: of those that the coordinator knows. The node
    adds {checkpoint}, the path where the weights are, and {samples} or {scores}, where the program writes. output:
    absolute, a folder for inference, a file for scoring; it is there only when the program succeeded.
    """

    words: tuple[str, ...]
    values: Mapping[str, str]
    output: str


@dataclass(frozen=True, slots=True)
class Order:
    """A batch as its node gets it. Commands run in order, also after a failed command.

    checkpoint: what the node copies to memory before, "" for scoring. folder: absolute, of logs and results. directory:
    where commands run. gpus: of one slot.
    """

    batch: str
    kind: BatchKind
    node: str
    slot: int
    gpus: int
    checkpoint: str
    folder: str
    directory: str
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How the command with this output ended. code: 0 also where its output was there already. seconds: with the copy
    of the weights; of which load until the first sample. tail: of its log, where it failed."""

    output: str
    code: int
    seconds: float
    load: float = 0.0
    tail: str = ""


@dataclass(frozen=True, slots=True)
class OrderStatus:
    state: OrderState
    results: tuple[CommandResult, ...] = ()
    detail: str = ""


class NodeExecutor(Protocol):
    """Carries orders out. Every method may be called again, by anybody, at any time: the batch's id says what was done.

    Raises Unavailable where another try can help, BadInput or Denied where none can.
    """

    async def nodes(self) -> list[Node]:
        """Those that take work now."""

    async def start(self, order: Order) -> None: ...

    async def poll(self, orders: Sequence[Order]) -> list[OrderStatus]:
        """In the order of the question."""

    async def cancel(self, order: Order) -> None:
        """Returns when it does not run any more, or will end soon without anybody's help."""

    async def finish(self, checkpoints: Sequence[str], nodes: Sequence[str]) -> None:
        """The run is over: the nodes may drop their copies that nobody else reads."""
