"""The series of one metric that one process prints, and what the tests of a break share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from diagnoser.model import Progress, Stage, Stream
from diagnoser.structure.progress import is_evaluated

WARM_UP = 5
"""Points needed before a mean and a deviation say anything."""
SIGMAS = 6.0
WINDOW = 24
"""Points before a break that it is compared with: as many as the compressor keeps there."""
SPIKES = 3
"""Points above the band before a run counts as diverged, when the loss stays finite."""
SHORT = 3
"""Points after which a jump may be told before a deviation can be: it must then be a multiple, not a deviation."""
JUMP = 3.0
"""A loss above this multiple of the highest before has jumped, however few points there are."""
SURE, LATER = 5, 15
"""Points of a run that goes on, behind a break, before it is certain: of a loss that is absurd, and of any other."""
LEARNED = 1.5
"""Ratio of the first losses to those before a break from which training has shown that it learns."""


@dataclass(frozen=True, slots=True)
class LossBreak:
    """Where the loss left its band.

    checkpoint: the last one saved before it, else "". until: the newest step behind it. values: what the series held
    around it. metric: its name. before: of ``values``, how many come before the break.
    """

    point: Progress
    why: str
    checkpoint: str
    until: int | None
    metric: str = "loss"
    values: tuple[float, ...] = ()
    before: int = 0


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """What one process prints of one loss, in order; with the gradient norms and the speed in the same lines.

    is_running: whether the run goes on.
    """

    points: tuple[Progress, ...]
    is_running: bool

    def printed(self, kind: str, *, finite: bool = False) -> tuple[list[Progress], list[float]]:
        """The points that print a value, and their values.

        kind: ``loss`` or ``grad_norm``.
        finite: only finite values count.
        """
        printed, values = list[Progress](), list[float]()
        for point in self.points:
            value = getattr(point, kind)
            if value is None:
                continue
            if finite and not math.isfinite(value):
                continue
            printed.append(point)
            values.append(value)
        return printed, values

    @property
    def is_objective(self) -> bool:
        """Whether a higher loss says that the model got worse."""
        return all(point.is_objective for point in self.points)


def is_of_training(point: Progress) -> bool:
    """Whether a point tells of the training itself, and not of an evaluation beside it."""
    return point.stage is Stage.TRAIN and not is_evaluated(point.metric)


def by_metric(points: Iterable[Progress]) -> list[list[Progress]]:
    """Losses of different names, and of different processes, apart."""
    series: dict[tuple[Stream, int, str], list[Progress]] = {}
    for point in points:
        if is_of_training(point):
            series.setdefault((point.stream, point.rank, point.metric), []).append(point)
    return list(series.values())


def last_run(points: Sequence[Progress]) -> Sequence[Progress]:
    """The points since the step counter last fell far back: another run in the same log has its own losses. A counter
    that begins anew with each epoch is of one run: the loss goes on where it was."""
    start = highest = 0
    for index, point in enumerate(points):
        step = point.step
        if step is None:
            continue
        if step < highest / 2 and highest - step > WARM_UP:
            highest = step
            if not _goes_on(points[start:index], points[index : index + 2 * SHORT]):
                start = index
        highest = max(highest, step)
    return points[start:]


def _goes_on(before: Sequence[Progress], behind: Sequence[Progress]) -> bool:
    """Whether the losses behind a counter that fell back are about those before it."""
    last, first = losses_of(before)[-SHORT:], losses_of(behind)[:SHORT]
    if not (last and first):
        return False
    return height(first) <= LEARNED * height(last)


def losses_of(points: Iterable[Progress]) -> list[float]:
    """The losses that the points print."""
    return [point.loss for point in points if point.loss is not None]


def break_at(printed: Sequence[Progress], values: Sequence[float], index: int, why: str, metric: str) -> LossBreak:
    start = max(0, index - WINDOW)
    return LossBreak(
        printed[index], why, "", printed[-1].step, metric or "loss", tuple(values[start:]), before=index - start
    )


def is_calm(values: Sequence[float], multiple: float) -> bool:
    """Whether the newest value cannot be above this multiple of any that came before: most series, most of the time."""
    if not values:
        return True
    return 0.0 <= values[-1] <= multiple * min(filter(math.isfinite, values), default=0.0)


def is_above(value: float, ceiling: float) -> bool:
    return value > ceiling or not math.isfinite(value)


def height(values: Sequence[float]) -> float:
    """The median, where what is no number counts as high as can be."""
    return median(value if math.isfinite(value) else math.inf for value in values)


def band(window: Sequence[float]) -> float:
    """Mean + 6 sigma, for much less than ``statistics.pstdev`` takes to be exact."""
    mean = fmean(window)
    return mean + SIGMAS * math.sqrt(fmean([(value - mean) ** 2 for value in window]))
