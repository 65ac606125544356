"""Where the metrics of a training broke for good: the loss, the gradient norm, the throughput.

The same code reads a run that goes on and one that has ended. A run that goes on may still come back from a spike, so
it must show more points; a run that ended has shown all that it has.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from statistics import fmean, median

from diagnoser.model import Progress, Stage, Stream
from diagnoser.structure.progress import is_evaluated
from diagnoser.structure.sparkline import sparkline

_WARM_UP = 5
"""Points needed before a mean and a deviation say anything."""
_SIGMAS = 6.0
_NORMS = 2
"""Points in a row without a finite gradient norm: a single one is a step that mixed precision skipped."""
_WINDOW = 24
"""Points before a break that it is compared with: as many as the compressor keeps there."""
EXPLODED = 10.0
"""A gradient norm above this multiple of its median has exploded: norms vary more than losses do."""
_CLIMB = 8
"""Points just before one that are not compared with it where there are enough others."""
_SPIKES = 3
"""Points above the band before a run counts as diverged, when the loss stays finite."""
_SHORT = 3
"""Points after which a jump may be told before a deviation can be: it must then be a multiple, not a deviation."""
_TWICE = 2.0
LEAST_RISE = 1.25
"""No loss that is below this multiple of all others has broken."""
_JUMP = 3.0
"""A loss above this multiple of the highest before has jumped, however few points there are."""
_ABSURD_NORM = 1000.0
"""A gradient norm from here on that is also far over all before says by itself that a jump of the loss is a spike."""
_BEYOND = 100.0
"""A gradient norm of thousands above this multiple of the highest before has exploded, on however few points."""
_STAYED = 0.8
"""Share of the points behind a break that are out of the band: noise may dip below it."""
_SURE, _LATER = 5, 15
"""Points of a run that goes on, behind a break, before it is certain: of a loss that is absurd, and of any other."""
_WORSE = 2.0
"""Multiple of the loss with which training began above which a jump is sure soon: no data is so hard."""
_LEARNED = 1.5
"""Ratio of the first losses to those before a break from which training has shown that it learns."""
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
_DRAWN = 48
"""Most values of a picture."""
_LOUD_NORM = 10.0
"""A lasting gradient norm below this is no explosion, whatever it was before."""


@dataclass(frozen=True, slots=True)
class LossBreak:
    """Where the loss left its band.

    checkpoint: the last one saved before it, else "". until: the newest step behind it. values: what the series held
    around it. metric: its name. before: of ``values``, how many come before the break.
    """

    point: Progress
    why: str
    checkpoint: str
    until: int | None
    metric: str = "loss"
    values: tuple[float, ...] = ()
    before: int = 0


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """What one process prints of one loss, in order; with the gradient norms and the speed in the same lines.

    is_running: whether the run goes on.
    """

    points: tuple[Progress, ...]
    is_running: bool

    def printed(self, kind: str, *, finite: bool = False) -> tuple[list[Progress], list[float]]:
        """The points that print a value, and their values.

        kind: ``loss`` or ``grad_norm``.
        finite: only finite values count.
        """
        printed, values = list[Progress](), list[float]()
        for point in self.points:
            value = getattr(point, kind)
            if value is None or (finite and not math.isfinite(value)):
                continue
            printed.append(point)
            values.append(value)
        return printed, values

    @property
    def is_objective(self) -> bool:
        return _is_objective(self.points)


def passed_spikes(points: Sequence[Progress]) -> Iterator[tuple[Progress, float]]:
    """Where the loss left its band and came back, with the highest value there."""
    for part in _by_metric(points):
        printed, values = MetricSeries(tuple(part), is_running=False).printed("loss")
        judged, index = _LossValues(values, is_running=False, is_objective=_is_objective(part)), _WARM_UP
        while index < len(values):
            window = list(filter(math.isfinite, values[max(0, index - _WINDOW) : index]))
            ceiling = judged.ceiling(window, values[index], len(values) - index) if window else math.inf
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
    series = [MetricSeries(tuple(_last_run(part)), is_running) for part in _by_metric(points)]
    for source in _SOURCES:
        breaks = list(filter(None, map(source, series)))
        if breaks:
            first = min(breaks, key=lambda broken: (broken.point.time, broken.point.line))
            return _with_checkpoint(first, points)
    return None


def reported_break(points: Sequence[Progress], line: int) -> LossBreak | None:
    """The break that a line of the run itself reports, where the series shows none that lasts: the first of the losses
    before it that are far above the others, else the last one."""
    printed = [point for point in points if point.loss is not None and point.line <= line]
    values = [math.inf if point.loss is None else point.loss for point in printed]
    if not values:
        return None
    index = len(values)
    while index > 1 and _out_of_band(values[index - 1], _JUMP * median(values[max(0, index - _WINDOW) : index - 1])):
        index -= 1
    index = min(index, len(values) - 1)
    return _with_checkpoint(_break_at(printed, values, index, "", printed[index].metric), points)


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


def _is_objective(points: Iterable[Progress]) -> bool:
    return all(point.is_objective for point in points)


def _by_metric(points: Iterable[Progress]) -> Iterator[list[Progress]]:
    series: dict[tuple[Stream, int, str], list[Progress]] = {}
    for point in points:
        if point.stage is Stage.TRAIN and not is_evaluated(point.metric):
            series.setdefault((point.stream, point.rank, point.metric), []).append(point)
    return iter(series.values())


def _loss_out_of_band(series: MetricSeries) -> LossBreak | None:
    """Where the loss leaves its band, or is not finite any more."""
    printed, values = series.printed("loss")
    if _is_calm(values, LEAST_RISE):
        return None
    judged = _LossValues(values, series.is_running, series.is_objective)
    for index in range(1, len(values)):
        why = judged.why_broken(index)
        if why:
            index = _foot(values, index)
            return _break_at(printed, values, index, why, printed[index].metric)
    return None


def _foot(values: Sequence[float], index: int) -> int:
    """The first value of the climb that ends at an index."""
    high = max(filter(math.isfinite, values[max(0, index - _WINDOW) : max(1, index - _CLIMB)]), default=math.inf)
    first = index
    while first > max(1, index - _CLIMB) and values[first - 1] > high:
        first -= 1
    return first


def _is_calm(values: Sequence[float], multiple: float) -> bool:
    """Whether the newest value cannot be above this multiple of any that came before: most series, most of the time."""
    if not values:
        return True
    return 0.0 <= values[-1] <= multiple * min(filter(math.isfinite, values), default=0.0)


@dataclass(frozen=True, slots=True)
class _LossValues:
    """The losses of a series. is_objective: whether a higher one says that the model got worse."""

    values: Sequence[float]
    is_running: bool
    is_objective: bool

    def why_broken(self, index: int) -> str:
        """Why the loss at an index has broken, and stays so up to the end; "" where it has not."""
        value, before = self.values[index], self.values[max(0, index - _WINDOW) : index]
        if value <= max(before[-_SHORT:]):  # most points
            return ""
        window = list(filter(math.isfinite, before))
        if len(window) >= 2 * _CLIMB:  # a climb that takes some steps is not what it climbs from
            window = window[:-_CLIMB]
        if not window:
            return ""
        behind = self.values[index:]
        ceiling = self.ceiling(window, value, len(behind))
        if not _stays_above(behind, ceiling):
            return ""  # a spike
        if not math.isfinite(value):
            return self._why_not_finite(value, behind)
        if len(behind) < _SPIKES or not self._is_certain(window, behind):
            return ""
        return f"loss {value:.4g} is above mean + {_SIGMAS:.0f} sigma = {ceiling:.4g}, and stays so"

    def _why_not_finite(self, value: float, behind: Sequence[float]) -> str:
        if self.is_running and len(behind) < _SPIKES:
            return ""
        return f"loss {value:.4g} is not finite, and stays so"

    def ceiling(self, window: Sequence[float], value: float, behind: int) -> float:
        """Mean + 6 sigma, and at least a multiple of the highest value seen: a short stretch has almost no deviation.
        Of a break that lasts also the loss at which most of what was learned is lost.

        Infinite where a jump says nothing.

        value: that is compared with it. behind: how many come from there on.
        """
        level, high = median(window), max(window)
        if len(window) < _SHORT or not self.is_objective or level <= 0.0:
            return math.inf
        least = (_TWICE if len(window) >= _WARM_UP else _JUMP) * high
        if behind >= _LATER and self._begin >= _LEARNED * level:
            least = min(least, level + _LOST * (self._begin - level))
        if value <= least:
            return least
        return max(fmean(window) + _SIGMAS * _deviation(window), least)

    @property
    def _begin(self) -> float:
        """The loss with which training began."""
        return median(list(filter(math.isfinite, self.values[: 4 * _WARM_UP]))[:_WARM_UP] or [0.0])

    def _is_certain(self, window: Sequence[float], behind: Sequence[float]) -> bool:
        """Whether a finite loss that jumped is damage that lasts.

        Other data has another loss, and a new task begins high: only what climbed back a good part of the way to the
        beginning counts, and what goes down again is waited for.
        """
        if not self.is_running and len(behind) <= _LATER:
            return True
        high, level = max(window), median(window)
        begin = self._begin
        newest, first = _height(behind[-_NEWEST:]), _height(behind[:_NEWEST])
        needed = _JUMP * high
        if begin >= _LEARNED * level:
            needed = level + _LOST * (begin - level)
        if newest < needed:
            return False
        if newest >= max(_ABSURD * high, _WORSE * begin) and behind[-1] >= _FALLS * max(behind[:_NEWEST]):
            return len(behind) >= _SURE
        if len(behind) < _LATER or newest < _SETTLES * first:
            return False
        return newest >= _JUMP * high or not _may_go_down(behind, newest - level)


def _may_go_down(behind: Sequence[float], rise: float) -> bool:
    """Whether a loss that jumped goes back, or does so too slowly for its noise to show it yet."""
    third = len(behind) // 3
    first, last = _height(behind[:third]), _height(behind[-third:])
    if not math.isfinite(last):
        return False
    noise = median(abs(value - before) for before, value in pairwise(behind))
    fall = first - last
    pace = (fall + _UNSURE * noise / math.sqrt(third)) / (2 * third)
    return fall > _REGAINED * rise or pace * _SOON > rise


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation, for much less than ``statistics.pstdev`` takes to be exact."""
    mean = fmean(values)
    return math.sqrt(fmean([(value - mean) ** 2 for value in values]))


