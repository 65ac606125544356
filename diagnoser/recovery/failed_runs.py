"""Measures what failed launches cost and how fast they were recovered from, of one window of time. Pure.

Only facts count: a failure of a job that does not say how many GPUs it has adds nothing to the hours, and is counted as
unknown; what was saved is known only where enough failures were recovered from by people to compare with.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from diagnoser.model import FailedRun
from diagnoser.recovery.downtime import GIVEN_UP, HOUR

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
COMPARED = 5
"""Relaunches by people that it takes to say how long one takes."""


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """failures: in the window. lost_hours: GPU hours from the failure to the next launch, or to now; None where no job
    said how many GPUs it has. without_gpus: failures of jobs that did not.

    saved_hours: that plans carried out by agents took less than the median relaunch of people; None where that is not
    known. to_diagnosis, to_recovery: mean seconds from the failure to the verdict, and to the next launch; None for no
    failure. relaunched: failures after which the job was launched again. judged: of these launches, how many have a
    verdict; succeeded: how many ended without a failure.
    """

    failures: int = 0
    lost_hours: float | None = None
    without_gpus: int = 0
    saved_hours: float | None = None
    to_diagnosis: float | None = None
    to_recovery: float | None = None
    relaunched: int = 0
    judged: int = 0
    succeeded: int = 0


class FailedRuns(NamedTuple):
    """Launches as an array for each field of ``FailedRun``: a loop over hundreds of thousands takes ten times as long.

    gpus: 0 where the job does not say. relaunched, next_succeeded: NaN in place of None; the latter is 1 or 0.
    """

    failed: Floats
    diagnosed: Floats
    gpus: Floats
    relaunched: Floats
    by_plan: Bools
    next_succeeded: Floats

    @classmethod
    def of(cls, runs: Sequence[FailedRun]) -> Self:
        return cls(
            failed=floats([run.failed for run in runs]),
            diagnosed=floats([run.diagnosed for run in runs]),
            gpus=floats([run.known_gpus for run in runs]),
            relaunched=floats([run.relaunched for run in runs]),
            by_plan=np.array([run.by_plan for run in runs], bool),
            next_succeeded=floats([run.next_succeeded for run in runs]),
        )

    def where(self, condition: Bools) -> Self:
        """The runs that the condition holds for."""
        columns: list[Any] = [column[condition] for column in self]
        return type(self)(*columns)


def floats(values: Iterable[float | None]) -> Floats:
    """None becomes NaN."""
    return np.array(list(values), np.float64)


def is_known(values: Floats) -> Bools:
    return ~np.isnan(values)


def at_least_zero(seconds: Floats) -> Floats:
    """A clock that is ahead makes no negative time."""
    return np.where(seconds > 0.0, seconds, 0.0)


def recovery_figures(runs: FailedRuns, now: float) -> RecoveryFigures:
    """runs: those that failed within the window."""
    lost: list[float] = lost_hours(runs, now)[runs.gpus > 0].tolist()
    again = runs.where(is_known(runs.relaunched))
    judged = runs.next_succeeded[is_known(runs.next_succeeded)]
    return RecoveryFigures(
        failures=len(runs.failed),
        lost_hours=sum(lost) if lost else None,
        without_gpus=len(runs.failed) - len(lost),
        saved_hours=_saved(runs),
        to_diagnosis=_mean(runs.diagnosed - runs.failed),
        to_recovery=_mean(again.relaunched - again.failed),
        relaunched=len(again.failed),
        judged=len(judged),
        succeeded=int(judged.sum()),
    )


def lost_hours(runs: FailedRuns, now: float) -> Floats:
    """Count GPU hours from each failure to the next launch, or to now; none of a job that does not say its GPUs."""
    until = np.where(is_known(runs.relaunched), runs.relaunched, now)
    return runs.gpus * np.minimum(at_least_zero(until - runs.failed), GIVEN_UP) / HOUR


def manual_recovery(runs: FailedRuns) -> float | None:
    """Find the median seconds from failures to the launches by people; None where too few are known."""
    by_people = runs.where(is_known(runs.relaunched) & ~runs.by_plan)
    if len(by_people.failed) < COMPARED:
        return None
    took: list[float] = at_least_zero(by_people.relaunched - by_people.failed).tolist()
    return min(median(took), GIVEN_UP)


def _saved(runs: FailedRuns) -> float | None:
    usual = manual_recovery(runs)
    if usual is None:
        return None
    by_plan = runs.where(is_known(runs.relaunched) & runs.by_plan & (runs.gpus > 0))
    took = at_least_zero(by_plan.relaunched - by_plan.failed)
    saved: list[float] = (by_plan.gpus * at_least_zero(usual - took)).tolist()
    if not saved:
        return None
    return sum(saved) / HOUR


def _mean(seconds: Floats) -> float | None:
    return fmean(at_least_zero(seconds).tolist()) if len(seconds) else None
