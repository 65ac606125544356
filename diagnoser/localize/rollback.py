"""Where a run should resume after its loss broke: an earlier checkpoint, and the data batches to skip.

Skipping the batches around a spike follows Chowdhery et al., "PaLM" (2022), section 5.1: restart from a checkpoint
before the spike, skip 200 to 500 batches, and the spike does not come back.
"""

from collections.abc import Iterator, Sequence

from diagnoser.localize import progress
from diagnoser.model import Event, EventKind, Evidence, Progress, Rollback

SKIP_LIMIT = 500
"""Most steps after the break whose batches are skipped: what follows is the damage, not its cause."""


def find(evidence: Evidence, events: Sequence[Event] = ()) -> Rollback | None:
    """None when the loss did not break. Fields that neither log nor events show are empty."""
    broken = progress.loss_break(evidence.progress)
    if broken is None:
        return None
    broke_at, last_good = broken.point.step, _last_good(evidence.progress, broken.point)
    saved = [*_logged(evidence.progress, broken.point), *_reported(events, broke_at)]
    step, checkpoint = max(saved, key=lambda entry: entry[0], default=(None, ""))
    if checkpoint == "" and step is None:
        checkpoint = broken.checkpoint
    until = broken.until if broke_at is None or broken.until is None else min(broken.until, broke_at + SKIP_LIMIT)
    return Rollback(checkpoint, step, last_good + 1 if last_good is not None else broke_at, until)


def last_step(evidence: Evidence) -> int | None:
    """The last training step that the log shows."""
    points = [point for point in evidence.progress if point.step is not None]
    return max(points, key=lambda point: (point.time, point.line)).step if points else None


def _last_good(points: Sequence[Progress], broken: Progress) -> int | None:
    """The last step with a loss before the one that broke."""
    before = [
        point.step
        for point in points
        if point.loss is not None and point.step is not None and point.line < broken.line and point.rank == broken.rank
    ]
    return before[-1] if before else None


def _logged(points: Sequence[Progress], broken: Progress) -> Iterator[tuple[int, str]]:
    """Checkpoints of the log before the break, each with its own step or the last one before its line."""
    step = None
    for point in points:
        if point.line >= broken.line:
            return
        step = point.step if point.step is not None else step
        if point.checkpoint and step is not None:
            yield step, point.checkpoint


def _reported(events: Sequence[Event], end: int | None) -> Iterator[tuple[int, str]]:
    """Checkpoint events from before the break."""
    for event in events:
        if event.kind is EventKind.CHECKPOINT and event.step is not None and end is not None and event.step < end:
            yield event.step, event.path
