"""Where the losses of a series leave their band for good. A run that goes on may still come back from a spike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    band,
    height,
    is_above,
)

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
        if len(window) < SHORT or not self.is_objective or median(window) <= 0.0:
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
        if len(behind) < LATER or newest < _SETTLES * first:
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
