"""Where the gradient norm of a training left its band for good, or says that a short jump of the loss is real."""

import math
from collections.abc import Sequence
from itertools import accumulate, takewhile
from statistics import median

from diagnoser.localize.metric_series import (
    JUMP,
    LATER,
    SHORT,
    SPIKES,
    SURE,
    WARM_UP,
    WINDOW,
    LossBreak,
    MetricSeries,
    band,
    break_at,
    is_calm,
)

EXPLODED = 10.0
"""A gradient norm above this multiple of its median has exploded: norms vary more than losses do."""
_NORMS = 2
"""Points in a row without a finite gradient norm: a single one is a step that mixed precision skipped."""
_ABSURD = 1000.0
"""A gradient norm from here on that is also far over all before says by itself that a jump of the loss is a spike."""
_BEYOND = 100.0
"""A gradient norm of thousands above this multiple of the highest before has exploded, on however few points."""
_LOUD = 10.0
"""A lasting gradient norm below this is no explosion, whatever it was before."""
_NAME = "gradient norm"


def norm_not_finite(series: MetricSeries) -> LossBreak | None:
    """Where the gradient norm stays NaN or infinite, in a series without a finite loss."""
    if series.printed("loss", finite=True)[0]:
        return None
    printed, values = series.printed("grad_norm")
    broken = list(takewhile(lambda value: not math.isfinite(value), reversed(values)))
    if len(broken) < _NORMS + series.is_running:
        return None
    why = "the gradient norm is not finite, and stays so"
    return break_at(printed, values, len(values) - len(broken), why, _NAME)


def norm_explosion(series: MetricSeries) -> LossBreak | None:
    """Where the gradient norm left its band for good: far above what it was, up to the end of the series."""
    printed, values = series.printed("grad_norm", finite=True)
    if is_calm(values, EXPLODED):
        return None
    if series.is_running and not series.is_objective:
        return None
    lowest_behind = _lowest_behind(values)
    for index in range(WARM_UP, _end(values, series)):
        window = values[max(0, index - WINDOW) : index]
        if lowest_behind[index] <= EXPLODED * median(window):  # most points
            continue
        ceiling = _norm_ceiling(window, len(values) - index, is_running=series.is_running)
        if lowest_behind[index] > ceiling:
            why = f"the gradient norm {values[index]:.4g} is above {ceiling:.4g}, far over what it was, and stays so"
            return break_at(printed, values, index, why, _NAME)
    return None


def _norm_ceiling(window: Sequence[float], behind: int, *, is_running: bool) -> float:
    """What a norm must stay above. Fewer points than others need are enough where they are thousands, and a multiple
    that no clipping explains.

    behind: how many points do.
    """
    ceiling, needed = max(band(window), EXPLODED * median(window)), SPIKES
    if is_running or behind > LATER:
        ceiling, needed = max(ceiling, JUMP * max(window), _LOUD), 2 * SURE
    if behind < needed:
        return max(_ABSURD, _BEYOND * max(window))
    return ceiling


def supported_jump(series: MetricSeries) -> LossBreak | None:
    """Where the loss jumps in a series too short for statistics, and gradient norms of thousands say that it is real:
    up to the end of the series."""
    with_norm = MetricSeries(tuple(series.printed("grad_norm", finite=True)[0]), series.is_running)
    points, losses = with_norm.printed("loss", finite=True)
    if len(points) < SHORT:
        return None
    norms = [point.grad_norm or 0.0 for point in points]
    loss_behind, norm_behind = _lowest_behind(losses), _lowest_behind(norms)
    highest_losses, highest_norms = list(accumulate(losses, max)), list(accumulate(norms, max))
    for index in range(1, _end(points, series)):
        usual = highest_norms[index - 1]
        is_absurd = norm_behind[index] > max(_ABSURD, EXPLODED * usual)
        if is_absurd and loss_behind[index] > JUMP * highest_losses[index - 1]:
            why = f"loss {losses[index]:.4g} jumps with a gradient norm of {norms[index]:.4g} (before {usual:.4g})"
            return break_at(points, losses, index, f"{why}, and both stay so", points[index].metric)
    return None


def _end(values: Sequence[object], series: MetricSeries) -> int:
    """Up to where a break may lie: behind it a run that goes on has shown some points."""
    return len(values) - (SPIKES - 1) * series.is_running


def _lowest_behind(values: Sequence[float]) -> list[float]:
    """The least value from each point on."""
    return list(accumulate(reversed(values), min))[::-1]
