"""Small SVG charts: the series that a training run printed, and accuracy over time. No script, no log text."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from diagnoser.localize.checkpoints import reported
from diagnoser.model import Event, MetricEvent, Progress, Stage, Stream
from diagnoser.structure.sparkline import is_wide

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 110, 64, 18, 20
_INK, _LINE, _BAD = "#807b74", "#2f7fd0", "#d9480f"
"""Colours that can be read on a light and on a dark page."""
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


def svg(series: Sequence[Curve], events: Sequence[MetricEvent] = ()) -> str:
    """All curves below one another. events: marked in them."""
    height = max(1, len(series)) * HEIGHT
    panels = "".join(_panel(curve, number * HEIGHT, events) for number, curve in enumerate(series))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}">{panels}</svg>'
    )


def _panel(curve: Curve, top: int, events: Sequence[MetricEvent]) -> str:
    low, high = _bounds(curve)
    is_log = is_wide(low, high)
    y0, y1 = top + HEIGHT - BOTTOM, top + TOP
    up = (_log_scale if is_log else _scale)(low, high)
    spots, diverged = [], []
    for place, value in curve.points:
        if math.isfinite(value):
            spots.append(f"{_x(curve, place):.1f},{y0 - up(value) * (y0 - y1):.1f}")
        else:
            diverged.append(f'<path d="M{_x(curve, place):.1f} {y0}V{y1}" stroke="{_BAD}"/>')
    marks = [_mark(curve, event, y0, y1) for event in events]
    return (
        f'<g><text x="{LEFT}" y="{top + 12}">{curve.name}{" (log)" if is_log else ""}</text>'
        f'<path d="M{LEFT} {y1}V{y0}H{WIDTH - 8}" fill="none" stroke="{_INK}" stroke-opacity=".5"/>'
        f'<text x="{LEFT - 6}" y="{y1 + 8}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{LEFT - 6}" y="{y0}" text-anchor="end">{low:.4g}</text>'
        f'<text x="{LEFT}" y="{y0 + 13}">{curve.over} {curve.points[0][0]}</text>'
        f'<text x="{WIDTH - 8}" y="{y0 + 13}" text-anchor="end">{curve.points[-1][0]}</text>'
        f'{"".join(diverged + marks)}<polyline points="{" ".join(spots)}" fill="none" stroke="{_LINE}" '
        f'stroke-width="1.5"/></g>'
    )


def _bounds(curve: Curve) -> tuple[float, float]:
    """The lowest and the highest value that the panel shows."""
    if curve.bounds:
        return curve.bounds
    finite = [value for _, value in curve.points if math.isfinite(value)]
    return min(finite, default=0.0), max(finite, default=0.0)


def _x(curve: Curve, place: int) -> float:
    return LEFT + _scale(curve.points[0][0], curve.points[-1][0])(place) * (WIDTH - LEFT - 8)


def _mark(curve: Curve, event: MetricEvent, y0: int, y1: int) -> str:
    at = event.point.step if curve.over == "step" else event.point.line
    line = f'<path d="M{_x(curve, at or 0):.1f} {y0}V{y1}" stroke="{_BAD}" stroke-dasharray="3 2">'
    return f"{line}<title>{escape(event.why)}</title></path>"


def _scale(low: float, high: float) -> Callable[[float], float]:
    """Position of a value between two others, 0 to 1; infinite values at the ends."""
    width = high - low or 1.0

    def place(value: float) -> float:
        if not math.isfinite(value):
            return 0.0
        return min(1.0, max(0.0, (value - low) / width))

    return place


def _log_scale(low: float, high: float) -> Callable[[float], float]:
    """The same by the logarithm; a value that has none stands where it would on a scale without one."""
    scale = _scale(math.log(low), math.log(high))

    def place(value: float) -> float:
        if value <= 0:
            return scale(value)
        return scale(math.log(value))

    return place
