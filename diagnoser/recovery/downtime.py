"""Measures what failures cost and how fast they are recovered from, of one window of time. Pure.

Only facts count: a failure of a job that does not say how many GPUs it has adds nothing to the hours, and is counted as
unknown; what was saved is known only where enough failures were recovered from by people to compare with.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from diagnoser.model import FailedRun

HOUR = 3600.0
GIVEN_UP = 24 * HOUR
"""A job that was not launched again for so long is given up: its GPUs are somebody else's by then."""
FATAL_AGE = HOUR
"""A fatal line that stands longer before the end did not end the run: it was caught, or survived."""
_DIGITS = 7
"""Most digits of a number of GPUs."""
COMPARED = 5
"""Relaunches by people that it takes to say how long one takes."""


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """failures: in the window. lost_hours: GPU hours from the failure to the next launch, or to now; None where no job
    said how many GPUs it has. without_gpus: failures of jobs that did not.

    saved_hours: that plans carried out by agents took less than the median relaunch of people; None where that is not
    known. to_diagnosis, to_recovery: mean seconds from the failure to the verdict, and to the next launch; None for no
    failure. relaunched: failures after which the job was launched again. judged: of these launches, how many have a
    verdict; succeeded: how many ended without a fault.
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


def recovery_figures(runs: Sequence[FailedRun], now: float) -> RecoveryFigures:
    """runs: those that failed within the window."""
    lost = [lost_hours(run, now) for run in runs if run.gpus]
    down = [_down(run) for run in runs if run.relaunched is not None]
    judged = [run.next_succeeded for run in runs if run.next_succeeded is not None]
    return RecoveryFigures(
        failures=len(runs),
        lost_hours=sum(lost) if lost else None,
        without_gpus=len(runs) - len(lost),
        saved_hours=_saved(runs),
        to_diagnosis=_mean([run.diagnosed - run.failed for run in runs]),
        to_recovery=_mean(down),
        relaunched=len(down),
        judged=len(judged),
        succeeded=sum(judged),
    )


def lost_hours(run: FailedRun, now: float) -> float:
    """Count GPU hours from the failure to the next launch, or to now; none of a job that does not say its GPUs."""
    seconds = max(0.0, now - run.failed)
    if run.relaunched is not None:
        seconds = _down(run)
    return run.known_gpus * min(seconds, GIVEN_UP) / HOUR


def manual_recovery(runs: Iterable[FailedRun]) -> float | None:
    """Find the median seconds from failures to the launches by people; None where too few are known."""
    by_people = [seconds for _, seconds in _recovered(runs, by_plan=False)]
    if len(by_people) < COMPARED:
        return None
    return min(median(by_people), GIVEN_UP)


def _saved(runs: Sequence[FailedRun]) -> float | None:
    usual = manual_recovery(runs)
    if usual is None:
        return None
    saved = []
    for run, seconds in _recovered(runs, by_plan=True):
        if run.gpus:
            saved.append(run.gpus * max(0.0, usual - seconds))
    if not saved:
        return None
    return sum(saved) / HOUR


def _recovered(runs: Iterable[FailedRun], *, by_plan: bool) -> Iterator[tuple[FailedRun, float]]:
    """Give the failures after which a plan, or a person, launched the job again, and how long that took."""
    for run in runs:
        if run.relaunched is None:
            continue
        if run.by_plan is by_plan:
            yield run, _down(run)


def _down(run: FailedRun) -> float:
    assert run.relaunched is not None, "the caller has checked"
    seconds = run.relaunched - run.failed
    return seconds if seconds > 0.0 else 0.0  # max() takes four times as long


def _mean(values: Iterable[float]) -> float | None:
    positive = [value if value > 0.0 else 0.0 for value in values]
    return fmean(positive) if positive else None