def _stays_above(behind: Sequence[float], ceiling: float) -> bool:
    if not all(_out_of_band(value, ceiling) for value in (*behind[:_SPIKES], behind[-1])):
        return False
    above = sum(_out_of_band(value, ceiling) for value in behind)
    return above >= _STAYED * len(behind)


def _height(values: Sequence[float]) -> float:
    """The median, where what is no number counts as high as can be."""
    return median(value if math.isfinite(value) else math.inf for value in values)


def _out_of_band(value: float, ceiling: float) -> bool:
    if value > ceiling:
        return True
    return not math.isfinite(value)


def _norm_not_finite(series: MetricSeries) -> LossBreak | None:
    """Where the gradient norm stays NaN or infinite, in a series without a finite loss."""
    if series.printed("loss", finite=True)[0]:
        return None
    printed, values = series.printed("grad_norm")
    broken = list(takewhile(lambda value: not math.isfinite(value), reversed(values)))
    if len(broken) < _NORMS + series.is_running:
        return None
    why = "the gradient norm is not finite, and stays so"
    return _break_at(printed, values, len(values) - len(broken), why, "gradient norm")


def _norm_explosion(series: MetricSeries) -> LossBreak | None:
    """Where the gradient norm left its band for good: far above what it was, up to the end of the series.

    Fewer points than others need are enough where they are thousands, and a multiple that no clipping explains.
    """
    printed, values = series.printed("grad_norm", finite=True)
    if _is_calm(values, EXPLODED):
        return None
    lowest_behind = _lowest_behind(values)
    for index in range(_WARM_UP, len(values)):
        window = values[max(0, index - _WINDOW) : index]
        if lowest_behind[index] <= EXPLODED * median(window):  # most points
            continue
        ceiling = max(fmean(window) + _SIGMAS * _deviation(window), EXPLODED * median(window))
        behind, needed = len(values) - index, _SPIKES
        if series.is_running or behind > _LATER:
            ceiling, needed = max(ceiling, _JUMP * max(window), _LOUD_NORM), 2 * _SURE
        absurd = max(_ABSURD_NORM, _BEYOND * max(window))
        if behind < needed:
            ceiling = absurd
        if series.is_running and (behind < _SPIKES or not series.is_objective):
            continue
        if lowest_behind[index] > ceiling:
            why = f"the gradient norm {values[index]:.4g} is above {ceiling:.4g}, far over what it was, and stays so"
            return _break_at(printed, values, index, why, "gradient norm")
    return None


