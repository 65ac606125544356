"""Chooses the checkpoints of a training run that are to be evaluated as they come."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from diagnoser.localize.checkpoints import Checkpoint, on_the_way
from diagnoser.model import Attempt
from diagnoser.model.evaluations import EvaluationRun, Follow, Suite


def due(follow: Follow, attempts: Sequence[Attempt], runs: Iterable[EvaluationRun], suite: str) -> list[Checkpoint]:
    """Choose the first verified checkpoint in each ``follow.every`` steps, by the time when it was saved, as far as it
    is newer than the last one evaluated; where none was, the newest checkpoint alone. A run that went back to an
    earlier step passes its steps again: they are due again.

    attempts: of the job.
    runs: earlier evaluations, of any suite.
    suite: name of the suite that follows.
    """
    verified = _verified(attempts)
    last = _last_evaluated(follow.job, runs, suite)
    if last is None:
        return verified[-1:]
    chosen: list[Checkpoint] = []
    part = _part(last, follow)
    for saved in verified:
        if saved.saved > last.saved and _part(saved, follow) != part:
            part = _part(saved, follow)
            chosen.append(saved)
    return chosen


def _part(of: Checkpoint | Follow, follow: Follow) -> int:
    """Number of the ``follow.every`` steps that a checkpoint is in."""
    return (of.step or 0) // follow.every


def _verified(attempts: Sequence[Attempt]) -> list[Checkpoint]:
    """Checkpoints on the way to the newest attempt, by the time when they were saved."""
    events = [attempt.events for attempt in sorted(attempts, key=lambda attempt: attempt.key.number)]
    if not events:
        return []
    verified = [saved for saved in on_the_way(events[-1], events[:-1]) if saved.is_verified and saved.path]
    return sorted(verified, key=lambda saved: saved.saved)


def _last_evaluated(job: str, runs: Iterable[EvaluationRun], suite: str) -> Follow | None:
    """The newest checkpoint of the job that the suite evaluated."""
    earlier: list[Follow] = []
    for run in runs:
        follow = run.suite.follow
        if run.suite.name != suite:
            continue
        if follow is None:
            continue
        if follow.job == job:
            earlier.append(follow)
    return max(earlier, key=lambda follow: follow.saved, default=None)


def suite_of(suite: Suite, saved: Checkpoint) -> Suite:
    """Make the suite of this checkpoint. Raises ValueError where it follows no job."""
    if suite.follow is None:
        raise ValueError(f"{suite.name} follows no job")
    return replace(suite, checkpoints=(saved.path,), follow=replace(suite.follow, step=saved.step, saved=saved.saved))


def run_id(suite: Suite) -> str:
    """Name the run, alike wherever it is made, so that two that follow the same job start one run."""
    follow = suite.follow
    which = repr((suite.name, suite.checkpoints, follow and (follow.job, follow.step, follow.saved)))
    return hashlib.sha256(which.encode("utf-8", "replace")).hexdigest()[:12]
