"""What the progress series shows: where training stopped, and where the loss broke."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from statistics import fmean, median, pstdev

from diagnoser.model import Evidence, Line, Progress, Stream

_WARM_UP = 5
"""Points needed before a mean and a deviation say anything."""
_SIGMAS = 6.0
_NORMS = 2
"""Points in a row without a finite gradient norm: a single one is a step that mixed precision skipped."""
_WINDOW = 50
"""Points that the mean is taken over."""
_EXPLODED = 10.0
"""A gradient norm above this multiple of its median has exploded: norms vary more than losses do."""
_SPIKES = 3
"""Points above the band before a run counts as diverged, when the loss stays finite."""
_SHORT = 3
"""Points after which a jump may be told before a deviation can be: it must then be a multiple, not a deviation."""
_JUMP = 3.0
"""A loss above this multiple of the highest before has jumped, however few points there are."""
_ABSURD_NORM = 1000.0
"""A gradient norm from here on that is also far over all before says by itself that a jump of the loss is a spike."""
_BEYOND = 100.0
"""A gradient norm of thousands above this multiple of the highest before has exploded, on however few points."""
_ON = 2
"""Steps after an error that show that training went on: one more step may already have been under way."""


@dataclass(frozen=True, slots=True)
class LossBreak:
    """Where the loss left its band. checkpoint: the last one saved before it, else ""."""

    point: Progress
    why: str
    checkpoint: str
    until: int | None


class ProgressTimeline:
    """The progress series, to ask whether training went on after a line. Built once per log: logs have many candidates.

    places: of all steps, ascending, on a scale that lines and steps share: line numbers where there is one stream, else
        times.
    """

    def __init__(self, evidence: Evidence) -> None:
        own = {line.stream for line in evidence.lines if line.stream.from_job}
        self._single = len(own) <= 1
        stepped = [point for point in evidence.progress if point.step is not None]
        stepped.sort(key=self.place_of)
        self.places = [self.place_of(point) for point in stepped]
        self._steps = [point.step for point in stepped]
        self._ranks = [point.rank for point in stepped]
        self._began = dict(zip(reversed(self._ranks), reversed(self.places), strict=True))
        self._calm = [self.place_of(point) for point in evidence.progress if _is_finite(point)]
        self._line_places: dict[Stream, tuple[list[int], list[float]]] = {}
        for line in () if self._single else evidence.lines:
            numbers, places = self._line_places.setdefault(line.stream, ([], []))
            numbers.append(line.number)
            places.append(self.place(line))

    def went_on(self, line: Line, steps: int = _ON) -> bool:
        """Whether training advanced by more than ``steps`` different steps after ``line``.

        Where the rank that printed the line had told its own steps before, only its own count: others train on for a
        moment without it.
        """
        place = self.place(line)
        after = bisect_right(self.places, place)
        if self._began.get(line.rank, math.inf) <= place and line.rank >= 0:
            own = (self._steps[index] for index in range(after, len(self._steps)) if self._ranks[index] == line.rank)
            return len(set(islice(own, 10 * steps + 10))) > steps
        return len(set(islice(self._steps, after, after + 10 * steps + 10))) > steps

    def lived_on(self, line: Line, ranks: Sequence[int], steps: int) -> bool:
        """Whether these ranks advanced by more than ``steps`` different steps after ``line``; all ranks without any."""
        after = bisect_right(self.places, self.place(line))
        own = (
            s for s, rank in zip(self._steps[after:], self._ranks[after:], strict=True) if not ranks or rank in ranks
        )
        return len(set(islice(own, 10 * steps + 10))) > steps

    def calmed(self, line: Line) -> bool:
        """Whether a later point shows a finite loss again."""
        place = self.place(line)
        return any(calm > place for calm in self._calm)

    def place_of(self, point: Progress) -> float:
        return float(point.line) if self._single else point.time

    def at(self, stream: Stream, number: int) -> float:
        """The place of a line that may not have been kept: that of the next kept line of its stream."""
        if self._single:
            return float(number)
        numbers, places = self._line_places.get(stream, ([], []))
        index = bisect_left(numbers, number)
        return places[index] if index < len(places) else math.inf

    def place(self, line: Line) -> float:
        """Where the line stands among the steps; infinite where the log does not show it."""
        if self._single:  # a node's own log counts its lines apart
            return math.inf if not line.stream.from_job else float(line.number)
        return line.time if line.time > 0 else math.inf


def restarts(evidence: Evidence) -> list[int]:
    """Lines at which a rank's step counter falls back: another launch appended to the same log."""
    last: dict[int, int] = {}
    lines = []
    for point in sorted(evidence.progress, key=lambda point: point.line):
        if point.step is not None:
            if point.step < last.get(point.rank, point.step):
                lines.append(point.line)
            last[point.rank] = point.step
    return lines


