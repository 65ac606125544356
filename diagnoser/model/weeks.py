"""Weeks, which begin on Monday at midnight in UTC wherever a site is."""

import math

WEEK = 7 * 86_400.0
_MONDAY = 4 * 86_400.0
"""The first Monday after the epoch, in seconds."""


def week_of(time: float) -> float:
    """Find when the week of a time began; seconds since the epoch."""
    return math.floor((time - _MONDAY) / WEEK) * WEEK + _MONDAY
