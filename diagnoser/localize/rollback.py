"""Where a run should resume after its loss broke: an earlier checkpoint, and the data batches to skip.

Skipping the batches around a spike follows Chowdhery et al., "PaLM" (2022), section 5.1: restart from a checkpoint
before the spike, skip 200 to 500 batches, and the spike does not come back.
"""

from collections.abc import Iterator, Sequence

from diagnoser.localize import progress
from diagnoser.localize.checkpoints import Checkpoint, on_the_way, reported
from diagnoser.model import Event, Evidence, Progress, Rollback

SKIP_LIMIT = 500
"""Most steps after the break whose batches are skipped: what follows is the damage, not its cause."""


def find(evidence: Evidence, events: Sequence[Event] = (), earlier: Sequence[Sequence[Event]] = ()) -> Rollback | None:
    """None when the loss did not break. Fields that neither log nor events show are empty.

    The newest verified checkpoint from before the break; only where there is none, the newest other one that nothing
    speaks against. earlier: checkpoint events of the attempts before this one, the oldest first.
    """
    broken = progress.loss_break(evidence.progress)
    if broken is None:
        return None
    broke_at, last_good = broken.point.step, _last_good(evidence.progress, broken.point)
    until = broken.until if broke_at is None or broken.until is None else min(broken.until, broke_at + SKIP_LIMIT)
    skip_from = last_good + 1 if last_good is not None else broke_at
    way = on_the_way(events, earlier, _first_step(evidence.progress))
    if verified := _newest_verified(way, skip_from, broke_at):
        return Rollback(verified.path, verified.step, skip_from, until, verified=True)
    own = reported(events)
    named = _Named(own)
    saved = [entry for entry in _logged(evidence.progress, broken.point) if not named.holds(*entry)]
    saved += _loadable(own, way, named, broke_at)
    step, checkpoint = max(saved, key=lambda entry: entry[0], default=(None, ""))
    if step is None and not named.holds(None, broken.checkpoint):
        checkpoint = broken.checkpoint
    return Rollback(checkpoint, step, skip_from, until)


def last_step(evidence: Evidence) -> int | None:
    """The last training step that the log shows."""
    points = [point for point in evidence.progress if point.step is not None]
    return max(points, key=lambda point: (point.time, point.line)).step if points else None


def _first_step(points: Sequence[Progress]) -> int:
    """-1 where the log shows none: whether an earlier attempt's checkpoint was on the way is not known then."""
    return next((point.step for point in points if point.step is not None), -1)


def _last_good(points: Sequence[Progress], broken: Progress) -> int | None:
    """The last step with a loss before the one that broke."""
    before = [
        point.step
        for point in points
        if point.loss is not None and point.step is not None and point.line < broken.line and point.rank == broken.rank
    ]
    return before[-1] if before else None


def _newest_verified(way: Sequence[Checkpoint], skip_from: int | None, broke_at: int | None) -> Checkpoint | None:
    """Where the loss is printed every few steps, a checkpoint from between the last good loss and the first broken one
    may hold the damage already: it is the last choice."""
    if broke_at is None or skip_from is None:
        return None
    steps = [(one.step < skip_from, one.step, one) for one in way if one.is_verified and one.step is not None]
    before = [entry for entry in steps if entry[1] < broke_at]
    return max(before, key=lambda entry: entry[:2])[2] if before else None


class _Named:
    """Checkpoints of whose phases the job spoke: what it said outweighs a line of its log."""

    def __init__(self, own: Sequence[Checkpoint]) -> None:
        told = [one for one in own if one.phase is not None or one.is_bad]
        self._steps = {one.step for one in told if one.step is not None}
        self._paths = {one.path for one in told if one.path}

    def holds(self, step: int | None, path: str) -> bool:
        return step in self._steps or path in self._paths


def _logged(points: Sequence[Progress], broken: Progress) -> Iterator[tuple[int, str]]:
    """Checkpoints of the log before the break, each with its own step or the last one before its line."""
    step = None
    for point in points:
        if point.line >= broken.line:
            return
        step = point.step if point.step is not None else step
        if point.checkpoint and step is not None:
            yield step, point.checkpoint


def _loadable(
    own: Sequence[Checkpoint], way: Sequence[Checkpoint], named: _Named, end: int | None
) -> Iterator[tuple[int, str]]:
    """Checkpoints of this attempt from before the break that are written out, without proof that they can be read."""
    if end is None:
        return
    there = {(checkpoint.step, checkpoint.path) for checkpoint in way}
    loadable = ((checkpoint.step, checkpoint) for checkpoint in own if checkpoint.is_loadable)
    for step, checkpoint in loadable:
        if step is None or step >= end:
            continue
        if checkpoint.phase is not None:
            listed = (step, checkpoint.path) in there
        else:  # of a line of the log, which the job's own word outweighs
            listed = not named.holds(None, checkpoint.path)
        if listed:
            yield step, checkpoint.path
