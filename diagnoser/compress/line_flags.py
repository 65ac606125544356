"""What a line can be."""

from enum import IntFlag

from diagnoser.model import Stage


class LineFlag(IntFlag):
    """More than one can hold. What is in IMPORTANT makes a line worth keeping verbatim."""

    NONE = 0
    WARNING = 1
    ERROR = 2
    TABLE = 4  # who ended how: srun's and torchelastic's own words
    COLLECTIVE = 8  # what one rank says about a collective; wanted from every rank
    FRAME = 16  # part of a stack
    EXCEPTION = 32
    ANCHOR = 64  # carries a literal of a rule
    FATAL = 128  # of a root rule
    PROGRESS = 256
    NODE = 512  # tells on which node a rank runs
    DIVERGED = 4096  # NaN, Inf, overflow: what came just before tells more
    HEADING = 8192  # may name who printed the lines below


IMPORTANT = int(
    LineFlag.WARNING
    | LineFlag.ERROR
    | LineFlag.DIVERGED
    | LineFlag.TABLE
    | LineFlag.COLLECTIVE
    | LineFlag.FRAME
    | LineFlag.EXCEPTION
    | LineFlag.ANCHOR
    | LineFlag.FATAL
    | LineFlag.HEADING
)
"""Plain number: flags of an enum are slow in a loop."""
_STAGES = tuple(Stage)
STAGES = (1 << 16 + len(_STAGES)) - (1 << 16)
"""All bits of ``stage_bit``: a kind also tells of which stage the line speaks."""


def stage_bit(stage: Stage) -> int:
    return 1 << 16 + _STAGES.index(stage)
