"""Measures what a run has done so far, from the ledger: samples, GPU hours, and a Gantt chart of what really ran."""

from collections.abc import Iterable
from statistics import median

from diagnoser.evaluations.gantt import Bar, BarKind, natural_order, trial_label
from diagnoser.model.evaluations import (
    BatchKind,
    BatchRecord,
    BatchState,
    EvaluationRun,
    RunProgress,
    ShardRecord,
    TrialKey,
)


def job_of(run: EvaluationRun, checkpoint: str, task: str) -> str:
    """Id of the job as which a trial that failed is diagnosed."""
    return f"trial-{run.id}-{run.suite.checkpoints.index(checkpoint)}-{task}"


def samples_stored(progress: RunProgress) -> int:
    return sum(record.shard.samples for record in progress.inferred)


def samples(progress: RunProgress) -> int:
    return len(progress.run.suite.checkpoints) * sum(task.samples for task in progress.run.suite.tasks)


def gpu_seconds(progress: RunProgress, now: float) -> float:
    seconds = 0.0
    for batch in progress.batches:
        if batch.kind is BatchKind.INFER:
            seconds += batch.end_by(now) - batch.started
    return progress.run.suite.gpus * seconds


def gpu_seconds_in_line(progress: RunProgress) -> float | None:
    """Estimate for how long a job a trial would have held GPUs, from the figures of this run: it loads once, infers,
    and scores before it gives them back. None before all trials of the run were scored.
    """
    scoring, longest_load, inference, measured = _scoring_seconds(progress), 0.0, 0.0, 0
    for record in progress.inferred:
        load, seconds = record.timing
        if seconds:
            measured += 1
            longest_load = max(longest_load, load)
            inference += seconds - load
    if not measured:
        return None
    if scoring.keys() != progress.keys:
        return None
    return progress.run.suite.gpus * (longest_load * len(scoring) + inference + sum(scoring.values()))


def _scoring_seconds(progress: RunProgress) -> dict[TrialKey, float]:
    """Measure how long each trial was scored: the median of its tries."""
    tries: dict[TrialKey, list[float]] = {}
    for batch in progress.batches:
        if (batch.kind, batch.state) != (BatchKind.SCORE, BatchState.ENDED):
            continue
        if batch.ended is not None:
            tries.setdefault(batch.key, []).append(batch.ended - batch.started)
    return {trial: median(seconds) for trial, seconds in tries.items()}


def bars(progress: RunProgress, now: float) -> list[Bar]:
    """Rows of slots in the order of their nodes, then those of CPUs. Seconds of the run."""
    by_batch: dict[str, list[ShardRecord]] = {}
    for record in progress.inferred:
        if record.seconds:
            by_batch.setdefault(record.batch, []).append(record)
    several = len(progress.run.suite.checkpoints) > 1
    found: list[Bar] = []
    for batch in sorted(progress.batches, key=_row):
        start, end = batch.started - progress.run.created, batch.end_by(now) - progress.run.created
        if batch.kind is BatchKind.SCORE:
            label = trial_label(batch.checkpoint, batch.task, several)
            found.append(Bar(f"CPU {batch.slot}", BarKind.SCORING, label, start, end))
        else:
            found += _of_inference(batch, by_batch.get(batch.id, ()), start, end, several)
    return found


def _row(batch: BatchRecord) -> tuple[bool, tuple[tuple[int, str], ...], int]:
    return batch.kind is BatchKind.SCORE, natural_order(batch.node), batch.slot


def _of_inference(
    batch: BatchRecord, shards: Iterable[ShardRecord], start: float, end: float, several: bool
) -> Iterable[Bar]:
    """Draw the shards one behind the other. The rest of the batch is what runs, or what was lost."""
    row, at = f"{batch.node} {batch.slot}", start
    for record in shards:
        (load, seconds), shard = record.timing, record.shard
        if load:
            yield Bar(row, BarKind.LOAD, "load", at, min(at + load, end))
        name = f"{trial_label(shard.checkpoint, shard.task, several)} {shard.first}-{shard.last - 1}"
        yield Bar(row, BarKind.INFERENCE, name, min(at + load, end), min(at + seconds, end))
        at = min(at + seconds, end)
    if at >= end:
        return
    if batch.state is BatchState.RUNNING:
        yield Bar(row, BarKind.INFERENCE, "running", at, end)
    elif batch.state is not BatchState.ENDED:
        yield Bar(row, BarKind.LOST, batch.state.value, at, end)
