"""What a run has done so far, from the ledger: samples, GPU hours, and a Gantt chart of what really ran."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from diagnoser.model.trials import (
    BatchKind,
    BatchRecord,
    BatchState,
    PieceRecord,
    PieceState,
    RunProgress,
    TrialRecord,
    TrialRun,
)
from diagnoser.trials.gantt import Bar, BarKind, natural_order, trial_label


def job_of(run: TrialRun, checkpoint: str, task: str) -> str:
    """Id of the job as which a trial that failed is diagnosed."""
    return f"trial-{run.id}-{run.suite.checkpoints.index(checkpoint)}-{task}"


def trial_fields(trial: TrialRecord) -> dict[str, Any]:
    """A trial as programs read it, of the command line and of the API."""
    return {
        "checkpoint": trial.checkpoint,
        "task": trial.task,
        "state": trial.state,
        "scores": dict(trial.scores),
        "error": trial.error,
    }


def samples_stored(progress: RunProgress) -> int:
    stored = (record.piece for record in progress.pieces if record.state is PieceState.INFERRED)
    return sum(piece.last - piece.first for piece in stored)


def samples(progress: RunProgress) -> int:
    """Count the samples of all trials."""
    return len(progress.run.suite.checkpoints) * sum(task.samples for task in progress.run.suite.tasks)


def gpu_seconds(progress: RunProgress, now: float) -> float:
    """Sum up for how long its batches have held GPUs."""
    held = (batch for batch in progress.batches if batch.kind is BatchKind.INFER)
    return progress.run.suite.gpus * sum((batch.ended or now) - batch.started for batch in held)


def gpu_seconds_in_line(progress: RunProgress) -> float | None:
    """Estimate for how long a job a trial would have held GPUs, from the figures of this run: it loads once, infers,
    and scores before it gives them back. None before all trials of the run were scored.
    """
    pieces = [record for record in progress.pieces if record.state is PieceState.INFERRED and record.seconds]
    scoring = _scoring_seconds(progress)
    if not pieces or scoring.keys() != {(trial.checkpoint, trial.task) for trial in progress.trials}:
        return None
    loads = [record.load or 0.0 for record in pieces]
    inference = sum(record.seconds or 0.0 for record in pieces) - sum(loads)
    return progress.run.suite.gpus * (max(loads) * len(scoring) + inference + sum(scoring.values()))


def _scoring_seconds(progress: RunProgress) -> dict[tuple[str, str], float]:
    """How long each trial was scored, by checkpoint and task: the median of its tries."""
    tries: dict[tuple[str, str], list[float]] = {}
    for batch in progress.batches:
        if _is_scoring(batch) and batch.ended is not None:
            tries.setdefault((batch.checkpoint, batch.task), []).append(batch.ended - batch.started)
    return {trial: median(seconds) for trial, seconds in tries.items()}


def bars(progress: RunProgress, now: float) -> list[Bar]:
    """Rows of slots in the order of their nodes, then those of CPUs. Seconds of the run."""
    by_batch: dict[str, list[PieceRecord]] = {}
    for record in progress.pieces:
        if record.state is PieceState.INFERRED and record.seconds:
            by_batch.setdefault(record.batch, []).append(record)
    rows = {
        batch.id: (batch.kind is BatchKind.SCORE, natural_order(batch.node), batch.slot) for batch in progress.batches
    }
    placed = sorted(progress.batches, key=lambda batch: rows[batch.id])
    several = len(progress.run.suite.checkpoints) > 1
    found: list[Bar] = []
    for batch in placed:
        start, end = batch.started - progress.run.created, (batch.ended or now) - progress.run.created
        if batch.kind is BatchKind.SCORE:
            label = trial_label(batch.checkpoint, batch.task, several)
            found.append(Bar(f"CPU {batch.slot}", BarKind.SCORING, label, start, end))
        else:
            found += _of_inference(batch, by_batch.get(batch.id, ()), start, end, several)
    return found


def _is_scoring(batch: BatchRecord) -> bool:
    return batch.kind is BatchKind.SCORE and batch.state is BatchState.ENDED


def _of_inference(
    batch: BatchRecord, pieces: Iterable[PieceRecord], start: float, end: float, several: bool
) -> Iterable[Bar]:
    """Draw the pieces one behind the other. The rest of the batch is what runs, or what was lost."""
    row, at = f"{batch.node} {batch.slot}", start
    for record in pieces:
        load, seconds = record.load or 0.0, record.seconds or 0.0
        piece = record.piece
        if load:
            yield Bar(row, BarKind.LOAD, "load", at, min(at + load, end))
        name = f"{trial_label(piece.checkpoint, piece.task, several)} {piece.first}-{piece.last - 1}"
        yield Bar(row, BarKind.INFERENCE, name, min(at + load, end), min(at + seconds, end))
        at = min(at + seconds, end)
    if batch.state is BatchState.RUNNING and at < end:
        yield Bar(row, BarKind.INFERENCE, "running", at, end)
    elif batch.state is not BatchState.ENDED and at < end:
        yield Bar(row, BarKind.LOST, batch.state.value, at, end)
