"""What an evaluation run is made of. Pure data; times are seconds, sizes bytes.

A *suite* names checkpoints and tasks. Each checkpoint on each task is a *trial*. A trial's samples are cut into
*shards*; a shard is inference, and needs GPUs. When all its shards wrote their samples, the trial is *scored*, once, on
CPUs. A *batch* is what runs in one go on one node behind one load of the weights: some shards of one checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

TrialKey = tuple[str, str]
"""(checkpoint, task)."""


@dataclass(frozen=True, slots=True)
class Task:
    """One data set with its metric.

    infer, score: command lines as words, with placeholders in braces ({checkpoint}, {task}, {first}, {last}, {samples}:
    folder of sample files, {scores}: file to write). first and last count samples from 0, last excluded; {start} is
    first counted from 1. sample_seconds: of inference, for one sample on the GPUs of one trial, where the suite tells
    it; None: from earlier runs. splits: whether its samples can be cut into shards. after: the task whose samples have
    to be there before it starts, in {answers}. model: of the suite, that it loads in place of the checkpoint.
    """

    name: str
    samples: int
    infer: tuple[str, ...]
    score: tuple[str, ...]
    sample_seconds: float | None = None
    score_seconds: float | None = None
    splits: bool = True
    after: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Follow:
    """Of which job verified checkpoints are evaluated: the first in each ``every`` steps. step, saved: of the one that
    a run is of."""

    job: str
    every: int
    step: int | None = None
    saved: float = 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """A model server that the commands of a batch ask: started once a batch, on a free port of its node.

    command: words, with {checkpoint} and {port}. ready: path that answers with 2xx once it takes requests. url: path of
    its API, behind host and port. seconds: that a start may take.
    """

    command: tuple[str, ...]
    ready: str = "/v1/models"
    url: str = "/v1"
    seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model that tasks load in place of the checkpoint, such as a judge of what another task wrote.

    checkpoint: path or name of its weights. server: that its tasks ask. size: what its runtimes depend on.
    """

    name: str
    checkpoint: str
    server: Server | None = None
    size: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """gpus: of one trial. weights: bytes of a checkpoint, 0 when unknown. hardware, size: what runtimes depend on.

    scorers: how many trials are scored at the same time, 0 when nothing bounds them. follow: whose checkpoints are
    evaluated as they come; there are none in the file then.
    """

    name: str
    checkpoints: tuple[str, ...]
    tasks: tuple[Task, ...]
    gpus: int = 1
    weights: int = 0
    hardware: str = ""
    size: str = ""
    scorers: int = 0
    follow: Follow | None = None
    server: Server | None = None
    models: tuple[Model, ...] = ()

    @property
    def all_checkpoints(self) -> tuple[str, ...]:
        """Paths or names of all weights that the suite loads."""
        return (*self.checkpoints, *(model.checkpoint for model in self.models))

    @property
    def tasks_by_name(self) -> dict[str, Task]:
        return {task.name: task for task in self.tasks}

    def task(self, name: str) -> Task:
        return next(task for task in self.tasks if task.name == name)

    def model(self, name: str) -> Model:
        return next(model for model in self.models if model.name == name)

    def part(self, model: str) -> "Suite":
        """Return the tasks that load this model as a suite, with its server and size; "" for those of checkpoints."""
        tasks = tuple(task for task in self.tasks if task.model == model)
        if not model:
            return replace(self, tasks=tasks)
        found = self.model(model)
        return replace(self, tasks=tasks, server=found.server, size=found.size, weights=0)

    def loaded_by(self, task: Task, checkpoint: str) -> str:
        """Return path or name of the weights that the task loads for this checkpoint."""
        return self.model(task.model).checkpoint if task.model else checkpoint


@dataclass(frozen=True, slots=True)
class Node:
    """A node that takes as many batches at the same time as its GPUs serve trials."""

    name: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Runtime:
    """How long a shard took: the estimates of later schedules.

    seconds: of its inference, of which load until the first sample. score: of its trial's metric.
    """

    task: str
    size: str
    hardware: str
    samples: int
    seconds: float
    load: float
    score: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class TrialShard:
    """Samples first (included) to last (excluded) of a task for a checkpoint."""

    checkpoint: str
    task: str
    first: int
    last: int

    @property
    def trial(self) -> TrialKey:
        return self.checkpoint, self.task

    @property
    def samples(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Done:
    """What needs no place in a schedule any more. shards: their samples are stored. scored: trials, as (checkpoint,
    task), whose metric is computed, being computed, or given up.
    """

    shards: tuple[TrialShard, ...] = ()
    scored: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Batch:
    """What one node does in one go. seconds: expected, with the load."""

    shards: tuple[TrialShard, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Placement:
    """A batch on a slot of a node, which has as many as its GPUs serve trials. start, end: expected, of the run."""

    batch: Batch
    node: str
    slot: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Scoring:
    """Expected: a trial's metric on a CPU, when its last shard has ended."""

    checkpoint: str
    task: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Goal:
    """What a run was first planned for, so that later plans take no more GPUs than they need to keep it.

    until: when it would end, in seconds of the run.
    slots: on how many slots; more are used only if that end is missed.
    """

    until: float = 0.0
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """placements: in order of their start. lower_bound: no schedule can end earlier, whatever the order."""

    placements: tuple[Placement, ...]
    scorings: tuple[Scoring, ...]
    makespan: float
    lower_bound: float

    @property
    def goal(self) -> Goal:
        return Goal(self.makespan, len({(placement.node, placement.slot) for placement in self.placements}))


class ShardState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    INFERRED = "inferred"
    """Its samples are stored; the GPUs are free."""
    FAILED = "failed"
    """As often as the suite allows."""
    SPLIT = "split"
    """Others took its samples over."""
    CANCELLED = "cancelled"


class TrialState(StrEnum):
    INFERRING = "inferring"
    SCORING = "scoring"
    SCORED = "scored"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRIALS_OVER = frozenset({TrialState.SCORED, TrialState.FAILED, TrialState.CANCELLED})


class BatchKind(StrEnum):
    INFER = "infer"
    SCORE = "score"


class BatchState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """Its node or its process died."""
    CANCELLED = "cancelled"


class RunState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of one trial. step: of the checkpoint, None where its name has no number. noise: the standard error of
    the value, from what the scorer reports or from the number of samples; None where neither tells it."""

    run: str
    checkpoint: str
    step: int | None
    value: float
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class ScoreDrop:
    """A score that got worse by more than its noise. expected: from the checkpoints before. noise: of the difference,
    as a standard deviation."""

    suite: str
    task: str
    metric: str
    score: Score
    expected: float
    noise: float


@dataclass(frozen=True, slots=True)
class EvaluationRun:
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

    @property
    def timing(self) -> tuple[float, float]:
        """(load, seconds): zeros where they were not measured, as its samples were there already."""
        return self.load or 0.0, self.seconds or 0.0


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

    def end_by(self, now: float) -> float:
        """When it ended; now, while it runs."""
        return self.ended or now


@dataclass(frozen=True, slots=True)
class RunProgress:
    run: EvaluationRun
    trials: tuple[TrialRecord, ...]
    shards: tuple[ShardRecord, ...]
    batches: tuple[BatchRecord, ...]

    @property
    def running(self) -> list[BatchRecord]:
        return [batch for batch in self.batches if batch.state is BatchState.RUNNING]

    @property
    def keys(self) -> frozenset[TrialKey]:
        """Of all its trials."""
        return frozenset(trial.key for trial in self.trials)

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
        stored = sum(record.shard.samples for record in self.inferred_of(trial))
        return stored == self.run.suite.task(trial[1]).samples
