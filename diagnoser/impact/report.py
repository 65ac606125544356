"""The report of impact: what failures of a window of time cost, how they were dealt with, and how often they come."""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, compress
from operator import attrgetter
from statistics import median
from typing import TypeVar

from diagnoser.impact import poisson
from diagnoser.impact.closing import Closing, closing_of
from diagnoser.impact.failures import failed_runs, gpus_of
from diagnoser.impact.training_time import HOUR, LongJob, RunTime, long_jobs, run_times
from diagnoser.model import AttemptOutcome, FailedRun
from diagnoser.model.taxonomy import Category, FailureType
from diagnoser.model.weeks import week_of
from diagnoser.recovery.downtime import RecoveryFigures, lost_hours, manual_recovery, recovery_figures
from diagnoser.wording import words

ATTEMPTS, SHOWN_ATTEMPTS = 200_000, 50_000
"""Attempts that the command counts, and those that a page does, which others wait beside: the ones that began last."""
MOST_COSTLY, LISTED = 5, 20
"""Nodes, jobs and incidents that are named, and users and long jobs that are listed."""
_MOST_GPUS = (1, 8, 64, 512, 4096)
"""Most GPUs of a job of each size; larger ones are the last size."""
SIZES = ("1", "2-8", "9-64", "65-512", "513-4096", "4097+")
UNKNOWN_SIZE = "unknown"


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
    """The failures that are counted, a list for each fact of them. hours: None where the GPUs are not known."""

    outcomes: Sequence[AttemptOutcome]
    runs: Sequence[FailedRun]
    closings: Sequence[Closing]
    hours: Sequence[float | None]


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_Text = Callable[[AttemptOutcome], str]
_CATEGORY: _Text = attrgetter("category")
_CLUSTER: _Text = attrgetter("cluster")
_Seconds = Callable[[AttemptOutcome], float | None]
_WAITED: _Seconds = attrgetter("waited")
_STARTUP: _Seconds = attrgetter("startup")


def build_report(
    outcomes: Sequence[AttemptOutcome], since: float, now: float, *, cluster: str = "", is_sample: bool = False
) -> ImpactReport:
    """Report the failures whose verdict was made after ``since``, and the attempts that ran since then.

    outcomes: ordered by job and number. cluster: the one that is reported on, "" for all; a job may move.
    """
    all_runs = failed_runs(outcomes)
    if cluster:
        is_there = [outcome.cluster == cluster for outcome in outcomes]
        outcomes, all_runs = list(compress(outcomes, is_there)), list(compress(all_runs, is_there))
    times = run_times(outcomes, all_runs, since, now)
    launched = [outcome for outcome in outcomes if outcome.opened >= since]
    queues, startups = _seconds_by_size(launched, _WAITED), _seconds_by_size(launched, _STARTUP)
    failures = _failures(outcomes, all_runs, since, now)
    return ImpactReport(
        since=since,
        until=now,
        attempts=len(outcomes),
        recovery=recovery_figures(failures.runs, now),
        manual=manual_recovery(failures.runs),
        closings=dict.fromkeys(Closing, 0) | Counter(failures.closings),
        share=_closed("", failures.closings),
        by_week=_by_week(failures),
        by_category=_shares(failures, _CATEGORY),
        by_cluster=_shares(failures, _CLUSTER),
        cost_by_category=_costs(failures, _CATEGORY),
        cost_by_type=list(map(_of_type, _costs(failures, attrgetter("type")))),
        cost_by_size=_costs(failures, _size_of),
        cost_by_user=_costs(failures, attrgetter("user"), most=LISTED),
        costly_nodes=_costs(failures, attrgetter("node"), _CLUSTER, most=MOST_COSTLY),
        costly_jobs=_costs(failures, attrgetter("job"), most=MOST_COSTLY),
        costly_incidents=_incidents(failures),
        to_verdict=spread(run.diagnosed - run.failed for run in failures.runs),
        to_plan=spread(_until_plan(failures)),
        to_relaunch=spread(run.relaunched - run.failed for run in failures.runs if run.relaunched is not None),
        rates=_rates(times, since),
        long_jobs=long_jobs(times)[:LISTED],
        queue=spread(chain.from_iterable(queues.values())),
        queue_by_size=_spreads(queues),
        startup=spread(chain.from_iterable(startups.values())),
        startup_by_size=_spreads(startups),
        relaunches=sum(outcome.number > 1 for outcome in launched),
        is_sample=is_sample,
    )


def _failures(
    outcomes: Iterable[AttemptOutcome], all_runs: Iterable[FailedRun | None], since: float, now: float
) -> _Failures:
    """all_runs: the failure of each attempt."""
    counted = [
        (outcome, run)
        for outcome, run in zip(outcomes, all_runs, strict=True)
        if run is not None and run.diagnosed >= since
    ]
    runs = [run for _, run in counted]
    return _Failures(
        outcomes=[outcome for outcome, _ in counted],
        runs=runs,
        closings=[closing_of(outcome, run, now) for outcome, run in counted],
        hours=[lost_hours(run, now) if run.gpus else None for run in runs],
    )


