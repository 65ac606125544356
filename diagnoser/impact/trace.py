"""The report of a job trace in the columns of AcmeTrace (Hu et al., NSDI'24), as far as such a trace can say it.

Jobs without GPUs are counted apart, and TIMEOUT and NODE_FAIL count as failures, as in the paper. Times are the trace's
own columns: its ``duration`` is not always its end less its start.
"""

import csv
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import numpy as np

from diagnoser.impact.report import LISTED, SIZES, FailureRate, Spread, failure_rate, size_of, spread
from diagnoser.impact.training_time import HOUR
from diagnoser.model.errors import BadInput

_Empty = TypeVar("_Empty", float, None)
COLUMNS = ("user", "gpu_num", "type", "state", "submit_time", "end_time", "duration", "queue", "gpu_time")
FAILED_STATES = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL"})
LEFT_OUT: Mapping[str, str] = {
    "category, type and incident of a failure": "a trace has no causes",
    "closed without a person, hours saved, time to the verdict and to the plan": "a trace has no plans",
    "nodes that cost most": "a trace names no nodes",
    "time to the next launch": "a trace does not link the launches of a job",
    "ETTR and goodput": "a trace has no checkpoints",
}


@dataclass(frozen=True, slots=True)
class TraceGroup:
    """Jobs of one state, type, size or user. failed_gpu_hours: of jobs that failed, saved work included.

    queue: seconds from submission to start, of the jobs that say it.
    """

    name: str
    jobs: int
    failed: int
    gpu_hours: float
    failed_gpu_hours: float
    queue: Spread


@dataclass(frozen=True, slots=True)
class TraceReport:
    """since, until: the first submission and the last end; None where no job says it. run: seconds that jobs ran.

    cpu_jobs: jobs without GPUs, which are counted nowhere else. unreadable: rows that are left out.
    rates: by size, with failures of any cause.
    left_out: what the report of a service has and a trace cannot say, with the reason.
    """

    since: float | None
    until: float | None
    total: TraceGroup
    run: Spread
    cpu_jobs: int
    unreadable: int
    by_state: Sequence[TraceGroup]
    by_type: Sequence[TraceGroup]
    by_size: Sequence[TraceGroup]
    by_user: Sequence[TraceGroup]
    rates: Sequence[FailureRate]
    left_out: Mapping[str, str] = field(default_factory=lambda: LEFT_OUT)


class _Job(NamedTuple):
    """A row. submitted, ended, queue: None where the trace leaves them out, as for a job that never started."""

    user: str
    type: str
    state: str
    gpus: int
    submitted: float | None
    ended: float | None
    run: float
    queue: float | None
    gpu_seconds: float


@dataclass(slots=True)
class _Tally:
    """Sums over jobs, a row at a time."""

    jobs: int = 0
    failed: int = 0
    run_seconds: float = 0.0
    gpu_seconds: float = 0.0
    failed_gpu_seconds: float = 0.0
    queues: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, job: _Job) -> None:
        self.jobs += 1
        self.run_seconds += job.run
        self.gpu_seconds += job.gpu_seconds
        if job.queue is not None:
            self.queues.append(job.queue)
        if job.state in FAILED_STATES:
            self.failed += 1
            self.failed_gpu_seconds += job.gpu_seconds

    def group(self, name: str) -> TraceGroup:
        gpu_hours, failed_gpu_hours = self.gpu_seconds / HOUR, self.failed_gpu_seconds / HOUR
        return TraceGroup(name, self.jobs, self.failed, gpu_hours, failed_gpu_hours, spread(np.array(self.queues)))


_Tallies = defaultdict[str, _Tally]


def build_trace_report(lines: Iterable[str]) -> TraceReport:
    """Read a trace once, a row at a time. Raises BadInput where it is none."""
    rows = csv.reader(lines)
    try:
        return _build(rows)
    except csv.Error as error:
        raise BadInput(f"line {rows.line_num} of the trace is no CSV: {error}") from error


def _build(rows: Iterator[list[str]]) -> TraceReport:
    total, cpu_jobs, unreadable = _Tally(), 0, 0
    states, types, sizes, users = _Tallies(_Tally), _Tallies(_Tally), _Tallies(_Tally), _Tallies(_Tally)
    runs, submitted, ended = array("d"), array("d"), array("d")
    columns = _columns(next(rows, []))
    for row in rows:
        try:
            job = _job(row, columns)
        except (ValueError, IndexError, OverflowError):
            unreadable += 1
            continue
        if job.gpus == 0:
            cpu_jobs += 1
            continue
        for tally in (total, states[job.state], types[job.type], sizes[size_of(job.gpus)], users[job.user]):
            tally.add(job)
        runs.append(job.run)
        if job.submitted is not None:
            submitted.append(job.submitted)
        if job.ended is not None:
            ended.append(job.ended)
    if not total.jobs:
        raise BadInput(f"no row of the trace is a job with GPUs ({cpu_jobs} without, {unreadable} unreadable)")
    rates = []
    for size in filter(sizes.__contains__, SIZES):
        rates.append(failure_rate(size, sizes[size].run_seconds / HOUR, sizes[size].failed))
    return TraceReport(
        since=min(submitted, default=None),
        until=max(ended, default=None),
        total=total.group(""),
        run=spread(np.array(runs)),
        cpu_jobs=cpu_jobs,
        unreadable=unreadable,
        by_state=_groups(states),
        by_type=_groups(types),
        by_size=_groups(sizes),
        by_user=_groups(users)[:LISTED],
        rates=rates,
    )


def _columns(header: Sequence[str]) -> Sequence[int]:
    """Where each of COLUMNS stands."""
    names = [name.strip().removeprefix("\ufeff") for name in header]
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        raise BadInput(f"the trace has no column {', '.join(missing)}")
    return list(map(names.index, COLUMNS))


def _job(row: Sequence[str], columns: Sequence[int]) -> _Job:
    """Raises ValueError, IndexError or OverflowError where the row is no job."""
    user, gpus, kind, state, submitted, ended, duration, queue, gpu_time = [row[place] for place in columns]
    count, run = _number(gpus, 0.0), _number(duration, 0.0)
    gpu_seconds, waited = _number(gpu_time, run * count), _number(queue, None)
    return _Job(user, kind, state.upper(), int(count), _time(submitted), _time(ended), run, waited, gpu_seconds)


def _number(cell: str, empty: _Empty) -> float | _Empty:
    """empty: of an empty cell. Raises ValueError for what is no finite number, or a negative one."""
    if not cell:
        return empty
    number = float(cell)
    if not 0 <= number < math.inf:
        raise ValueError(cell)
    return number


def _time(cell: str) -> float | None:
    """A time without a zone is UTC."""
    if not cell:
        return None
    moment = datetime.fromisoformat(cell)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def _groups(tallies: Mapping[str, _Tally]) -> list[TraceGroup]:
    """The group whose failed jobs held most GPU hours first."""
    groups = [tally.group(name) for name, tally in tallies.items()]
    return sorted(groups, key=lambda group: (-group.failed_gpu_hours, -group.gpu_hours, group.name))
