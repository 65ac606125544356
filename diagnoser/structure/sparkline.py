"""A series of numbers as one line of text: a picture that any message can carry."""

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_BROKEN = "×"
_WIDE = 50.0
"""Ratio of the largest to the smallest value from which heights are logarithmic."""


def is_wide(low: float, high: float) -> bool:
    """Tell whether values from ``low`` to ``high`` differ so much that a picture shows their logarithms."""
    return low > 0.0 and high / low > _WIDE


def share_between(value: float, low: float, high: float, *, is_log: bool = False) -> float:
    """Say where a value stands between two others, from 0 to 1; 0 where those are equal. is_log: by logarithms."""
    if is_log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    if high <= low:
        return 0.0
    return (value - low) / (high - low)


def sparkline(values: Sequence[float], mark: int = -1) -> str:
    """Draw each value as one character, those that are no number as crosses.

    mark: index of the value before which a bar stands; -1 for none.
    """
    finite = list(filter(math.isfinite, values))
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    is_log = is_wide(low, high)
    drawn = [_block(value, low, high, is_log=is_log) for value in values]
    if 0 <= mark < len(drawn):
        drawn.insert(mark, "│")
    return "".join(drawn)


def _block(value: float, low: float, high: float, *, is_log: bool) -> str:
    if not math.isfinite(value):
        return _BROKEN
    share = share_between(value, low, high, is_log=is_log)
    return _BLOCKS[min(len(_BLOCKS) - 1, int(share * len(_BLOCKS)))]
