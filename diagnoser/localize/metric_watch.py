"""The metrics of a run that goes on: what is remembered of them, and what they show that somebody should know now."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import median

from diagnoser.localize.metric_breaks import LEAST_RISE, loss_break, passed_spikes
from diagnoser.localize.metric_series import LATER, LEARNED, is_above, is_of_training, losses_of
from diagnoser.localize.norm_breaks import EXPLODED
from diagnoser.model import MetricEvent, MetricEventKind, Progress, Stage, Stream
from diagnoser.structure.sparkline import sparkline

FIRST, LATEST = 8, 256
"""Points of a series that are remembered: how it began, and the newest ones. What lies between was flat, or is told."""
SERIES = 256
"""Series of an attempt that are watched: more of them are the same loss on other ranks."""
_TAIL, _BASE = 20, 50
"""Points that are slow before a run counts as slower, and points before them that it is compared with."""
_SLOWER, _BACK = 0.82, 0.92
"""Share of the usual speed below which the median of a slow stretch lies, a fifth and its noise; and every point."""
_NEAR = 3
"""Points just before a fall of which one was at the usual speed."""
_RISES = 0.03
"""Share by which the second half of a slow stretch is quicker than the first where it comes back."""
_UNSURE = 3.0
"""Times the median difference of neighbours, over the root of their number: what two medians differ by chance."""
_NOISY = 0.1
"""Robust deviation of the speed, as a share of it, above which it says nothing."""
_DEVIATION = 1.4826
"""A median absolute deviation times this estimates a standard deviation."""
_CRAWLS, _CRAWLING = 3.0, 2.0
"""Times as long as before that steps take in a run that crawls: all of the newest ones together, and each of them."""
_CALM, _SLOW, _SLOW_SECONDS = 5, 3, 5.0
"""Fewest paces before a crawl, and fewest slow ones; and how long what is slow lasts at least."""
_PACES = 64
"""Newest points whose paces are compared."""
_STUCK = 200
"""Points without any progress before a training that has not learned anything counts as stuck."""
_LEVELS = (9.0, 12.7)
"""The natural logarithm of vocabularies of 8 thousand to 330 thousand tokens: the loss of a model that guesses."""
_LEARNED = 0.9
"""Ratio of a loss to the first ones below which something was learned."""
_FLAT = 0.02
"""Share of the loss by which one that falls has fallen within so many points."""


_Key = tuple[Stream, int, str]


@dataclass(slots=True)
class WatchedSeries:
    """What is remembered of a series. lowest_loss, lowest_norm: of all its points."""

    points: list[Progress] = field(default_factory=list)
    lowest_loss: float = math.inf
    lowest_norm: float = math.inf

    def add(self, point: Progress) -> None:
        self.points.append(point)
        self.lowest_loss = _lower(self.lowest_loss, point.loss)
        self.lowest_norm = _lower(self.lowest_norm, point.grad_norm)
        if len(self.points) > FIRST + 2 * LATEST:
            del self.points[FIRST:-LATEST]

    @property
    def may_be_broken(self) -> bool:
        """Whether the newest point is above all that a calm series could show: only then the others are compared."""
        newest, bounds = self.points[-1], (math.inf, math.inf)
        if newest.is_objective:
            bounds = LEAST_RISE * self.lowest_loss, EXPLODED * self.lowest_norm
        return any(map(_is_above, (newest.loss, newest.grad_norm), bounds))

    @property
    def came_back(self) -> bool:
        """Whether the newest points are about the best that the series showed: a loss that broke, and is well again."""
        newest = self.points[-LATER:]
        if len(losses_of(newest)) < LATER:
            return False
        if any(_is_above(point.loss, LEARNED * self.lowest_loss) for point in newest):
            return False
        return not any(_is_above(point.grad_norm, EXPLODED * self.lowest_norm) for point in newest)

    @property
    def may_be_slower(self) -> bool:
        usual = max(map(speed, self.points[-_TAIL - _BASE : -_TAIL]), default=0.0)
        return speed(self.points[-1]) < _SLOWER * usual

    @property
    def may_crawl(self) -> bool:
        """Whether the newest steps came more slowly than those before: only then all are compared."""
        if len(self.points) <= _CALM + _SLOW:
            return False
        recent = self.points[-_PACES:]
        usual = pace(recent[0], recent[len(recent) // 2])
        return pace(self.points[-_SLOW - 1], self.points[-1]) >= _CRAWLING * usual > 0.0

    @property
    def may_be_stuck(self) -> bool:
        loss = self.points[-1].loss
        return loss is not None and _LEVELS[0] <= loss <= _LEVELS[1]


def _lower(lowest: float, value: float | None) -> float:
    if value is None:
        return lowest
    return min(lowest, value) if math.isfinite(value) else lowest


def _is_above(value: float | None, bound: float) -> bool:
    return value is not None and is_above(value, bound)


class MetricHistory:
    """The metrics of one attempt, in bounded memory. Lines may be added twice; each counts once.

    advanced: when the newest point came that shows another step than the one before it; 0.0 before the first.
    """

    def __init__(self) -> None:
        self.advanced = 0.0
        self._series: dict[_Key, WatchedSeries] = {}
        self._last: dict[Stream, int] = {}
        self._fresh: dict[_Key, WatchedSeries] = {}

    @property
    def series(self) -> Collection[WatchedSeries]:
        return self._series.values()

    @property
    def came_back(self) -> bool:
        """Whether all series that print a loss, or a gradient norm, have come back."""
        printing = [series for series in self.series if min(series.lowest_loss, series.lowest_norm) < math.inf]
        return bool(printing) and all(series.came_back for series in printing)

    def add(self, points: Sequence[Progress]) -> None:
        """Add points of lines behind those that were added before."""
        for point in sorted(points, key=lambda point: point.line):
            if point.line > self._last.get(point.stream, 0):
                self._append(point)
        for point in points:
            self._last[point.stream] = max(point.line, self._last.get(point.stream, 0))

    def _append(self, point: Progress) -> None:
        key = point.stream, point.rank, point.metric
        if not is_of_training(point):
            return
        if key not in self._series and len(self._series) >= SERIES:
            return
        self._fresh[key] = series = self._series.setdefault(key, WatchedSeries())
        if not series.points or series.points[-1].step != point.step:
            self.advanced = max(self.advanced, point.received)
        series.add(point)

    def events(self) -> Iterator[MetricEvent]:
        """What the series with points since the last call show now."""
        fresh, self._fresh = list(self._fresh.values()), {}
        for series in fresh:
            checks = (
                (series.may_be_broken, _diverging),
                (series.may_be_stuck, stuck),
                (series.may_crawl, crawling),
                (series.may_be_slower, slower),
            )
            for may_be, check in checks:
                event = check(series.points) if may_be else None
                had_learned = series.lowest_loss < _LEARNED * _LEVELS[0]
                if event and event.kind is MetricEventKind.STUCK and had_learned:
                    event = replace(event, kind=MetricEventKind.DIVERGED)  # it climbed back, too slowly for a jump
                if event:
                    yield event


def _diverging(points: Sequence[Progress]) -> MetricEvent | None:
    return _diverged(points, is_running=True)


def _diverged(points: Sequence[Progress], *, is_running: bool) -> MetricEvent | None:
    broken = loss_break(points, is_running=is_running)
    return MetricEvent(MetricEventKind.DIVERGED, broken.point, broken.why) if broken else None


def seen_in(points: Sequence[Progress], *, is_running: bool) -> list[MetricEvent]:
    """What the metrics of a log show, in the order of its lines: what lasts, and spikes that passed."""
    events = list[MetricEvent]()
    if event := _diverged(points, is_running=is_running):
        events.append(event)
    for point, highest in passed_spikes(points):
        events.append(
            MetricEvent(MetricEventKind.SPIKE, point, f"{point.metric} spiked to {highest:.4g} and came back")
        )
    timed = [point for point in points if point.stage is Stage.TRAIN and point.rank == points[0].rank]
    if event := slower(timed):
        events.append(event)
    return sorted(events, key=lambda event: event.point.line)


def stuck(series: Sequence[Progress]) -> MetricEvent | None:
    """A loss that began at that of a model that guesses and has not fallen since."""
    losses = losses_of(series)
    if len(losses) < _STUCK:
        return None
    if not all(map(math.isfinite, losses)):
        return None
    begin, half = median(losses[:FIRST]), median(losses[-_STUCK : -_STUCK // 2])
    if min(losses) < _LEARNED * begin:
        return None
    newest = median(losses[-_STUCK // 2 :])
    if not _LEVELS[0] <= newest <= _LEVELS[1]:
        return None
    if newest < max((1 - _FLAT) * begin, (1 - _FLAT / 2) * half):
        return None
    why = f"the loss {newest:.4g} is that of a model that guesses, and has not fallen in {len(losses)} printed steps"
    return MetricEvent(MetricEventKind.STUCK, series[0], why, sparkline(losses[-48:]))


def slower(series: Sequence[Progress]) -> MetricEvent | None:
    """A speed that fell by a fifth, from one level to another, and stays there."""
    timed = _one_a_step(point for point in series if speed(point))
    speeds = [speed(point) for point in timed]
    highest_behind = list(accumulate(reversed(speeds), max))[::-1]
    for index in range(_BASE, len(speeds) - _TAIL + 1):
        if highest_behind[index] >= _BACK * max(speeds[index - _NEAR : index]):  # most points
            continue
        usual = _steady(timed[index - _BASE : index])
        if highest_behind[index] >= _BACK * usual:
            continue
        if median(speeds[index:]) >= _SLOWER * usual:
            continue
        if _stays(timed[index:]) and _is_same_work(timed[index - _BASE :]):
            return _slower(timed, speeds, index, usual)
    return None


def _one_a_step(points: Iterable[Progress]) -> list[Progress]:
    """The last point of each step: a bar is drawn again while another one, of an evaluation, goes on below it."""
    steps, last = list[Progress](), None
    for point in points:
        if last is not None and point.step == last:
            steps.pop()
        steps.append(point)
        last = point.step
    return steps


def _stays(slow: Sequence[Progress]) -> bool:
    """Whether a slow stretch is one level: not a moment of a quick run, nor the average of a bar that comes back after
    a pause."""
    if not _steady(slow[-_TAIL:]):
        return False
    if _seconds(slow) < _SLOW_SECONDS:
        return False
    speeds = list(map(speed, slow))
    half = len(speeds) // 2
    before, newest = median(speeds[:half]), median(speeds[half:])
    noise = median(abs(b - a) for a, b in pairwise(speeds))
    return newest - before <= max(_RISES * before, _UNSURE * noise / math.sqrt(half))


def _seconds(points: Sequence[Progress]) -> float:
    """How long the steps between points took; infinite where no time is printed."""
    seconds = list(filter(None, (point.step_seconds for point in points)))
    first, last = points[0], points[-1]
    if not seconds or None in (first.step, last.step):
        return math.inf
    return median(seconds) * max(last.steps_made - first.steps_made, len(points) - 1)


def _slower(timed: Sequence[Progress], speeds: Sequence[float], index: int, usual: float) -> MetricEvent:
    times, step = usual / median(speeds[index:]), timed[index].step
    at = "" if step is None else f" since step {step}"
    why = f"the throughput is {1 / times:.0%} of what it was{at}, and stays so"
    start = max(0, index - _BASE // 2)
    return MetricEvent(
        MetricEventKind.SLOWER, timed[index], why, sparkline(speeds[start : index + _TAIL], index - start)
    )


def crawling(series: Sequence[Progress]) -> MetricEvent | None:
    """Steps that take several times as long as before, by their arrival, and go on so: one slow step is a pause."""
    moments = list({point.received: point for point in series[-_PACES:]}.values())
    paces = [pace(before, point) for before, point in pairwise(moments)]
    begin = _begin_of_newest(moments)
    if begin < _CALM:
        return None
    if not _is_same_work(moments):
        return None
    usual, newest = median(paces[:begin]), paces[begin:]
    if not usual:
        return None
    if min(newest) < _CRAWLING * usual or median(newest) < _CRAWLS * usual:
        return None
    point, times = moments[begin + 1], median(newest) / usual
    why = f"steps take {times:.1f} times as long as before since step {point.step}"
    picture = sparkline([1 / seconds for seconds in paces], begin)
    return MetricEvent(MetricEventKind.CRAWLING, point, why, picture)


def _begin_of_newest(moments: Sequence[Progress]) -> int:
    """The point behind which the newest steps come: at least so many, in at least so many seconds."""
    begin = len(moments) - 1 - _SLOW
    while begin > 0 and moments[-1].received - moments[begin].received < _SLOW_SECONDS:
        begin -= 1
    return begin


def pace(a: Progress, b: Progress) -> float:
    """Seconds of a step between two points, by their arrival; 0.0 where their steps or arrivals do not tell."""
    steps, seconds = b.steps_made - a.steps_made, b.received - a.received
    if min(a.received, steps, seconds) <= 0:
        return 0.0
    return seconds / steps


def _steady(points: Sequence[Progress]) -> float:
    """The usual speed; 0.0 where it is noise."""
    speeds = list(map(speed, points))
    usual = median(speeds)
    noise = _DEVIATION * median(abs(value - usual) for value in speeds)
    return usual if noise <= _NOISY * usual else 0.0


def _is_same_work(points: Sequence[Progress]) -> bool:
    return len({point.batch_size for point in points}) == 1


def speed(point: Progress) -> float:
    """Tokens a second, else steps a second; 0.0 where neither is printed."""
    if point.tokens_per_second is not None:
        return point.tokens_per_second
    return 1.0 / point.step_seconds if point.step_seconds else 0.0
