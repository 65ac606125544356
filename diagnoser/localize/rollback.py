"""Where a run should resume after its loss broke: an earlier checkpoint, and the data batches to skip.

Skipping the batches around a spike follows Chowdhery et al., "PaLM" (2022), section 5.1: restart from a checkpoint
before the spike, skip 200 to 500 batches, and the spike does not come back.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from diagnoser.localize.checkpoints import Checkpoint, on_the_way, reported, step_of
from diagnoser.localize.metric_series import LossBreak
from diagnoser.model import Event, Evidence, Progress, Rollback

SKIP_LIMIT = 500
"""Most steps after the break whose batches are skipped: what follows is the damage, not its cause."""


def find_rollback(
    broken: LossBreak | None, evidence: Evidence, events: Sequence[Event] = (), earlier: Sequence[Sequence[Event]] = ()
) -> Rollback | None:
    """None when the loss did not break. Fields that neither log nor events show are empty.

    The newest verified checkpoint from before the break; only where there is none, the newest other one that nothing
    speaks against.

    broken: where it broke.
    earlier: checkpoint events of the attempts before this one, the oldest first.
    """
    if broken is None:
        return None
    broke_at, until = broken.point.step, broken.until
    if broke_at is not None and until is not None:
        until = min(until, broke_at + SKIP_LIMIT)
    skip_from = _first_skipped(evidence.steps, broken.point)
    way = on_the_way(events, earlier, _first_step(evidence.steps))
    verified = _newest_verified(way, skip_from, broke_at)
    if verified:
        return Rollback(verified.path, verified.step, skip_from, until, verified=True)
    own = reported(events)
    named = _Named(own)
    saved = [entry for entry in _logged(evidence.progress, broken.point) if not named.holds(*entry)]
    saved += _loadable(own, way, named, broke_at)
    if saved:
        step, checkpoint = max(saved, key=lambda entry: entry[0])
        return Rollback(checkpoint, step, skip_from, until)
    checkpoint = "" if named.holds(None, broken.checkpoint) else broken.checkpoint
    return Rollback(checkpoint, None, skip_from, until)


def last_step(evidence: Evidence) -> int | None:
    """The last training step that the log shows."""
    newest = max(evidence.steps, key=lambda point: (point.time, point.line), default=None)
    return newest.step if newest else None


def _first_step(steps: Sequence[Progress]) -> int:
    """-1 where the log shows none: whether an earlier attempt's checkpoint was on the way is not known then."""
    if not steps:
        return -1
    if steps[0].step is None:
        return -1
    return steps[0].step


def _first_skipped(steps: Sequence[Progress], broken: Progress) -> int | None:
    """The step after the last one with a loss before that which broke, else the one that broke."""
    first = broken.step
    for point in steps:
        if point.rank != broken.rank:
            continue
        if point.line >= broken.line:
            continue
        if point.loss is None:
            continue
        if point.step is not None:
            first = point.step + 1
    return first


def _newest_verified(way: Sequence[Checkpoint], skip_from: int | None, broke_at: int | None) -> Checkpoint | None:
    """Where the loss is printed every few steps, a checkpoint from between the last good loss and the first broken one
    may hold the damage already: it is the last choice."""
    if broke_at is None:
        return None
    if skip_from is None:
        return None
    verified = filter(attrgetter("is_verified"), way)
    before = [checkpoint for checkpoint in verified if step_of(checkpoint) < broke_at]
    return max(before, key=lambda checkpoint: (step_of(checkpoint) < skip_from, step_of(checkpoint)), default=None)


class _Named:
    """Checkpoints of whose phases the job spoke: what it said outweighs a line of its log."""

    def __init__(self, own: Sequence[Checkpoint]) -> None:
        self._steps, self._paths = set[int | None](), set[str]()
        for checkpoint in own:
            if checkpoint.phase is not None or checkpoint.is_bad:
                self._steps.add(checkpoint.step)
                self._paths.add(checkpoint.path)
        self._steps.discard(None)
        self._paths.discard("")

    def holds(self, step: int | None, path: str) -> bool:
        if step in self._steps:
            return True
        return path in self._paths


def _logged(points: Sequence[Progress], broken: Progress) -> Iterator[tuple[int, str]]:
    """Checkpoints of the log before the break, each with its own step or the last one before its line."""
    step = None
    for point in points:
        if point.line >= broken.line:
            return
        if point.step is not None:
            step = point.step
        if not point.checkpoint:
            continue
        if step is not None:
            yield step, point.checkpoint


def _loadable(
    own: Sequence[Checkpoint], way: Sequence[Checkpoint], named: _Named, end: int | None
) -> Iterator[tuple[int, str]]:
    """Checkpoints of this attempt from before the break that are written out, without proof that they can be read."""
    if end is None:
        return
    there = {(checkpoint.step, checkpoint.path) for checkpoint in way}
    for checkpoint in own:
        step = checkpoint.step
        if step is None:
            continue
        if step >= end:
            continue
        if not checkpoint.is_loadable:
            continue
        if checkpoint.phase is not None:
            listed = (step, checkpoint.path) in there
        else:  # of a line of the log, which the job's own word outweighs
            listed = not named.holds(None, checkpoint.path)
        if listed:
            yield step, checkpoint.path