def _lowest_behind(values: Sequence[float]) -> list[float]:
    """The least value from each point on."""
    lowest, least = list[float](), math.inf
    for value in reversed(values):
        least = min(least, value)
        lowest.append(least)
    return lowest[::-1]


def _supported_jump(series: MetricSeries) -> LossBreak | None:
    """Where the loss jumps in a series too short for statistics, and gradient norms of thousands say that it is real:
    up to the end of the series."""
    both = [point for point in series.printed("loss", finite=True)[0] if _is_finite(point.grad_norm)]
    losses, norms = [point.loss or 0.0 for point in both], [point.grad_norm or 0.0 for point in both]
    if len(both) < _SHORT:
        return None
    loss_behind, norm_behind = _lowest_behind(losses), _lowest_behind(norms)
    usual, high = norms[0], losses[0]
    for index in range(1, len(both)):
        absurd = norm_behind[index] > max(_ABSURD_NORM, EXPLODED * usual)
        is_shown = not series.is_running or len(both) - index >= _SPIKES
        if absurd and is_shown and loss_behind[index] > _JUMP * high:
            why = f"loss {losses[index]:.4g} jumps with a gradient norm of {norms[index]:.4g} (before {usual:.4g})"
            return _break_at(both, losses, index, f"{why}, and both stay so", both[index].metric)
        usual, high = max(usual, norms[index]), max(high, losses[index])
    return None


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


