"""Where a diverged run goes on."""

import math
from typing import Any

from diagnoser.localize import rollback
from diagnoser.localize.metric_breaks import loss_break
from diagnoser.model import Event, EventKind, Evidence, Progress, Rollback


def found_in(evidence: Evidence, *events: Any) -> Rollback | None:
    return rollback.find_rollback(loss_break(evidence.progress), evidence, *events)


def series(losses: list[float], saved: dict[int, str] | None = None, every: int = 10) -> Evidence:
    """One loss every ten steps, one line each; ``saved``: index -> checkpoint saved on the line after it."""
    points: list[Progress] = []
    for index, loss in enumerate(losses):
        points.append(Progress(2 * index + 1, 0, float(index), step=index * every, loss=loss))
        if saved and index in saved:
            points.append(Progress(2 * index + 2, 0, float(index), checkpoint=saved[index]))
    return Evidence(progress=tuple(points))


GOOD = [2.0 + 0.01 * (number % 3) for number in range(20)]
BROKEN = [*GOOD, math.nan, math.nan, math.nan]


def test_the_last_checkpoint_before_the_break_and_the_batches_around_it() -> None:
    """Checkpoints saved after the loss broke are not healthy."""
    evidence = series(BROKEN, {5: "/ckpt/50", 15: "/ckpt/150", 21: "/ckpt/210"})
    assert found_in(evidence) == Rollback("/ckpt/150", 150, 191, 220)


def test_events_tell_of_checkpoints_too() -> None:
    """The later of log and events counts, as long as it is from before the break."""
    evidence = series(BROKEN, {5: "/ckpt/50"})
    events = [Event(EventKind.CHECKPOINT, 1.0, step=step, path=f"/ev/{step}") for step in (180, 30, 205)]
    assert found_in(evidence, events) == Rollback("/ev/180", 180, 191, 220)


def test_without_a_known_checkpoint_the_batches_are_still_told() -> None:
    """What is not known is empty."""
    assert found_in(series(BROKEN)) == Rollback("", None, 191, 220)


def test_a_long_damage_is_not_all_skipped() -> None:
    """Thousands of steps of NaN come from one bad batch."""
    found = found_in(series([*GOOD, *[math.nan] * 200]))
    assert found is not None and (found.skip_from, found.skip_to) == (191, 200 + rollback.SKIP_LIMIT)


def test_a_run_that_did_not_diverge_needs_none() -> None:
    """Nothing to go back from."""
    assert found_in(series(GOOD)) is None
    assert found_in(Evidence()) is None


def test_the_last_step_is_that_of_the_last_point() -> None:
    """Not the highest: a log may hold an earlier launch that came further."""
    points = (Progress(1, 0, 1.0, step=900), Progress(2, 0, 2.0, step=450), Progress(3, 0, 3.0, loss=2.0))
    assert rollback.last_step(Evidence(progress=points)) == 450
    assert rollback.last_step(Evidence()) is None
