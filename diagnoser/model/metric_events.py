"""What the metrics of a run that goes on show."""

from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model.evidence import Progress

NOWHERE = Progress(0, -1, 0.0)
"""Stands for the point of an event that is about none."""


class MetricEventKind(StrEnum):
    DIVERGED = "diverged"  # the loss or the gradient norm broke, and stays so
    STUCK = "stuck"  # the loss stays at that of a model that guesses
    SLOWER = "slower"  # the throughput fell by a fifth, and stays so
    CRAWLING = "crawling"  # steps take several times as long as before, and go on so
    STRAGGLER = "straggler"  # the same, and one rank holds up the others
    SPIKE = "spike"  # the loss left its band and came back
    IDLE = "idle"  # no metric: GPUs are held, and nothing is printed
    BAD_CONTRACT = "bad_contract"  # no metric: what the job file says to us does not count


@dataclass(frozen=True, slots=True)
class MetricEvent:
    """point: where it began. why, picture: in words, and as a line of text."""

    kind: MetricEventKind
    point: Progress
    why: str
    picture: str = ""
