"""The report of impact as Markdown, for mail, a chat or an issue. Names were written by jobs and users."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap

from diagnoser.impact.closing import CLOSING_WORDS, Closing
from diagnoser.impact.report import ClosedShare, Cost, FailureRate, ImpactReport, Spread
from diagnoser.impact.trace import TraceGroup, TraceReport
from diagnoser.impact.training_time import LongJob
from diagnoser.redaction.redact import Redact
from diagnoser.wording.phrases import plural
from diagnoser.wording.post_mortem import plain
from diagnoser.wording.words import lasting, percent, stamp

_NAME = 200
"""Most characters of a name that a table shows."""


def report_markdown(report: ImpactReport, link: str, redact: Redact) -> str:
    """link: of the page, which defines the figures. redact: hides secrets in names."""
    needs = [pair for pair in report.closings.items() if pair[0] is not Closing.AUTOMATIC]
    weeks = [_share_cells(stamp(week.start)[:10], week) for week in report.by_week]
    parts = [
        "# Impact of failures",
        f"{stamp(report.since)} to {stamp(report.until)}. Definitions: {link}",
        "\n".join(f"- {fact}" for fact in _facts(report)),
        "## Why a person was needed",
        "\n".join(f"- {CLOSING_WORDS[closing]}: {count}" for closing, count in needs),
        *_section("Closed without a person, by week", _SHARE, weeks),
        *_section("Closed without a person, by category", _SHARE, map(_share_row, report.by_category)),
        *_section("Closed without a person, by cluster", _SHARE, map(_share_row, report.by_cluster)),
    ]
    for title, costs in _costs(report):
        parts += _section(title, _COST, map(_cost_row, costs))
    parts += _section("Mean time to failure by job size", _RATE, map(_rate_row, report.rates))
    parts += _section("Wait in the queue by job size", _QUEUE, starmap(_wait_row, report.queue_by_size.items()))
    parts += _section("Start to first step by job size", _QUEUE, starmap(_wait_row, report.startup_by_size.items()))
    parts += _section("Long jobs, the lowest ETTR first", _LONG, map(_long_row, report.long_jobs))
    return _document(parts, redact)


def trace_markdown(trace: TraceReport, redact: Redact) -> str:
    """redact: hides secrets in names."""
    parts = [
        "# Failures of a job trace",
        "\n".join(f"- {fact}" for fact in _trace_facts(trace)),
        *_section("By state", _GROUP, map(_group_row, trace.by_state)),
        *_section("By type of job", _GROUP, map(_group_row, trace.by_type)),
        *_section("By job size (GPUs)", _GROUP, map(_group_row, trace.by_size)),
        *_section("By user, the most GPU hours of failed jobs first", _GROUP, map(_group_row, trace.by_user)),
        *_section("Mean time to failure of any cause, by job size", _RATE, map(_rate_row, trace.rates)),
        "## What a trace cannot say",
        "\n".join(f"- {figures}: {reason}" for figures, reason in trace.left_out.items()),
    ]
    return _document(parts, redact)


_Table = tuple[Sequence[str], Sequence[Sequence[str]]]
_SHARE = ("", "closed", "without a person", "share")
_COST = ("", "failures", "GPU hours", "of unknown size")
_GROUP = ("", "jobs", "failed", "GPU hours", "of failed jobs", "median wait", "nine in ten waited at most")
_RATE = ("GPUs", "hours of jobs", "failures", "MTTF (h)", "95 % bounds (h)")
_QUEUE = ("GPUs", "launches", "median wait", "nine in ten waited at most")
_LONG = ("job", "GPUs", "hours", "ETTR", "goodput", "failures")


def _document(parts: Iterable["str | _Table"], redact: Redact) -> str:
    return "\n\n".join(_shown(part, redact) for part in parts if part) + "\n"


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str | _Table]:
    """Nothing where there are no rows."""
    listed = list(rows)
    if listed:
        yield f"## {title}"
        yield columns, listed


def _shown(part: str | _Table, redact: Redact) -> str:
    if isinstance(part, str):
        return part
    columns, rows = part
    lines = [_row(columns), _row(["---"] * len(columns))]
    lines += [_row([plain(cell[:_NAME], redact) for cell in row]) for row in rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _facts(report: ImpactReport) -> Iterator[str]:
    recovery, share = report.recovery, report.share
    yield f"{plural(recovery.failures, 'failure')} in {plural(report.attempts, 'attempt')}"
    if report.is_sample:
        yield "there were more attempts: only the newest are counted"
    yield f"{share.automatic} of {share.closed} closed without a person ({_percent(share.share)})"
    if recovery.lost_hours is not None:
        yield f"{recovery.lost_hours:,.1f} GPU hours lost"
    if recovery.without_gpus:
        yield f"{plural(recovery.without_gpus, 'failure')} of jobs that do not say their GPUs"
    if recovery.saved_hours is not None and report.manual is not None:
        yield f"{recovery.saved_hours:,.1f} GPU hours saved against {lasting(report.manual)} for a launch by people"
    yield f"{plural(report.relaunches, 'launch')} of jobs that had been launched before"
    yield f"waited in the queue: {_spread(report.queue)}"
    yield f"from the start of a launch to its first step: {_spread(report.startup)}"
    yield f"from the failure to the verdict: {_spread(report.to_verdict)}"
    yield f"from the failure to the plan: {_spread(report.to_plan)}"
    yield f"from the failure to the next launch: {_spread(report.to_relaunch)}"


def _trace_facts(trace: TraceReport) -> Iterator[str]:
    total = trace.total
    if trace.since is not None and trace.until is not None:
        yield f"{stamp(trace.since)} to {stamp(trace.until)}"
    yield f"{plural(total.jobs, 'job')} with GPUs, {trace.cpu_jobs} without, which are not counted below"
    if trace.unreadable:
        yield f"{plural(trace.unreadable, 'row')} could not be read"
    yield f"{total.failed} failed ({percent(total.failed / total.jobs)})"
    yield f"{total.gpu_hours:,.1f} GPU hours, {total.failed_gpu_hours:,.1f} of them in jobs that failed"
    yield f"ran: {_spread(trace.run)}"
    yield f"waited: {_spread(total.queue)}"


def _costs(report: ImpactReport) -> Iterator[tuple[str, Sequence[Cost]]]:
    yield "GPU hours lost by category", report.cost_by_category
    yield "GPU hours lost by type", report.cost_by_type
    yield "GPU hours lost by job size (GPUs)", report.cost_by_size
    yield "GPU hours lost by user", report.cost_by_user
    yield "Nodes that cost most", report.costly_nodes
    yield "Jobs that cost most", report.costly_jobs
    yield "Incidents that cost most", report.costly_incidents


def _spread(spread: Spread) -> str:
    if spread.median is None or spread.p90 is None:
        return "not known"
    return f"median {lasting(spread.median)}, nine in ten within {lasting(spread.p90)} ({spread.count})"


def _percent(share: float | None) -> str:
    return "none closed yet" if share is None else percent(share)


def _share_row(share: ClosedShare) -> Sequence[str]:
    return _share_cells(share.name, share)


def _share_cells(name: str, share: ClosedShare) -> Sequence[str]:
    return name, str(share.closed), str(share.automatic), _percent(share.share)


def _cost_row(cost: Cost) -> Sequence[str]:
    name = cost.label or cost.name
    if cost.cluster:
        name = f"{name} ({cost.cluster})"
    return name, str(cost.failures), f"{cost.gpu_hours:,.1f}", str(cost.without_gpus)


def _group_row(group: TraceGroup) -> Sequence[str]:
    hours, failed_hours = f"{group.gpu_hours:,.1f}", f"{group.failed_gpu_hours:,.1f}"
    return group.name, str(group.jobs), str(group.failed), hours, failed_hours, *_waits(group.queue)


def _wait_row(size: str, wait: Spread) -> Sequence[str]:
    return size, str(wait.count), *_waits(wait)


def _waits(queue: Spread) -> tuple[str, str]:
    """The median and the longest wait of nine in ten."""
    if queue.median is None or queue.p90 is None:
        return "not known", "not known"
    return lasting(queue.median), lasting(queue.p90)


def _rate_row(rate: FailureRate) -> Sequence[str]:
    mttf, bounds = "none failed", f"over {rate.low:,.0f}"
    if rate.mttf is not None and rate.high is not None:
        mttf, bounds = f"{rate.mttf:,.0f}", f"{rate.low:,.0f} to {rate.high:,.0f}"
    return rate.size, f"{rate.hours:,.0f}", str(rate.failures), mttf, bounds


def _long_row(job: LongJob) -> Sequence[str]:
    gpus = "unknown" if job.gpus is None else str(job.gpus)
    most = "at most " if job.is_bound else ""
    return job.job, gpus, f"{job.hours:,.0f}", most + percent(job.ettr), most + percent(job.goodput), str(job.failures)
