"""Measures how much of their time long jobs trained: ETTR and goodput of a job, from its attempts and checkpoints."""

from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from diagnoser.impact.columns import Attempts
from diagnoser.impact.failures import gpus_of
from diagnoser.recovery.failed_runs import Bools, FailedRuns, Floats, at_least_zero, is_known

HOUR = 3600.0
LONG = 24 * HOUR
"""Jobs that lasted so long have an ETTR: as in Kokolis et al., who look at the longest runs only."""


class RunTimes(NamedTuple):
    """The time within the window in which each attempt held its GPUs.

    trained: seconds that were not lost later. has_checkpoints: whether its job saves any.
    """

    start: Floats
    end: Floats
    trained: Floats
    has_checkpoints: Bools


@dataclass(frozen=True, slots=True)
class LongJob:
    """A job of at least ``LONG``.

    hours: from its first launch in the window to its last end. ettr: trained time by all of that. goodput: trained time
    by the time in which GPUs were held. is_bound: no checkpoint is known, so that what was lost since the last one is
    not, and both may be lower.
    """

    job: str
    gpus: int | None
    hours: float
    ettr: float
    goodput: float
    failures: int
    is_bound: bool


def run_times(attempts: Attempts, runs: FailedRuns, since: float, now: float) -> RunTimes:
    """Measure attempts, each of which ends at the latest when the next one of its job begins. runs: their failures."""
    start = np.maximum(attempts.opened, since)
    latest = _or(attempts.of_next(attempts.opened), now)
    end = _or(attempts.ended, _or(attempts.last_line, attempts.opened))
    end = np.maximum(start, np.minimum(end, latest))
    has_checkpoints = np.isin(attempts.job.codes, attempts.job.codes[is_known(attempts.saved)])
    until = np.where(is_known(runs.failed), np.minimum(runs.failed, end), end)
    saved = np.minimum(until, _or(attempts.saved, start))
    until = np.where(is_known(runs.failed) & has_checkpoints, saved, until)
    return RunTimes(start, end, at_least_zero(until - start), has_checkpoints)


def _or(times: Floats, others: Floats | float) -> Floats:
    """As ``or`` does, of times that may be unknown."""
    return np.where(np.nan_to_num(times) != 0, times, others)


def long_jobs(attempts: Attempts, runs: FailedRuns, times: RunTimes) -> list[LongJob]:
    """List the long jobs, the lowest ETTR first. runs, times: of each attempt."""
    if not len(attempts):
        return []
    job = attempts.job.codes
    first = np.flatnonzero(np.diff(job, prepend=-1))
    last = np.append(first[1:], len(attempts)) - 1
    seconds = np.maximum.reduceat(times.end, first) - np.minimum.reduceat(times.start, first)
    held = np.bincount(job, times.end - times.start)[job[first]]
    trained = np.bincount(job, times.trained)[job[first]]
    failures = np.bincount(job, is_known(runs.failed))[job[first]]
    jobs = list[LongJob]()
    for place in np.flatnonzero(seconds >= LONG):
        newest = attempts.at(last[place])
        made = LongJob(
            job=newest.job,
            gpus=gpus_of(newest.gpus),
            hours=float(seconds[place]) / HOUR,
            ettr=float(trained[place] / seconds[place]),
            goodput=float(trained[place] / held[place]) if held[place] else 0.0,
            failures=int(failures[place]),
            is_bound=bool(failures[place] and not times.has_checkpoints[last[place]]),
        )
        jobs.append(made)
    return sorted(jobs, key=attrgetter("ettr", "job"))