def _is_finite(point: Progress) -> bool:
    values = [value for value in (point.loss, point.grad_norm) if value is not None]
    return bool(values) and all(map(math.isfinite, values))


def loss_break(points: Sequence[Progress]) -> LossBreak | None:
    """The first point from which the loss is NaN, infinite, or above mean + 6 sigma, up to the end of the series.

    A spike that the run recovers from does not count; nor does a series that starts without a finite loss. Without a
    printed loss, a gradient norm that stays NaN or infinite counts; one that explodes and stays high always does.
    """
    points = _last_run(points)
    losses = [point for point in points if point.loss is not None]
    values = [point.loss for point in losses if point.loss is not None]
    for index in range(1, len(values)):
        window = [value for value in values[max(0, index - _WINDOW) : index] if math.isfinite(value)]
        ceiling = _ceiling(window) if len(window) >= _SHORT else math.inf
        if not all(_out_of_band(value, ceiling) for value in values[index : index + _SPIKES]) or not window:
            continue
        finite = math.isfinite(values[index])
        if _out_of_band(values[-1], ceiling) and (not finite or len(values) - index >= _SPIKES):
            why = f"above mean + {_SIGMAS:.0f} sigma = {ceiling:.4g}" if finite else "not finite"
            return _break_at(points, losses[index], f"loss {values[index]:.4g} is {why}, and stays so", losses[-1])
    if not any(map(math.isfinite, values)):
        return _norm_break(points)
    return _norm_explosion(points) or _supported_jump(points)


def _supported_jump(points: Sequence[Progress]) -> LossBreak | None:
    """Where the loss jumps in a series too short for statistics, and gradient norms of thousands say that it is real:
    up to the end of the series."""
    both = [p for p in points if p.loss is not None and p.grad_norm is not None and math.isfinite(p.loss)]
    losses, norms = [p.loss or 0.0 for p in both], [p.grad_norm or 0.0 for p in both]
    for index in range(1, len(both)) if len(both) >= _SHORT else ():
        usual = max(norms[:index])
        absurd = min(norms[index:]) > max(_ABSURD_NORM, _EXPLODED * usual)
        if absurd and min(losses[index:]) > _JUMP * max(losses[:index]):
            why = f"loss {losses[index]:.4g} jumps with a gradient norm of {norms[index]:.4g} (before {usual:.4g})"
            return _break_at(points, both[index], f"{why}, and both stay so", both[-1])
    return None


def _norm_explosion(points: Sequence[Progress]) -> LossBreak | None:
    """Where the gradient norm left its band for good: far above what it was, up to the end of the series.

    Fewer points than others need are enough where they are thousands, and a multiple that no clipping explains.
    """
    norms = [point for point in points if point.grad_norm is not None and math.isfinite(point.grad_norm)]
    values = [point.grad_norm or 0.0 for point in norms]
    for index in range(_WARM_UP, len(values)):
        window = values[max(0, index - _WINDOW) : index]
        ceiling = max(fmean(window) + _SIGMAS * pstdev(window), _EXPLODED * median(window))
        absurd = max(_ABSURD_NORM, _BEYOND * max(window))
        if min(values[index:]) > (ceiling if len(values) - index >= _SPIKES else absurd):
            why = f"the gradient norm {values[index]:.4g} is above {ceiling:.4g}, far over what it was, and stays so"
            return _break_at(points, norms[index], why, norms[-1])
    return None


def _norm_break(points: Sequence[Progress]) -> LossBreak | None:
    norms = [point for point in points if point.grad_norm is not None]
    broken = list(takewhile(lambda point: not math.isfinite(point.grad_norm or 0.0), reversed(norms)))
    if len(broken) < _NORMS:
        return _norm_explosion(points)
    return _break_at(points, broken[-1], "the gradient norm is not finite, and stays so", norms[-1])


def _last_run(points: Sequence[Progress]) -> Sequence[Progress]:
    """The points since the step counter last fell far back: another run in the same log has its own losses."""
    start = highest = 0
    for index, point in enumerate(points):
        step = point.step
        if step is None:
            continue
        if step < highest / 2 and highest - step > _WARM_UP:
            start, highest = index, step
        highest = max(highest, step)
    return points[start:]


def _out_of_band(value: float, ceiling: float) -> bool:
    return not math.isfinite(value) or value > ceiling


def _ceiling(window: Sequence[float]) -> float:
    """Mean + 6 sigma, and at least a multiple of the highest value seen: a short stretch has almost no deviation."""
    multiple = 2.0 if len(window) >= _WARM_UP else _JUMP
    return max(fmean(window) + _SIGMAS * pstdev(window), multiple * max(window))


def _break_at(points: Sequence[Progress], point: Progress, why: str, last: Progress) -> LossBreak:
    saved = [other.checkpoint for other in points if other.checkpoint and other.line < point.line]
    return LossBreak(point, why, saved[-1] if saved else "", last.step)
