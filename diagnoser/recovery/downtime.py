"""Finds when a run failed, and how many GPUs stood still from then on. Pure."""

HOUR = 3600.0
GIVEN_UP = 24 * HOUR
"""A job that was not launched again for so long is given up: its GPUs are somebody else's by then."""
FATAL_AGE = HOUR
"""A fatal line that stands longer before the end did not end the run: it was caught, or survived."""
_DIGITS = 7
"""Most digits of a number of GPUs."""


def failed_at(*, hung: bool, fatal: float | None, ended: float | None, last_line: float) -> float:
    """Find when a run failed: one that hangs at its last line, any other at its end or a fatal line shortly before."""
    end = ended or last_line
    if hung:
        return last_line or end
    if fatal is None:
        return end
    if not 0 <= end - fatal <= FATAL_AGE:
        return end
    return fatal


def gpus_of(label: object) -> int | None:
    """Read how many GPUs a job says that it has; None for what is no sensible number."""
    text = str(label or "")
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
        return None
    return int(text)
