"""Measures how much of their time long jobs trained: ETTR and goodput of a job, from its attempts and checkpoints."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import NamedTuple

from diagnoser.impact.failures import gpus_of
from diagnoser.model import AttemptOutcome, FailedRun

HOUR = 3600.0
LONG = 24 * HOUR
"""Jobs that lasted so long have an ETTR: as in Kokolis et al., who look at the longest runs only."""


class RunTime(NamedTuple):
    """One attempt, with its failure and the time within the window in which it held its GPUs."""

    outcome: AttemptOutcome
    run: FailedRun | None
    start: float
    end: float


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


def run_times(
    outcomes: Sequence[AttemptOutcome], runs: Iterable[FailedRun | None], since: float, now: float
) -> list[RunTime]:
    """Measure attempts, each of which ends at the latest when the next one of its job begins.

    outcomes: ordered by job and number. runs: the failure of each.
    """
    times = list[RunTime]()
    for outcome, run, following in zip_longest(outcomes, runs, outcomes[1:]):
        latest = now
        if following is not None and following.job == outcome.job:
            latest = following.opened
        start = max(outcome.opened, since)
        end = min(outcome.ended or outcome.last_line or outcome.opened, latest)
        times.append(RunTime(outcome, run, start, max(start, end)))
    return times


def long_jobs(times: Iterable[RunTime]) -> list[LongJob]:
    """List the long jobs, the lowest ETTR first. times: ordered by job and number."""
    jobs = list[LongJob]()
    for job, runs in groupby(times, attrgetter("outcome.job")):
        measured = _long_job(job, list(runs))
        if measured:
            jobs.append(measured)
    return sorted(jobs, key=lambda measured: (measured.ettr, measured.job))


def _long_job(job: str, runs: Sequence[RunTime]) -> LongJob | None:
    """None for one that is not long."""
    seconds = max([run.end for run in runs]) - min([run.start for run in runs])
    if seconds < LONG:
        return None
    held = sum(run.end - run.start for run in runs)
    has_checkpoints = any(run.outcome.saved is not None for run in runs)
    trained = sum(_trained(run, has_checkpoints=has_checkpoints) for run in runs)
    failures = sum(run.run is not None for run in runs)
    return LongJob(
        job=job,
        gpus=gpus_of(runs[-1].outcome.gpus),
        hours=seconds / HOUR,
        ettr=trained / seconds,
        goodput=trained / held if held else 0.0,
        failures=failures,
        is_bound=failures > 0 and not has_checkpoints,
    )


def _trained(run: RunTime, *, has_checkpoints: bool) -> float:
    """Seconds that were not lost later: to the failure, or to the newest checkpoint where the job saves any."""
    if run.run is None:
        return run.end - run.start
    until = min(run.run.failed, run.end)
    if has_checkpoints:
        until = min(until, run.outcome.saved or run.start)
    return max(0.0, until - run.start)
