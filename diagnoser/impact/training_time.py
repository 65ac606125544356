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
    """One attempt within the window, with its failure.

    held: seconds that it held its GPUs. trained: those that were not lost later.
    """

    outcome: AttemptOutcome
    run: FailedRun | None
    start: float
    held: float
    trained: float

    @property
    def end(self) -> float:
        return self.start + self.held


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
    saving = {outcome.job for outcome in outcomes if outcome.saved is not None}
    for outcome, run, following in zip_longest(outcomes, runs, outcomes[1:]):
        end = outcome.ended or outcome.last_line or outcome.opened
        latest = now
        if following is not None and following.job == outcome.job:
            latest = following.opened
        times.append(_run_time(outcome, run, since, min(end, latest), has_checkpoints=outcome.job in saving))
    return times


def _run_time(
    outcome: AttemptOutcome, run: FailedRun | None, since: float, end: float, *, has_checkpoints: bool
) -> RunTime:
    start = max(outcome.opened, since)
    held = max(0.0, end - start)
    trained_until = end
    if run:
        trained_until = run.failed
        if has_checkpoints:
            trained_until = min(trained_until, outcome.saved or start)
    return RunTime(outcome, run, start, held, min(held, max(0.0, trained_until - start)))


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
    held = sum(run.held for run in runs)
    trained = sum(run.trained for run in runs)
    failures = sum(run.run is not None for run in runs)
    has_checkpoints = any(run.outcome.saved is not None for run in runs)
    return LongJob(
        job=job,
        gpus=gpus_of(runs[-1].outcome.gpus),
        hours=seconds / HOUR,
        ettr=trained / seconds,
        goodput=trained / held if held else 0.0,
        failures=failures,
        is_bound=failures > 0 and not has_checkpoints,
    )
