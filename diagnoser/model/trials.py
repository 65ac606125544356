"""What an evaluation run is made of. Pure data; times are seconds, sizes bytes.

A *suite* names checkpoints and tasks. Each checkpoint on each task is a *trial*. A trial's samples are cut into
*pieces*; a piece is inference, and needs GPUs. When all its pieces wrote their samples, the trial is *scored*, once, on
CPUs. A *batch* is what runs in one go on one node behind one load of the weights: some pieces of one checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Task:
    """One data set with its metric.

    infer, score: command lines as words, with placeholders in braces ({checkpoint}, {task}, {first}, {last}, {samples}:
    folder of sample files, {scores}: file to write). first and last count samples from 0, last excluded; {start} is
    first counted from 1. sample_seconds: of inference, for one sample on the GPUs of one trial, where the suite tells
    it; None: from earlier runs. splits: whether its samples can be cut into pieces.
    """

    name: str
    samples: int
    infer: tuple[str, ...]
    score: tuple[str, ...]
    sample_seconds: float | None = None
    score_seconds: float | None = None
    splits: bool = True


@dataclass(frozen=True, slots=True)
class Follow:
    """Of which job verified checkpoints are evaluated: the first in each ``every`` steps. step, saved: of the one that
    a run is of."""

    job: str
    every: int
    step: int | None = None
    saved: float = 0.0


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


@dataclass(frozen=True, slots=True)
class Node:
    """A node that takes as many batches at the same time as its GPUs serve trials."""

    name: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Runtime:
    """How long a piece took: the prior of later schedules.

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
class Piece:
    """Samples first (included) to last (excluded) of a task for a checkpoint."""

    checkpoint: str
    task: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Done:
    """What needs no place in a schedule any more. pieces: their samples are stored. scored: trials, as (checkpoint,
    task), whose metric is computed, being computed, or given up.
    """

    pieces: tuple[Piece, ...] = ()
    scored: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Batch:
    """What one node does in one go. seconds: expected, with the load."""

    pieces: tuple[Piece, ...]
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
    """Expected: a trial's metric on a CPU, when its last piece has ended."""

    checkpoint: str
    task: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """placements: in order of their start. lower_bound: no schedule can end earlier, whatever the order."""

    placements: tuple[Placement, ...]
    scorings: tuple[Scoring, ...]
    makespan: float
    lower_bound: float


class PieceState(StrEnum):
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
class TrialRun:
    """One evaluation of a suite. backend: which nodes carry it out, such as "local@host" or "slurm". folder: absolute,
    of samples, scores and logs. directory: absolute, where its commands run. cuts: how often its samples were cut into
    pieces."""

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


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """batch: that runs it or ran it last. seconds: of its inference, of which load until the first
    sample."""

    piece: Piece
    state: PieceState = PieceState.WAITING
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


@dataclass(frozen=True, slots=True)
class RunProgress:
    """All that the ledger knows of a run."""

    run: TrialRun
    trials: tuple[TrialRecord, ...]
    pieces: tuple[PieceRecord, ...]
    batches: tuple[BatchRecord, ...]
