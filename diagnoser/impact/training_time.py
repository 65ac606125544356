"""Measures how much of their time long jobs trained: ETTR and goodput of a job, from its attempts and checkpoints."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from diagnoser.model import AttemptOutcome

HOUR = 3600.0
LONG = 24 * HOUR
"""Jobs that lasted so long have an ETTR: as in Kokolis et al., who look at the longest runs only."""


class RunTime(NamedTuple):
    """One attempt within the window. held: seconds that it held its GPUs. trained: those that were not lost later."""

    outcome: AttemptOutcome
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


def run_times(outcomes: Iterable[AttemptOutcome], since: float, now: float) -> list[RunTime]:
    """outcomes: ordered by job and number. An attempt ends at the latest when the next one of its job begins."""
    times = list[RunTime]()
    for _, attempts in groupby(outcomes, attrgetter("attempt.job")):
        of_job = list(attempts)
        has_checkpoints = any(outcome.saved is not None for outcome in of_job)
        ends = [following.opened for _, following in pairwise(of_job)] + [now]
        for outcome, latest in zip(of_job, ends, strict=True):
            times.append(_run_time(outcome, since, min(outcome.until, latest), has_checkpoints=has_checkpoints))
    return times


def _run_time(outcome: AttemptOutcome, since: float, end: float, *, has_checkpoints: bool) -> RunTime:
    start = max(outcome.opened, since)
    held = max(0.0, end - start)
    trained_until = end
    if outcome.failure:
        trained_until = outcome.failure.failed
        if has_checkpoints:
            trained_until = min(trained_until, outcome.saved or start)
    return RunTime(outcome, start, held, min(held, max(0.0, trained_until - start)))


def long_jobs(times: Iterable[RunTime]) -> list[LongJob]:
    """List the long jobs, the lowest ETTR first. times: ordered by job and number."""
    jobs = list[LongJob]()
    for job, runs in groupby(times, attrgetter("outcome.attempt.job")):
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
    failures = sum(run.outcome.failure is not None for run in runs)
    has_checkpoints = any(run.outcome.saved is not None for run in runs)
    return LongJob(
        job=job,
        gpus=runs[-1].outcome.gpus,
        hours=seconds / HOUR,
        ettr=trained / seconds,
        goodput=trained / held if held else 0.0,
        failures=failures,
        is_bound=failures > 0 and not has_checkpoints,
    )
