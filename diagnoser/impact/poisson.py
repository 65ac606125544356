"""Exact confidence bounds of a rate of rare events: Garwood (1936), "Fiducial limits for the Poisson distribution".

They equal the quantiles of chi-square that handbooks of reliability give for a test that ends at a set time: the lower
bound of the mean is ``chi2(0.025, 2 n) / 2``, the upper one ``chi2(0.975, 2 n + 2) / 2``.
"""

import math
from collections.abc import Callable

TAIL = 0.025
"""On each side: the bounds hold with 95 % confidence."""
_HALVINGS = 60
_NEGLIGIBLE = 1e-12


def mean_bounds(events: int) -> tuple[float, float]:
    """The lowest and the highest mean that a count of so many events does not contradict."""
    spread = 10.0 * math.sqrt(events + 1.0)  # ten standard deviations: nothing is to be found beyond
    upper = _bisected(lambda mean: at_most(events, mean) > TAIL, events, events + spread + 10.0)
    if events == 0:
        return 0.0, upper
    return _bisected(lambda mean: at_most(events - 1, mean) > 1 - TAIL, max(events - spread, 0.0), events), upper


def at_most(events: int, mean: float) -> float:
    """The chance of so many events or fewer."""
    total, term = 0.0, math.exp(events * math.log(mean) - mean - math.lgamma(events + 1))
    for count in range(events, -1, -1):
        total += term
        term *= count / mean
        if term < total * _NEGLIGIBLE:
            break
    return total


def _bisected(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Where the condition ceases to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2