_SOURCES: tuple[Callable[[MetricSeries], LossBreak | None], ...] = (
    _loss_out_of_band,
    _norm_not_finite,
    _norm_explosion,
    _supported_jump,
)
"""The ways in which a training diverges, the surest first."""


def _last_run(points: Sequence[Progress]) -> Sequence[Progress]:
    """The points since the step counter last fell far back: another run in the same log has its own losses. A counter
    that begins anew with each epoch is of one run: the loss goes on where it was."""
    start = highest = 0
    for index, point in enumerate(points):
        step = point.step
        if step is None:
            continue
        if step < highest / 2 and highest - step > _WARM_UP:
            highest = step
            if not _goes_on(points[start:index], points[index:]):
                start = index
        highest = max(highest, step)
    return points[start:]


def _goes_on(before: Sequence[Progress], behind: Sequence[Progress]) -> bool:
    """Whether the losses behind a counter that fell back are about those before it."""
    last = [point.loss for point in before if point.loss is not None][-_SHORT:]
    first = []
    for point in behind[: 2 * _SHORT]:
        if point.loss is not None:
            first.append(point.loss)
    if not last or not first:
        return False
    return _height(first[:_SHORT]) <= _LEARNED * _height(last)


def _break_at(printed: Sequence[Progress], values: Sequence[float], index: int, why: str, metric: str) -> LossBreak:
    start = max(0, index - _WINDOW)
    return LossBreak(
        printed[index], why, "", printed[-1].step, metric or "loss", tuple(values[start:]), before=index - start
    )


def _with_checkpoint(broken: LossBreak, points: Sequence[Progress]) -> LossBreak:
    """With the last checkpoint before the break."""
    checkpoint = ""
    for point in points:
        if point.checkpoint and point.line < broken.point.line:
            checkpoint = point.checkpoint
    return replace(broken, checkpoint=checkpoint)
