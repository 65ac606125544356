"""The metrics of a run that goes on: what is remembered of them, and what they show that somebody should know now."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from diagnoser.localize.metric_breaks import LossBreak, loss_break
from diagnoser.model import Progress, Stage, Stream
from diagnoser.structure.progress import is_evaluated
from diagnoser.structure.sparkline import sparkline

FIRST, LATEST = 8, 256
"""Points of a series that are remembered: how it began, and its newest ones. What lies between was flat, or was told."""
SERIES = 256
"""Series of an attempt that are watched: more of them are the same loss on other ranks."""
_TAIL, _BASE = 20, 50
"""Points that are slow before a run counts as slower, and points before them that it is compared with."""
_SLOWER = 0.8
_NOISY = 0.1
"""Robust deviation of the speed, as a share of it, above which it says nothing."""
_DEVIATION = 1.4826
"""A median absolute deviation times this estimates a standard deviation."""
_STUCK = 200
"""Points without any progress before a training that has not learned anything counts as stuck."""
_LEVELS = (9.0, 12.7)
"""The natural logarithm of vocabularies of 8 thousand to 330 thousand tokens: the loss of a model that guesses."""
_FLAT = 0.02
"""Share of the loss by which one that falls has fallen within so many points."""


class MetricEventKind(StrEnum):
    DIVERGED = "diverged"  # the loss or the gradient norm broke, and stays so
    STUCK = "stuck"  # the loss stays at that of a model that guesses
    SLOWER = "slower"  # the throughput fell by a fifth, and stays so


@dataclass(frozen=True, slots=True)
class MetricEvent:
    """point: where it began. why, picture: in words, and as a line of text."""

    kind: MetricEventKind
    point: Progress
    why: str
    picture: str = ""


_Key = tuple[Stream, int | str, str]


class MetricHistory:
    """The metrics of one attempt, in bounded memory. Lines may be added twice; each counts once."""

    def __init__(self) -> None:
        self._series: dict[_Key, list[Progress]] = {}
        self._last: dict[Stream, int] = {}

    @property
    def points(self) -> Iterator[Progress]:
        for series in self._series.values():
            yield from series

    def add(self, points: Iterable[Progress]) -> bool:
        """Add points in the order of their lines. Whether any is new."""
        is_new = False
        for point in sorted(points, key=lambda point: point.line):
            if point.line <= self._last.get(point.stream, 0):
                continue
            is_new |= self._append(point)
        for point in points:
            self._last[point.stream] = max(point.line, self._last.get(point.stream, 0))
        return is_new

    def _append(self, point: Progress) -> bool:
        key = point.stream, point.process, point.metric
        if point.stage is not Stage.TRAIN or is_evaluated(point.metric):
            return False
        if key not in self._series and len(self._series) >= SERIES:
            return False
        series = self._series.setdefault(key, [])
        series.append(point)
        if len(series) > FIRST + 2 * LATEST:
            del series[FIRST:-LATEST]
        return True

    def events(self) -> Iterator[MetricEvent]:
        """What the metrics show now; nothing of it may last."""
        if broken := loss_break(list(self.points), is_running=True):
            yield _diverged(broken)
        for series in self._series.values():
            yield from filter(None, (stuck(series), slower(series)))


def _diverged(broken: LossBreak) -> MetricEvent:
    return MetricEvent(MetricEventKind.DIVERGED, broken.point, broken.why)


def stuck(series: Sequence[Progress]) -> MetricEvent | None:
    """A loss that began at that of a model that guesses and has not fallen since."""
    losses = [point.loss for point in series if point.loss is not None]
    if len(losses) < _STUCK or not all(map(math.isfinite, losses)):
        return None
    begin, half = median(losses[:FIRST]), median(losses[-_STUCK : -_STUCK // 2])
    newest = median(losses[-_STUCK // 2 :])
    if not _LEVELS[0] <= newest <= _LEVELS[1]:
        return None
    if newest < (1 - _FLAT) * begin or newest < (1 - _FLAT / 2) * half:
        return None
    why = f"the loss {newest:.4g} is that of a model that guesses, and has not fallen in {len(losses)} printed steps"
    return MetricEvent(MetricEventKind.STUCK, series[0], why, sparkline(losses[-48:]))


def slower(series: Sequence[Progress]) -> MetricEvent | None:
    """A speed that fell by a fifth, from one level to another, and stays there."""
    timed = [(point, speed) for point in series[-_TAIL - _BASE :] if (speed := _speed(point)) is not None]
    if len(timed) < _TAIL + _BASE or len({point.batch_size for point, _ in timed}) > 1:
        return None
    speeds = [speed for _, speed in timed]
    base, tail = speeds[:_BASE], speeds[_BASE:]
    usual = median(base)
    noise = _DEVIATION * median(abs(speed - usual) for speed in base)
    if noise > _NOISY * usual or max(tail) >= min(sorted(base)[_BASE // 10], _SLOWER * usual):
        return None
    share, point = median(tail) / usual, timed[_BASE][0]
    at = "" if point.step is None else f" since step {point.step}"
    why = f"steps take {1 / share:.2f} times as long as before{at}, and stay so"
    return MetricEvent(MetricEventKind.SLOWER, point, why, sparkline(speeds[-48:], 48 - _TAIL))


def _speed(point: Progress) -> float | None:
    """Tokens a second, else steps a second."""
    if point.tokens_per_second is not None:
        return point.tokens_per_second
    if not point.step_seconds:
        return None
    return 1.0 / point.step_seconds