def _grouped(keys: Iterable[K], values: Iterable[V]) -> dict[K, list[V]]:
    """keys: of the group of each value, in their order."""
    groups = defaultdict[K, list[V]](list)
    for key, value in zip(keys, values, strict=True):
        groups[key].append(value)
    return groups


def _closed(name: str, closings: Sequence[Closing], start: float = 0.0) -> ClosedShare:
    automatic = closings.count(Closing.AUTOMATIC)
    closed = len(closings) - closings.count(Closing.OPEN)
    share = automatic / closed if closed else None
    return ClosedShare(name, closed, automatic, share, start)


def _by_week(failures: _Failures) -> list[ClosedShare]:
    weeks = _grouped([week_of(run.diagnosed) for run in failures.runs], failures.closings)
    return [_closed("", weeks[start], start) for start in sorted(weeks)]


def _shares(failures: _Failures, name_of: _Text) -> list[ClosedShare]:
    groups = _grouped(map(name_of, failures.outcomes), failures.closings)
    return [_closed(name, groups[name]) for name in sorted(groups)]


def _no_cluster(_: AttemptOutcome) -> str:
    """Most groups are no cluster's."""
    return ""


def _costs(failures: _Failures, name_of: _Text, cluster_of: _Text = _no_cluster, most: int | None = None) -> list[Cost]:
    """Sum up the cost of each group that has a name; of the ``most`` highest, the highest first."""
    keys = zip(map(cluster_of, failures.outcomes), map(name_of, failures.outcomes), strict=True)
    sums = []
    for (cluster, name), members in _grouped(keys, failures.hours).items():
        if name:
            known = [hours for hours in members if hours is not None]
            sums.append((-math.fsum(known), -len(members), cluster, name, len(members) - len(known)))
    highest = sorted(sums)[:most]
    return [Cost(name, -count, -hours, without_gpus, cluster) for hours, count, cluster, name, without_gpus in highest]


def _of_type(cost: Cost) -> Cost:
    return replace(cost, label=words.name(cost.name))


def _incidents(failures: _Failures) -> list[Cost]:
    """The incidents that cost most, by the type of their newest failure and their node."""
    costs = []
    for cost in _costs(failures, attrgetter("incident"), most=MOST_COSTLY):
        members = [outcome for outcome in failures.outcomes if outcome.incident == cost.name]
        newest = max(members, key=attrgetter("diagnosed"))
        label = words.name(newest.type or FailureType.UNKNOWN)
        if newest.node:
            label = f"{label} on {newest.node}"
        costs.append(replace(cost, label=label))
    return costs


def _until_plan(failures: _Failures) -> Iterator[float]:
    """Seconds from failures to their plans, of those that have one."""
    for outcome, run in zip(failures.outcomes, failures.runs, strict=True):
        if outcome.planned is not None:
            yield outcome.planned - run.failed


def spread(seconds: Iterable[float]) -> Spread:
    """A clock that is ahead makes no negative time."""
    ordered = sorted([value if value > 0.0 else 0.0 for value in seconds])  # max() takes four times as long
    if not ordered:
        return Spread(0)
    return Spread(len(ordered), median(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1])


def _seconds_by_size(launched: Iterable[AttemptOutcome], seconds_of: _Seconds) -> dict[str, list[float]]:
    """Seconds of the launches that say them, by the size of the job, the smallest first."""
    by_size = defaultdict[str, list[float]](list)
    for outcome in launched:
        seconds = seconds_of(outcome)
        if seconds is not None:
            by_size[_size_of(outcome)].append(seconds)
    return {size: by_size[size] for size in (*SIZES, UNKNOWN_SIZE) if size in by_size}


def _spreads(seconds: Mapping[str, Iterable[float]]) -> dict[str, Spread]:
    return {name: spread(values) for name, values in seconds.items()}


def _size_of(outcome: AttemptOutcome) -> str:
    return _size_of_label(outcome.gpus)


@lru_cache(1024)
def _size_of_label(label: str | None) -> str:
    return size_of(gpus_of(label))


def size_of(gpus: int | None) -> str:
    """Name the size of a job: ``9-64`` GPUs."""
    if not gpus:
        return UNKNOWN_SIZE
    return SIZES[bisect_left(_MOST_GPUS, gpus)]


def _rates(times: Iterable[RunTime], since: float) -> list[FailureRate]:
    """Rate of each size that ran, the smallest jobs first."""
    hours, failures = defaultdict[str, float](float), defaultdict[str, int](int)
    for time in times:
        size = _size_of(time.outcome)
        hours[size] += (time.end - time.start) / HOUR
        is_infrastructure = time.outcome.category == Category.INFRASTRUCTURE
        if is_infrastructure and time.run and time.run.diagnosed >= since:
            failures[size] += 1
    return [failure_rate(size, hours[size], failures[size]) for size in (*SIZES, UNKNOWN_SIZE) if size in hours]


def failure_rate(size: str, hours: float, failures: int) -> FailureRate:
    low, high = poisson.mean_bounds(failures)
    if not failures:
        return FailureRate(size, hours, 0, None, hours / high, None)
    return FailureRate(size, hours, failures, hours / failures, hours / high, hours / low)
