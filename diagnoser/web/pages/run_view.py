"""What the page of a job shows of its newest launch: where it stands, who prints, and its curves beside those of the
family's last runs."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from fastapi import Response
from fastapi.responses import JSONResponse

from diagnoser.localize.checkpoints import reported
from diagnoser.localize.metric_watch import seen_in
from diagnoser.logview.log_index import LogIndex
from diagnoser.logview.log_timeline import LogTimeline, RankSpan
from diagnoser.model import Attempt, AttemptKey, Job, Progress, RunStatus, Stage
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.record_json import fields_of
from diagnoser.recovery.retry_history import family
from diagnoser.web.api.jobs import find_attempt
from diagnoser.web.api.params import JobPath
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages import charts
from diagnoser.web.pages.attempt_axis import log_of
from diagnoser.web.pages.log_viewer import log_path
from diagnoser.web.pages.rendering import reading_pages
from diagnoser.web.pages.time_axis import AxisFacts, TimeAxis, time_axis
from diagnoser.wording.phrases import plural, ranks_name
from diagnoser.wording.words import checkpoint_state, number

ACTIVE_SECONDS = 60.0
"""Before the newest line of the log: who printed since then is active."""
NAMED = 8
"""Ranks that a sentence names."""
TABLE_STEPS = 12

router = reading_pages()


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


def run_charts(runs: Iterable[RunSeries]) -> list[dict[str, Any]]:
    """Curves of one measure, of all runs that print it; null where a value was no number. runs: that of the page first,
    where it prints the measure."""
    by_name: dict[tuple[str, str], dict[str, Any]] = {}
    for name, url, points in runs:
        for curve in charts.curves(points):
            chart = by_name.setdefault((curve.name, curve.over), {"name": curve.name, "over": curve.over, "runs": []})
            values = dict(curve.points)  # a step that was repeated stands where it came last
            heights = [value if math.isfinite(value) else None for value in values.values()]
            chart["runs"].append({"run": name, "url": url, "x": list(values), "y": heights})
    return list(by_name.values())


def run_marks(attempt: Attempt, points: Sequence[Progress]) -> list[dict[str, Any]]:
    """Checkpoints, what the metrics show, and where the launch took up the training again, by step."""
    marks = list[tuple[int, str, str]]()
    for saved in reported(attempt.events):
        if saved.step is not None:
            marks.append((saved.step, "checkpoint", checkpoint_state(saved)))
    for event in seen_in(points, is_running=attempt.ended is None) if points else ():
        if event.point.step is not None:
            marks.append((event.point.step, "alert", event.why))
    first = next((point.step for point in points if point.step is not None), None)
    if first is not None and attempt.key.number > 1:
        marks.append((first, "relaunch", f"attempt {attempt.key.number} goes on here"))
    return [{"step": step, "kind": kind, "text": text} for step, kind, text in sorted(marks, key=itemgetter(0))]


EARLIER = 3
"""Runs of the family whose curves stand beside those of a run."""


@router.get("/jobs/{id}/attempts/{number}/series.svg")
async def series(id: JobPath, number: int, core: Core, logs: Logs) -> Response:
    """An SVG image; empty if the log prints no series and no checkpoint was reported."""
    key = AttemptKey(id, number)
    attempt = await find_attempt(core.store, key)
    points = sorted(await logs.context.progress(key), key=lambda point: point.line)
    drawn, events = charts.curves(points), await asyncio.to_thread(seen_in, points, is_running=attempt.ended is None)
    blocked = charts.blocked_curve(attempt.events)
    drawn += [blocked] if blocked else []
    return Response(charts.svg(drawn, events), media_type="image/svg+xml", headers={"Cache-Control": "no-cache"})


@router.get("/jobs/{id}/attempts/{number}/series.json")
async def series_data(id: JobPath, number: int, core: Core, logs: Logs) -> Response:
    """The curves of an attempt and of the family's last runs, and marks by step: for charts that can be hovered. Runs
    whose logs are large may be missing until they have been read."""
    key = AttemptKey(id, number)
    attempt = await find_attempt(core.store, key)
    index, _ = await log_of(logs, key)
    points = await asyncio.to_thread(points_of, index) if index else []
    runs = [RunSeries("this run", "", points), *await _earlier(core, logs, key)]
    marks = await asyncio.to_thread(run_marks, attempt, points)
    charted = await asyncio.to_thread(run_charts, runs)
    return JSONResponse({"charts": charted, "marks": marks}, headers={"Cache-Control": "no-store"})


async def _earlier(core: Core, logs: Logs, key: AttemptKey) -> list[RunSeries]:
    """The last diagnosed runs of the family beside this one."""
    job = await core.store.jobs.find(key.job)
    if job is None:
        return []
    records = await core.store.diagnoses.page(DiagnosisFilter(family=family(job)), "", EARLIER + 1)
    runs = list[RunSeries]()
    for record in records:
        if record.attempt == key:
            continue
        index, _ = await log_of(logs, record.attempt)
        if index and len(runs) < EARLIER:
            points = await asyncio.to_thread(points_of, index)
            name = f"{record.attempt.job}, attempt {record.attempt.number}"
            runs.append(RunSeries(name, f"/diagnoses/{record.id}", points))
    return runs
