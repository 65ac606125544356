"""One scale of time for everything a page draws about an attempt.

A run of days may fail within a second, and be repaired an hour later. So the scale is linear in up to three parts, the
run, the failure, and what came after; each has a width that can be read, whatever it lasted.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTHS = {"run": 0.34, "failure": 0.44, "after": 0.22}
_LEAST = 2.0
"""Seconds that the failure is taken to last at least, so that a line stands for itself."""
_PAD = 0.08
"""Share of the failure that is drawn in front of its first line and behind its last."""
_MARGIN = 0.02
"""Share of the last part that stays free, so that what is drawn at the end is drawn whole."""
_APART = 3.0
"""A part that lasts at most this many times as long as the failure is drawn on the failure's own scale."""


@dataclass(frozen=True, slots=True)
class ScalePart:
    """A linear part. begin, end: seconds; left, right: shares of the width, 0 to 1."""

    name: str
    begin: float
    end: float
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class TimeScale:
    """parts: at least one, each beginning where the one before it ends."""

    parts: tuple[ScalePart, ...]

    def x(self, time: float) -> float:
        """Share of the width, 0 to 1; what lies outside is at the edge."""
        part = self.parts[max(bisect_right(self.parts, time, key=lambda part: part.begin) - 1, 0)]
        share = (time - part.begin) / (part.end - part.begin)
        return part.left + (part.right - part.left) * min(max(share, 0.0), 1.0)

    def time(self, x: float) -> float:
        """The inverse of ``x`` within the width."""
        part = self.parts[max(bisect_right(self.parts, x, key=lambda part: part.left) - 1, 0)]
        return part.begin + (part.end - part.begin) * (x - part.left) / (part.right - part.left)

    def edges(self, bins: int) -> list[float]:
        """The times that cut the width into equal bins."""
        return [self.time(number / bins) for number in range(bins + 1)]


def time_scale(begin: float, failed: tuple[float, float] | None, end: float) -> TimeScale:
    """begin, end: of all that is drawn. failed: from when to when the attempt failed; None where nothing did.

    Times in any unit whose differences are seconds, in order: begin <= failed <= end.
    """
    end = max(end, begin + _LEAST)
    if failed is None:
        return TimeScale((ScalePart("run", begin, end, 0.0, 1.0),))
    first, last = failed
    lasted = max(last - first, _LEAST)
    first, last = first - _PAD * lasted, max(last, first + _LEAST) + _PAD * lasted
    bounds = [("failure", first, last)]
    if first - begin > _APART * lasted:
        bounds.insert(0, ("run", begin, first))
    else:
        bounds[0] = ("failure", min(begin, first), last)
    name, first, last = bounds[-1]
    if end - last > _APART * lasted:
        bounds.append(("after", last, end))
    else:
        bounds[-1] = (name, first, max(end, last))
    name, first, last = bounds[-1]
    bounds[-1] = (name, first, last + _MARGIN * (last - first))
    return TimeScale(tuple(_placed(bounds)))


def _placed(bounds: Sequence[tuple[str, float, float]]) -> list[ScalePart]:
    total = sum(_WIDTHS[name] for name, _, _ in bounds)
    parts, left = list[ScalePart](), 0.0
    for name, begin, end in bounds:
        right = left + _WIDTHS[name] / total
        parts.append(ScalePart(name, begin, end, left, right))
        left = right
    return parts
