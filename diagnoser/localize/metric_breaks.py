"""Where the metrics of a training broke for good: the loss, and the gradient norm.

The same code reads a run that goes on and one that has ended. A run that goes on may still come back from a spike, so
it must show more points; a run that ended has shown all that it has.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from diagnoser.localize.metric_series import (
    JUMP,
    LATER,
    LEARNED,
    SHORT,
    SIGMAS,
    SPIKES,
    SURE,
    WARM_UP,
    WINDOW,
    LossBreak,
    MetricSeries,
    band,
    break_at,
    by_metric,
    height,
    is_above,
    is_calm,
    last_run,
)
from diagnoser.localize.norm_breaks import norm_explosion, norm_not_finite, supported_jump
from diagnoser.model import Progress
from diagnoser.structure.sparkline import sparkline

_CLIMB = 8
"""Points just before one that are not compared with it where there are enough others."""
_TWICE = 2.0
_STAYED = 0.8
"""Share of the points behind a break that are out of the band: noise may dip below it."""
_WORSE = 2.0
"""Multiple of the loss with which training began above which a jump is sure soon: no data is so hard."""
_SETTLES, _FALLS = 0.9, 0.8
"""Ratio of the newest losses to the first ones behind a break below which it settles, as after a change of the data;
and of the last one to the highest of the first."""
_REGAINED = 0.1
"""Share of a rise that a loss has come down again where it goes back."""
_SOON = 400
"""Points within which a loss that goes back would lose its rise, at the pace that it has or its noise may hide."""
_UNSURE = 4.0
"""Times the median difference of neighbours, over the root of their number: what two medians differ by chance."""
_LOST = 0.4
"""Share of what was learned that a loss which broke has lost."""
_ABSURD = 10.0
"""Multiple of the highest loss before from which a jump is no spike of the kind that trainings recover from."""
_NEWEST = 5


@dataclass(frozen=True, slots=True)
class LossLevels:
    """The losses of a series. is_objective: whether a higher one says that the model got worse."""

    values: Sequence[float]
    is_running: bool
    is_objective: bool

    def why_broken(self, index: int) -> str:
        """Why the loss at an index has broken, and stays so up to the end; "" where it has not."""
        value = self.values[index]
        if value <= max(self.values[max(0, index - SHORT) : index]):  # most points
            return ""
        window, behind = self._before(index), self.values[index:]
        if not window:
            return ""
        ceiling = self.ceiling(window, value, len(behind))
        if not _stays_above(behind, ceiling):
            return ""  # a spike
        if len(behind) < SPIKES and (self.is_running or math.isfinite(value)):
            return ""
        if not math.isfinite(value):
            return f"loss {value:.4g} is not finite, and stays so"
        if not self._is_certain(window, behind):
            return ""
        return f"loss {value:.4g} is above mean + {SIGMAS:.0f} sigma = {ceiling:.4g}, and stays so"

    def foot(self, index: int) -> int:
        """The first value of the climb that ends at an index."""
        before = self.values[max(0, index - WINDOW) : max(1, index - _CLIMB)]
        high = max(filter(math.isfinite, before), default=math.inf)
        first = index
        while first > max(1, index - _CLIMB) and self.values[first - 1] > high:
            first -= 1
        return first

    def ceiling(self, window: Sequence[float], value: float, behind: int) -> float:
        """Mean + 6 sigma, and at least a multiple of the highest value seen: a short stretch has almost no deviation.
        Of a break that lasts also the loss at which most of what was learned is lost.

        Infinite where a jump says nothing.

        value: that is compared with it. behind: how many come from there on.
        """
        high = max(window)
        if not self.is_objective:
            return math.inf
        if len(window) < SHORT or median(window) <= 0.0:
            return math.inf
        least = (_TWICE if len(window) >= WARM_UP else JUMP) * high
        if behind >= LATER:
            least = min(least, self._damaged(window))
        if value <= least:
            return least
        return max(band(window), least)

    def _before(self, index: int) -> list[float]:
        """The finite losses before an index, without a climb that takes some steps: it is not what it climbs from."""
        window = list(filter(math.isfinite, self.values[max(0, index - WINDOW) : index]))
        return window[:-_CLIMB] if len(window) >= 2 * _CLIMB else window

    @property
    def _begin(self) -> float:
        """The loss with which training began."""
        return median(list(filter(math.isfinite, self.values[: 4 * WARM_UP]))[:WARM_UP] or [0.0])

    def _damaged(self, window: Sequence[float]) -> float:
        """The loss from which on a good part of what was learned is lost; a multiple where nothing was yet."""
        level = median(window)
        if self._begin < LEARNED * level:
            return JUMP * max(window)
        return level + _LOST * (self._begin - level)

    def _is_certain(self, window: Sequence[float], behind: Sequence[float]) -> bool:
        """Whether a finite loss that jumped is damage that lasts.

        Other data has another loss, and a new task begins high: only what climbed back a good part of the way to the
        beginning counts, and what goes down again is waited for.
        """
        if not self.is_running and len(behind) <= LATER:
            return True
        high, newest, first = max(window), height(behind[-_NEWEST:]), height(behind[:_NEWEST])
        if newest < self._damaged(window):
            return False
        if newest >= max(_ABSURD * high, _WORSE * self._begin) and behind[-1] >= _FALLS * max(behind[:_NEWEST]):
            return len(behind) >= SURE
        if len(behind) < LATER:
            return False
        if newest < _SETTLES * first:
            return False
        return newest >= JUMP * high or not _may_go_down(behind, newest - median(window))


def _may_go_down(behind: Sequence[float], rise: float) -> bool:
    """Whether a loss that jumped goes back, or does so too slowly for its noise to show it yet."""
    third = len(behind) // 3
    first, last = height(behind[:third]), height(behind[-third:])
    if not math.isfinite(last):
        return False
    noise = median(abs(value - before) for before, value in pairwise(behind))
    fall = first - last
    pace = (fall + _UNSURE * noise / math.sqrt(third)) / (2 * third)
    return fall > _REGAINED * rise or pace * _SOON > rise


def _stays_above(behind: Sequence[float], ceiling: float) -> bool:
    if not all(is_above(value, ceiling) for value in (*behind[:SPIKES], behind[-1])):
        return False
    above = sum(is_above(value, ceiling) for value in behind)
    return above >= _STAYED * len(behind)


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


def _loss_climbed(series: MetricSeries) -> LossBreak | None:
    """Where the loss began to climb that lost, over hundreds of steps, a good part of what was learned: each point is
    within the band of those before it."""
    printed, values = series.printed("loss", finite=True)
    if not series.is_objective:
        return None
    if len(values) < 4 * WINDOW:
        return None
    begin, lowest = median(values[:WARM_UP]), min(_medians(values))
    learned, newest = begin - lowest, values[-2 * WINDOW :]
    if begin < LEARNED * lowest:
        return None  # it had learned nothing that could be lost
    if min(newest) < lowest + _LOST * learned:
        return None
    if median(newest[:WINDOW]) - median(newest[WINDOW:]) > _REGAINED * learned:
        return None  # it comes down again
    index = max(index for index, value in enumerate(values) if value <= lowest + _REGAINED * learned)
    if median(values[index + 1 :][:WARM_UP]) > lowest + _LOST * learned / 2:
        return None  # it stepped up: other data
    why = f"loss {values[-1]:.4g} climbed from {lowest:.4g} since then, to {_LOST:.0%} or more of the way back"
    return break_at(printed, values, index + 1, why, printed[index].metric)


def _medians(values: Sequence[float]) -> Iterator[float]:
    """The medians of neighbours."""
    return (median(values[index : index + WARM_UP]) for index in range(0, len(values) - WARM_UP, WARM_UP))


_SOURCES: tuple[Callable[[MetricSeries], LossBreak | None], ...] = (
    _loss_out_of_band,
    _loss_climbed,
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
