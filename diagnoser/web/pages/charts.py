"""Small SVG charts: the series that a training run printed, and accuracy over time. No script, no log text."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diagnoser.localize.checkpoints import reported
from diagnoser.model import Event, MetricEvent, Progress, Stage, Stream
from diagnoser.structure.sparkline import is_wide, share_between
from diagnoser.web.pages.rendering import templates

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 110, 64, 18, 20
_SERIES: tuple[tuple[str, Callable[[Progress], float | None]], ...] = (
    ("loss", lambda point: point.loss),
    ("gradient norm", lambda point: point.grad_norm),
    ("seconds a step", lambda point: point.step_seconds),
    ("tokens a second", lambda point: point.tokens_per_second),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """points: (step, or line where no step is printed; value, NaN where it diverged), by step. bounds: of the axis,
    None for the least and the largest value."""

    name: str
    over: str
    points: tuple[tuple[int, float], ...]
    bounds: tuple[float, float] | None = None


def curves(progress: Iterable[Progress]) -> list[Curve]:
    """The series with at least two points: of the rank and the name that most of them have, for others print the same
    curve beside it."""
    train = [point for point in progress if point.stage is Stage.TRAIN]
    series = []
    for name, measure in _SERIES:
        by_step, by_line = list[tuple[int, float]](), list[tuple[int, float]]()
        speakers = Counter(_speaker(point) for point in train if measure(point) is not None)
        longest = max(speakers, key=speakers.__getitem__, default=None)
        for point in train:
            value = measure(point)
            if value is None:
                continue
            if _speaker(point) != longest:
                continue
            by_line.append((point.line, value))
            if point.step is not None:
                by_step.append((point.step, value))
        points, over = by_line, "line"
        if len(by_step) * 2 > len(by_line):
            points, over = by_step, "step"
        if len(points) > 1:
            series.append(Curve(name, over, tuple(sorted(points, key=lambda pair: pair[0]))))
    return series


def _speaker(point: Progress) -> tuple[Stream, int, str]:
    return point.stream, point.rank, point.metric


def blocked_curve(events: Iterable[Event]) -> Curve | None:
    """For how long training stood still at each checkpoint, by step; None where jobs reported it less than twice."""
    points = []
    for saved in reported(events):
        if saved.step is not None and saved.blocked_ms is not None:
            points.append((saved.step, saved.blocked_ms / 1000))
    if len(points) < 2:
        return None
    return Curve("seconds that training stood still to save", "step", tuple(sorted(points)))


@dataclass(frozen=True, slots=True)
class Panel:
    """A curve in its axes, of which the picture has one below the other. low, high: the ends of the upright one."""

    curve: Curve
    top: int
    low: float
    high: float

    @property
    def is_log(self) -> bool:
        return is_wide(self.low, self.high)

    @property
    def floor(self) -> int:
        return self.top + HEIGHT - BOTTOM

    @property
    def ceiling(self) -> int:
        return self.top + TOP

    def x(self, place: int) -> float:
        """What lies beside the curve is at its edge."""
        share = share_between(place, self.curve.points[0][0], self.curve.points[-1][0])
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - 8)

    def y(self, value: float) -> float:
        return self.floor - share_between(value, self.low, self.high, is_log=self.is_log) * (self.floor - self.ceiling)

    def x_of(self, event: MetricEvent) -> float:
        at = event.point.step if self.curve.over == "step" else event.point.line
        return self.x(at or 0)


def svg(series: Sequence[Curve], events: Sequence[MetricEvent] = ()) -> str:
    """All curves below one another. events: marked in them."""
    panels = [Panel(curve, number * HEIGHT, *_bounds(curve)) for number, curve in enumerate(series)]
    height = max(1, len(series)) * HEIGHT
    return (
        templates()
        .get_template("series.svg")
        .render(panels=panels, events=events, width=WIDTH, height=height, left=LEFT, isfinite=math.isfinite)
    )


def _bounds(curve: Curve) -> tuple[float, float]:
    if curve.bounds:
        return curve.bounds
    finite = [value for _, value in curve.points if math.isfinite(value)]
    return min(finite, default=0.0), max(finite, default=0.0)
