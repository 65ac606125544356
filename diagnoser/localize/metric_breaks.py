"""Where the metrics of a training broke for good: the loss, and the gradient norm.

The same code reads a run that goes on and one that has ended. A run that goes on may still come back from a spike, so
it must show more points; a run that ended has shown all that it has.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from diagnoser.localize.loss_levels import LossLevels
from diagnoser.localize.metric_series import (
    JUMP,
    WARM_UP,
    WINDOW,
    LossBreak,
    MetricSeries,
    break_at,
    by_metric,
    is_above,
    is_calm,
    last_run,
)
from diagnoser.localize.norm_breaks import norm_explosion, norm_not_finite, supported_jump
from diagnoser.model import Progress
from diagnoser.structure.sparkline import sparkline

LEAST_RISE = 1.25
"""No loss that is below this multiple of all others has broken."""
_DRAWN = 48
"""Most values of a picture."""


def passed_spikes(points: Sequence[Progress]) -> Iterator[tuple[Progress, float]]:
    """Where the loss left its band and came back, with the highest value there."""
    for part in by_metric(points):
        series = MetricSeries(tuple(part), is_running=False)
        printed, values = series.printed("loss")
        levels, index = LossLevels(values, is_running=False, is_objective=series.is_objective), WARM_UP
        while index < len(values):
            window = list(filter(math.isfinite, values[max(0, index - WINDOW) : index]))
            ceiling = levels.ceiling(window, values[index], len(values) - index) if window else math.inf
            end = index
            while end < len(values) and values[end] > ceiling:
                end += 1
            if index < end < len(values):
                yield printed[index], max(values[index:end])
            index = end + 1


def loss_break(points: Sequence[Progress], *, is_running: bool = False) -> LossBreak | None:
    """The first point from which the loss is NaN, infinite, or far above its band, up to the end of the series.

    A spike that the run recovers from does not count; nor does a series that starts without a finite loss. Without a
    printed loss, a gradient norm that stays NaN or infinite counts; one that explodes and stays high always does.
    Losses of different names, and of different processes, are series of their own.
    """
    series = [MetricSeries(tuple(last_run(part)), is_running) for part in by_metric(points)]
    for source in _SOURCES:
        breaks = list(filter(None, map(source, series)))
        if breaks:
            first = min(breaks, key=lambda broken: (broken.point.time, broken.point.line))
            return _with_checkpoint(first, points)
    return None


def _loss_out_of_band(series: MetricSeries) -> LossBreak | None:
    """Where the loss leaves its band, or is not finite any more."""
    printed, values = series.printed("loss")
    if is_calm(values, LEAST_RISE):
        return None
    levels = LossLevels(values, series.is_running, series.is_objective)
    for index in range(1, len(values)):
        why = levels.why_broken(index)
        if why:
            index = levels.foot(index)
            return break_at(printed, values, index, why, printed[index].metric)
    return None


_SOURCES: tuple[Callable[[MetricSeries], LossBreak | None], ...] = (
    _loss_out_of_band,
    norm_not_finite,
    norm_explosion,
    supported_jump,
)
"""The ways in which a training diverges, the surest first."""


def reported_break(points: Sequence[Progress], line: int) -> LossBreak | None:
    """The break that a line of the run itself reports, where the series shows none that lasts: the first of the losses
    before it that are far above the others, else the last one."""
    printed = [point for point in points if point.loss is not None and point.line <= line]
    values = [math.inf if point.loss is None else point.loss for point in printed]
    if not values:
        return None
    index = len(values)
    while index > 1 and is_above(values[index - 1], JUMP * median(values[max(0, index - WINDOW) : index - 1])):
        index -= 1
    index = min(index, len(values) - 1)
    return _with_checkpoint(break_at(printed, values, index, "", printed[index].metric), points)


def _with_checkpoint(broken: LossBreak, points: Sequence[Progress]) -> LossBreak:
    """With the last checkpoint before the break."""
    checkpoint = ""
    for point in points:
        if point.checkpoint and point.line < broken.point.line:
            checkpoint = point.checkpoint
    return replace(broken, checkpoint=checkpoint)


def picture(broken: LossBreak, *, is_running: bool) -> str:
    """The values around a break as a line of text, with what they were and are."""
    before = list(filter(math.isfinite, broken.values[: broken.before]))
    newest = broken.values[-1]
    was = f"{median(before):.4g} before, " if before else ""
    at = "" if broken.point.step is None else f" since step {broken.point.step}"
    text = f"{broken.metric} {sparkline(broken.values[-_DRAWN:], _mark(broken))} {was}{newest:.4g} now{at}."
    if is_running:
        text += " The run goes on."
    return text


def _mark(broken: LossBreak) -> int:
    return broken.before - max(0, len(broken.values) - _DRAWN)
