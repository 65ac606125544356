"""The report of impact: what failures of a window of time cost, how they were dealt with, and how often they come."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from diagnoser.impact import poisson
from diagnoser.impact.closing import Closing, closing_of
from diagnoser.impact.columns import Attempts, Categorical, K, Texts
from diagnoser.impact.failures import failed_runs, gpus_of
from diagnoser.impact.training_time import HOUR, LongJob, RunTimes, long_jobs, run_times
from diagnoser.model.taxonomy import Category, FailureType
from diagnoser.model.weeks import week_of
from diagnoser.recovery.downtime import GIVEN_UP
from diagnoser.recovery.failed_runs import (
    FailedRuns,
    Floats,
    RecoveryFigures,
    at_least_zero,
    is_known,
    lost_hours,
    manual_recovery,
    recovery_figures,
)
from diagnoser.wording import words

ATTEMPTS, SHOWN_ATTEMPTS = 200_000, 50_000
"""Attempts that the command counts, and those that a page does, which others wait beside: the ones that began last."""
MOST_COSTLY, LISTED = 5, 20
"""Nodes, jobs and incidents that are named, and users and long jobs that are listed."""
_MOST_GPUS = (1, 8, 64, 512, 4096)
"""Most GPUs of a job of each size; larger ones are the last size."""
SIZES = ("1", "2-8", "9-64", "65-512", "513-4096", "4097+")
UNKNOWN_SIZE = "unknown"
_ALL_SIZES = (*SIZES, UNKNOWN_SIZE)


@dataclass(frozen=True, slots=True)
class ClosedShare:
    """Failures of one group that were closed, and how many of them without a person.

    share: None where nothing is closed yet. start: of a week, in UTC.
    """

    name: str
    closed: int
    automatic: int
    share: float | None
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Failures of one group and the GPU hours that they cost. without_gpus: those of jobs that do not say their GPUs.

    cluster: of a node, "" elsewhere. label: for people, where the name is an id.
    """

    name: str
    failures: int
    gpu_hours: float
    without_gpus: int
    cluster: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds from the failure to something, of ``count`` failures. p90: nine in ten took at most so long."""

    count: int
    median: float | None = None
    p90: float | None = None


@dataclass(frozen=True, slots=True)
class FailureRate:
    """How long jobs of one size ran and how often the infrastructure failed under them; times are hours of jobs.

    mttf: None without a failure. low, high: bounds of it with 95 % confidence; high is None without a failure.
    """

    size: str
    hours: float
    failures: int
    mttf: float | None
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class ImpactReport:
    """Times are seconds since the epoch, durations seconds, costs GPU hours.

    closings: how each failure ended. manual: median seconds that people took to launch a job again, which what was
    saved is measured against; None where too few are known. queue: seconds that launches waited, as the scheduler says.
    startup: seconds from the start of launches to their first step, of those that have a verdict.
    relaunches: launches of jobs that had been launched before. is_sample: there were more attempts than are counted.
    """

    since: float
    until: float
    attempts: int
    recovery: RecoveryFigures
    manual: float | None
    closings: Mapping[Closing, int]
    share: ClosedShare
    by_week: Sequence[ClosedShare]
    by_category: Sequence[ClosedShare]
    by_cluster: Sequence[ClosedShare]
    cost_by_category: Sequence[Cost]
    cost_by_type: Sequence[Cost]
    cost_by_size: Sequence[Cost]
    cost_by_user: Sequence[Cost]
    costly_nodes: Sequence[Cost]
    costly_jobs: Sequence[Cost]
    costly_incidents: Sequence[Cost]
    to_verdict: Spread
    to_plan: Spread
    to_relaunch: Spread
    rates: Sequence[FailureRate]
    long_jobs: Sequence[LongJob]
    queue: Spread
    queue_by_size: Mapping[str, Spread]
    startup: Spread
    startup_by_size: Mapping[str, Spread]
    relaunches: int
    is_sample: bool = False


@dataclass(frozen=True, slots=True)
class _Failures:
    """The failures that are counted, a column for each fact. hours: 0 where the GPUs are not known."""

    attempts: Attempts
    runs: FailedRuns
    closings: Categorical[Closing]
    hours: Floats


def build_report(
    attempts: Attempts, since: float, now: float, *, cluster: str = "", is_sample: bool = False
) -> ImpactReport:
    """Report the failures whose verdict was made after ``since``, and the attempts that ran since then.

    cluster: the one that is reported on, "" for all; a job may move.
    """
    runs = failed_runs(attempts)
    if cluster:
        is_there = attempts.cluster.is_any((cluster,))
        attempts, runs = attempts.where(is_there), runs.where(is_there)
    times, sizes = run_times(attempts, runs, since, now), _sizes(attempts)
    is_launched = attempts.opened >= since
    waited = np.where(is_launched, attempts.waited, np.nan)
    startup = np.where(is_launched, attempts.startup, np.nan)
    is_counted = is_known(runs.failed) & (runs.diagnosed >= since)
    failed, failed_in = attempts.where(is_counted), runs.where(is_counted)
    failures = _Failures(failed, failed_in, _closings(failed, failed_in, now), lost_hours(failed_in, now))
    closings = _by_closing(failures)
    return ImpactReport(
        since=since,
        until=now,
        attempts=len(attempts),
        recovery=recovery_figures(failures.runs, now),
        manual=manual_recovery(failures.runs),
        closings=closings,
        share=_share("", len(failed) - closings[Closing.OPEN], closings[Closing.AUTOMATIC]),
        by_week=_by_week(failures),
        by_category=_shares(failures, failed.category),
        by_cluster=_shares(failures, failed.cluster),
        cost_by_category=_costs(failures, failed.category),
        cost_by_type=[replace(cost, label=words.name(cost.name)) for cost in _costs(failures, failed.type)],
        cost_by_size=_costs(failures, _sizes(failed)),
        cost_by_user=_costs(failures, failed.user)[:LISTED],
        costly_nodes=_sum_up(failures, failed.cluster.paired(failed.node))[:MOST_COSTLY],
        costly_jobs=_costs(failures, failed.job)[:MOST_COSTLY],
        costly_incidents=_incidents(failures),
        to_verdict=spread(failures.runs.diagnosed - failures.runs.failed),
        to_plan=spread(failed.planned - failures.runs.failed),
        to_relaunch=spread(failures.runs.relaunched - failures.runs.failed),
        rates=_rates(attempts, runs, times, since),
        long_jobs=long_jobs(attempts, runs, times)[:LISTED],
        queue=spread(waited),
        queue_by_size=_by_size(waited, sizes),
        startup=spread(startup),
        startup_by_size=_by_size(startup, sizes),
        relaunches=int(np.count_nonzero(is_launched & (attempts.number > 1))),
        is_sample=is_sample,
    )


def _closings(failed: Attempts, runs: FailedRuns, now: float) -> Categorical[Closing]:
    """Classify failures: one of all those that are alike."""
    is_down = ~is_known(runs.relaunched) & (now - runs.failed < GIVEN_UP)
    facts = failed.state.codes, failed.mode.codes, failed.reason.codes, failed.category.codes
    alike = is_down.astype(np.intp)
    for fact in (*facts, failed.has_waited == 1, failed.is_vouched == 1):
        alike = alike * (fact.max(initial=0) + 1) + fact  # a number for each combination of facts
    _, examples, kinds = np.unique(alike, return_index=True, return_inverse=True)
    closings = [closing_of(failed.at(place), is_down=bool(is_down[place])) for place in examples.tolist()]
    return Categorical(kinds, closings)


def _by_closing(failures: _Failures) -> dict[Closing, int]:
    counted = dict.fromkeys(Closing, 0)
    for closing, count in zip(failures.closings.values, failures.closings.counts(), strict=True):
        counted[closing] += count
    return counted


def _share(name: str, closed: int, automatic: int, start: float = 0.0) -> ClosedShare:
    share = automatic / closed if closed else None
    return ClosedShare(name, closed, automatic, share, start)


def _closed(failures: _Failures, groups: Categorical[K]) -> list[tuple[K, int, int]]:
    """Count the failures of each group that are closed, and those without a person."""
    closed = groups.counts(~failures.closings.is_any((Closing.OPEN,)))
    automatic = groups.counts(failures.closings.is_any((Closing.AUTOMATIC,)))
    counts = zip(groups.values, groups.counts(), closed, automatic, strict=True)
    return [(value, ended, alone) for value, count, ended, alone in counts if count]


def _by_week(failures: _Failures) -> list[ClosedShare]:
    starts, weeks = np.unique(list(map(week_of, failures.runs.diagnosed.tolist())), return_inverse=True)
    groups = _closed(failures, Categorical(weeks, starts.tolist()))
    return [_share("", closed, automatic, start) for start, closed, automatic in groups]


def _shares(failures: _Failures, groups: Texts) -> list[ClosedShare]:
    return [_share(name or "", closed, automatic) for name, closed, automatic in sorted(_closed(failures, groups))]


def _costs(failures: _Failures, names: Texts | Categorical[str]) -> list[Cost]:
    """Sum up the cost of each group that has a name, the highest first. names: of the groups."""
    return _sum_up(failures, Categorical(names.codes, [("", name) for name in names.values]))


def _sum_up(failures: _Failures, groups: Categorical[tuple[str | None, str | None]]) -> list[Cost]:
    """groups: cluster and name of each."""
    hours, without_gpus = groups.sums(failures.hours), groups.counts(failures.runs.gpus == 0)
    sums = zip(groups.values, groups.counts(), hours, without_gpus, strict=True)
    costs = []
    for (cluster, name), count, lost, unknown in sums:
        if name and count:
            costs.append(Cost(name, count, lost, unknown, cluster or ""))
    return sorted(costs, key=lambda cost: (-cost.gpu_hours, -cost.failures, cost.cluster, cost.name))


def _incidents(failures: _Failures) -> list[Cost]:
    """The incidents that cost most, by the type of their newest failure and their node."""
    failed, costs = failures.attempts, []
    for cost in _costs(failures, failed.incident)[:MOST_COSTLY]:
        diagnosed = np.where(failed.incident.is_any((cost.name,)), failed.diagnosed, -np.inf)
        newest = failed.at(int(diagnosed.argmax()))
        label = words.name(newest.type or FailureType.UNKNOWN)
        if newest.node:
            label = f"{label} on {newest.node}"
        costs.append(replace(cost, label=label))
    return costs


def spread(seconds: Floats) -> Spread:
    """Those that are known count. A clock that is ahead makes no negative time."""
    ordered = np.sort(at_least_zero(seconds[is_known(seconds)])).tolist()
    if not ordered:
        return Spread(0)
    return Spread(len(ordered), median(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1])


def _by_size(seconds: Floats, sizes: Categorical[str]) -> dict[str, Spread]:
    """Spread of the launches whose seconds are known, by the size of the job, the smallest first."""
    spreads = {size: spread(seconds[sizes.is_any((size,))]) for size in sizes.values}
    return {size: known for size, known in spreads.items() if known.count}


def _sizes(attempts: Attempts) -> Categorical[str]:
    """The size of each attempt's job, of all that there are."""
    sizes = [_ALL_SIZES.index(size_of(gpus_of(label))) for label in attempts.gpus.values]
    return Categorical(np.array(sizes, np.intp)[attempts.gpus.codes], _ALL_SIZES)


def size_of(gpus: int | None) -> str:
    """Name the size of a job: ``9-64`` GPUs."""
    if not gpus:
        return UNKNOWN_SIZE
    return SIZES[bisect_left(_MOST_GPUS, gpus)]


def _rates(attempts: Attempts, runs: FailedRuns, times: RunTimes, since: float) -> list[FailureRate]:
    """Rate of each size that ran, the smallest jobs first. runs, times: of each attempt."""
    sizes = _sizes(attempts)
    is_infrastructure = attempts.category.is_any((Category.INFRASTRUCTURE,))
    failures = sizes.counts(is_infrastructure & is_known(runs.failed) & (runs.diagnosed >= since))
    hours = np.bincount(sizes.codes, (times.end - times.start) / HOUR, len(_ALL_SIZES)).tolist()
    sums = zip(sizes.values, hours, failures, sizes.counts(), strict=True)
    return [failure_rate(size, ran, failed) for size, ran, failed, count in sums if count]


def failure_rate(size: str, hours: float, failures: int) -> FailureRate:
    low, high = poisson.mean_bounds(failures)
    if not failures:
        return FailureRate(size, hours, 0, None, hours / high, None)
    return FailureRate(size, hours, failures, hours / failures, hours / high, hours / low)
