"""What clean runs of a job family print, as the set of their shapes, and what of a later run is not among it.

After LogSage and LogRCA: templates of successful runs tell routine from news. What could be a failure is never
learned: lines with a rule's anchor, words of trouble, parts of tracebacks, diverged values.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from diagnoser.compress.delta import Delta, LinePosition
from diagnoser.compress.line_flags import LineFlag
from diagnoser.model import Cap

NEEDED, KEPT = 3, 5
"""Clean runs that a baseline needs, and how many of the last ones it looks at."""
_MOST = 20_000
"""Shapes of a run; one that has more prints no routine."""
_NEVER = int(
    LineFlag.ANCHOR
    | LineFlag.FATAL
    | LineFlag.ERROR
    | LineFlag.EXCEPTION
    | LineFlag.FRAME
    | LineFlag.DIVERGED
    | LineFlag.TABLE
    | LineFlag.COLLECTIVE
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """runs: how many clean runs are known. shapes: those that any of them printed."""

    runs: int
    shapes: frozenset[int]

    @property
    def holds(self) -> bool:
        return self.runs >= NEEDED


def learned(delta: Delta, run: str) -> bytes | None:
    """The routine of a clean run, None when it has none. run: names it, so that the same run counts once."""
    shapes = sorted(number for number, stat in delta.shapes.items() if not stat.kind & _NEVER)
    if Cap.SHAPES in delta.caps or not 0 < len(shapes) <= _MOST:
        return None
    return hashlib.blake2b(run.encode(), digest_size=8).digest() + array("Q", shapes).tobytes()


def of(runs: Sequence[bytes]) -> Baseline:
    """runs: what ``learned`` gave, oldest first."""
    last = {data[:8]: data[8:] for data in runs}
    shapes = [array("Q", data) for data in list(last.values())[-KEPT:]]
    return Baseline(len(shapes), frozenset().union(*shapes))


def familiar(delta: Delta, known: Baseline) -> frozenset[LinePosition]:
    """Where shapes of the baseline stand: the first and the last line of each."""
    return _places(delta, known, new=False)


def news(delta: Delta, known: Baseline) -> frozenset[LinePosition]:
    """Where shapes stand that no clean run printed."""
    return _places(delta, known, new=True)


def _places(delta: Delta, known: Baseline, *, new: bool) -> frozenset[LinePosition]:
    stats = [stat for number, stat in delta.shapes.items() if (number not in known.shapes) is new]
    return frozenset(place for stat in stats for place in (stat.first, stat.last))
