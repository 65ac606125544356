"""What the page of a job shows of its newest launch: where it stands, who prints, and its curves beside those of the
family's last runs."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from diagnoser.localize.checkpoints import reported
from diagnoser.localize.metric_watch import seen_in
from diagnoser.logview.log_index import LogIndex
from diagnoser.logview.log_timeline import LogTimeline, RankSpan
from diagnoser.model import Attempt, Job, Progress, RunStatus, Stage
from diagnoser.model.record_json import fields_of
from diagnoser.web.http.dependencies import Logs
from diagnoser.web.pages import charts
from diagnoser.web.pages.attempt_axis import log_of
from diagnoser.web.pages.log_viewer import log_path
from diagnoser.web.pages.time_axis import AxisFacts, TimeAxis, time_axis
from diagnoser.wording.phrases import plural, ranks_name
from diagnoser.wording.words import checkpoint_state, number

ACTIVE_SECONDS = 60.0
"""Before the newest line of the log: who printed since then is active."""
NAMED = 8
"""Ranks that a sentence names."""
TABLE_STEPS = 12


@dataclass(frozen=True, slots=True)
class RunView:
    """status: None once the launch has ended. steps: the newest ones, the newest first. activity: which ranks print, in
    words. is_reading: the log is large, and is being read. first_step: when its line came in, None where none has."""

    attempt: Attempt
    status: RunStatus | None
    steps: tuple[Progress, ...]
    activity: str
    axis: TimeAxis | None
    is_reading: bool
    first_step: float | None = None


class RunSeries(NamedTuple):
    """The points of one launch, with its name and the address of its page."""

    name: str
    url: str
    points: Sequence[Progress]


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A curve of one launch. y: None where the value was no number."""

    run: str
    url: str
    x: list[int]
    y: list[float | None]


@dataclass(frozen=True, slots=True)
class RunChart:
    """runs: that of the page first, where it prints the series."""

    name: str
    over: str
    runs: list[RunCurve]


@dataclass(frozen=True, slots=True)
class RunMark:
    """Something that happened at a step. kind: checkpoint, alert or relaunch."""

    step: int
    kind: str
    text: str


async def run_view(logs: Logs, job: Job, attempt: Attempt) -> RunView:
    """Raises Unavailable."""
    status = None
    if attempt.ended is None:
        status = (await logs.run_statuses.of({attempt.key: attempt.revision}))[attempt.key]
    index, _ = await log_of(logs, attempt.key)
    if not index:
        is_reading = index is None and bool(attempt.last_line)
        return RunView(attempt, status, (), "", None, is_reading)
    facts = AxisFacts(index.timeline, attempt, log_path(attempt.key), rank_nodes=job.rank_nodes, has_failed=False)
    steps, activity, axis = newest_steps(points_of(index)), "", None
    if status:
        axis = await asyncio.to_thread(time_axis, facts)
        activity = rank_activity(index.timeline.ranks, index.timeline)
        if status.step is None and steps:  # the newest lines of all ranks hold none
            names = ("stage", "step", "loss", "grad_norm", "step_seconds", "tokens_per_second")
            status = replace(status, **fields_of(steps[0], names))
    return RunView(attempt, status, steps, activity, axis, False, _first_step(index))


def _first_step(index: LogIndex) -> float | None:
    times = [point.received or point.time for point in points_of(index) if point.step is not None]
    return min(filter(None, times), default=None)


def points_of(index: LogIndex) -> list[Progress]:
    return [timed.point for timed in index.timeline.progress if timed.point.stage is Stage.TRAIN]


def newest_steps(points: Sequence[Progress]) -> tuple[Progress, ...]:
    """Of the rank that printed last, the newest first."""
    told = [point for point in points if point.step is not None]
    own = [point for point in told if (point.rank, point.stream) == (told[-1].rank, told[-1].stream)]
    return tuple(own[: -TABLE_STEPS - 1 : -1])


def rank_activity(ranks: Sequence[RankSpan], log: LogTimeline) -> str:
    """Which ranks printed within the last minute of the log; "" where it has no ranks or no times."""
    if not ranks:
        return ""
    if not log.is_timed:
        return ""
    active = [span.rank for span in ranks if span.last >= log.end - ACTIVE_SECONDS]
    quiet = [span.rank for span in ranks if span.last < log.end - ACTIVE_SECONDS]
    if not quiet:
        return f"All {plural(len(ranks), 'rank')} printed within the last minute of the log"
    few, is_active = (active, True) if len(active) <= len(quiet) else (quiet, False)
    names = ranks_name(few).capitalize() if len(few) <= NAMED else plural(len(few), "rank")
    if is_active:
        return f"{names} printed within the last minute of the log; {number(len(quiet))} others did not"
    return f"{names} did not print within the last minute of the log; {number(len(active))} others did"


def run_charts(runs: Iterable[RunSeries]) -> list[RunChart]:
    """Curves of one measure, of all runs that print it. runs: that of the page first."""
    by_name: dict[tuple[str, str], RunChart] = {}
    for name, url, points in runs:
        for curve in charts.curves(points):
            chart = by_name.setdefault((curve.name, curve.over), RunChart(curve.name, curve.over, []))
            chart.runs.append(_drawn(name, url, curve))
    return [chart for chart in by_name.values() if chart.runs]


def _drawn(name: str, url: str, curve: charts.Curve) -> RunCurve:
    """A step that was repeated stands where it came last."""
    values = dict(curve.points)
    return RunCurve(name, url, list(values), [value if math.isfinite(value) else None for value in values.values()])


def run_marks(attempt: Attempt, points: Sequence[Progress]) -> list[RunMark]:
    """Checkpoints, what the metrics show, and where the launch took up the training again, by step."""
    marks = [*_checkpoints(attempt), *_alerts(attempt, points)]
    first = next((point.step for point in points if point.step is not None), None)
    if first is not None and attempt.key.number > 1:
        marks.append(RunMark(first, "relaunch", f"attempt {attempt.key.number} goes on here"))
    return sorted(marks, key=lambda mark: mark.step)


def _checkpoints(attempt: Attempt) -> Iterator[RunMark]:
    for saved in reported(attempt.events):
        if saved.step is not None:
            yield RunMark(saved.step, "checkpoint", checkpoint_state(saved))


def _alerts(attempt: Attempt, points: Sequence[Progress]) -> Iterator[RunMark]:
    if not points:
        return
    for event in seen_in(points, is_running=attempt.ended is None):
        if event.point.step is not None:
            yield RunMark(event.point.step, "alert", event.why)


def as_json(charted: Sequence[RunChart], marks: Sequence[RunMark]) -> dict[str, object]:
    return {"charts": list(map(asdict, charted)), "marks": list(map(asdict, marks))}
