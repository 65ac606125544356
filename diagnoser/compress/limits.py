"""Limits of a delta. What goes over them is counted, never silently lost."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from diagnoser.compress.line_flags import IMPORTANT, LineFlag
from diagnoser.model import Cap


class LineBudget(NamedTuple):
    """Per signature: how many first and last lines are kept, and of how many voices the first line.

    before, after: lines of context in the same voice around the first and last ones.
    """

    first: int
    last: int
    voices: int = 0
    before: int = 0
    after: int = 0


_BUDGETS: tuple[tuple[LineFlag, LineBudget], ...] = (
    (LineFlag.ANCHOR, LineBudget(2, 1, 8, 1, 2)),
    (LineFlag.EXCEPTION, LineBudget(2, 1, 16, 1, 2)),
    (LineFlag.FRAME, LineBudget(2, 1, 2, 0, 2)),
    (LineFlag.COLLECTIVE, LineBudget(2, 2, 1024, 0, 0)),
    (LineFlag.TABLE, LineBudget(2, 1, 0, 2, 1)),
    (LineFlag.DIVERGED, LineBudget(2, 1, 0, 3, 0)),
    (LineFlag.ERROR, LineBudget(1, 1)),
    (LineFlag.WARNING, LineBudget(1, 0)),
    (LineFlag.HEADING, LineBudget(256, 256, 0, 2, 0)),
)


def budget_of(kind: int) -> LineBudget:
    """The most generous budget of all kinds that are set."""
    return _budget(kind & IMPORTANT)


@cache
def _budget(kind: int) -> LineBudget:
    parts = [budget for flag, budget in _BUDGETS if kind & flag] or [LineBudget(1, 0)]
    return LineBudget(*map(max, zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class CompressorLimits:
    """shapes, signatures: kept with exact counts, those of smallest hash. extremes: of signatures beyond that, the very
    first and last lines. window: how far context is looked for. small: an input of so many lines is kept whole.
    first, last, spread: points kept of each progress series. latest: points kept because they are the newest of their
    stream, whichever series they are of: a log of many runs may have more series than ``series``. rises: steepest rises
    of the loss of a series around which all points are kept.
    """

    shapes: int = 4096
    signatures: int = 2048
    extremes: int = 256
    window: int = 64
    voices: int = 2048
    small: int = 200
    series: int = 64
    first: int = 4
    last: int = 64
    spread: int = 96
    latest: int = 64
    rises: int = 4
    nodes: int = 16384
    templates: int = 2048

    def of(self, cap: Cap) -> int:
        """The limit that the cap stands for."""
        return int(getattr(self, "signatures" if cap is Cap.LINES else cap.value))


DEFAULT_LIMITS = CompressorLimits()
