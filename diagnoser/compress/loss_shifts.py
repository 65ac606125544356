"""Where the loss of a long series rises and stays up: what a sample of the series must not step over.

A sample is enough of what is flat. Around a rise the points themselves are kept, as many as a verdict compares.
"""

import math
from collections.abc import Callable, Sequence
from statistics import median

from diagnoser.structure.progress import loss_in

BEFORE, AFTER = 24, 6
"""Neighbours of a rise that are kept."""
_STEEP = 1.25
"""Ratio to the points before from which a rise is one."""
_STAYS, _LEVEL = 3, 8
"""Points behind a rise and before it that are compared: it may take some steps."""


def losses_of(lines: Sequence[bytes]) -> list[float | None]:
    return list(map(loss_in, lines))


def rises(losses: Sequence[float | None], most: int) -> list[int]:
    """The points at which the loss rises and stays up for the next ones, in order; of many the steepest."""
    places, values = list[int](), list[float]()
    for place, loss in enumerate(losses):
        if loss is not None:
            places.append(place)
            values.append(loss)
    steep = list[tuple[float, int]]()
    blocked = 0
    for index in range(1, len(values)):
        if index < blocked:
            continue
        ratio = _rise(values, index)
        if ratio >= _STEEP:
            steep.append((-ratio, places[index]))
            blocked = index + _LEVEL
    return sorted(place for _, place in sorted(steep)[:most])


def _rise(values: Sequence[float], index: int) -> float:
    """How many times as high as the points before all of the next ones are; infinite where they are no numbers."""
    before = list(filter(math.isfinite, values[max(0, index - _LEVEL) : index]))
    if not before:
        return 0.0
    level = median(before)
    if level <= 0.0:
        return 0.0 if math.isfinite(values[index]) else math.inf
    return min(map(_height, values[index : index + _STAYS])) / level


def _height(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def around(places: Sequence[int], count: int) -> set[int]:
    """The places around rises, in a series of so many points."""
    near = set[int]()
    for place in places:
        near.update(range(max(0, place - BEFORE), min(count, place + AFTER)))
    return near


def first_above(loss_at: Callable[[int], float | None], low: int, high: int) -> int:
    """The first point of a rise between one before it and one behind it, by bisection.

    loss_at: the loss of a point of the series.
    """
    bound = _between(loss_at(low), loss_at(high))
    while high - low > 1:
        middle = (low + high) // 2
        loss = loss_at(middle)
        if loss is not None and _height(loss) > bound:
            high = middle
        else:
            low = middle
    return high


def _between(low: float | None, high: float | None) -> float:
    if low is None or high is None:
        return math.inf
    if not math.isfinite(high) or min(low, high) <= 0.0:
        return max(low, _STEEP * abs(low)) if math.isfinite(low) else math.inf
    return math.sqrt(low * high)
