"""The charts of an attempt: loss, gradient norm and speed as its log prints them, and what its checkpoints cost."""

import asyncio

from fastapi import Response
from fastapi.responses import JSONResponse

from diagnoser.localize.metric_watch import seen_in
from diagnoser.model import AttemptKey
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.recovery.retry_history import family
from diagnoser.web.api.jobs import find_attempt
from diagnoser.web.api.params import JobPath
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages import charts
from diagnoser.web.pages.attempt_axis import log_of
from diagnoser.web.pages.rendering import reading_pages
from diagnoser.web.pages.run_view import RunSeries, as_json, points_of, run_charts, run_marks

EARLIER = 3
"""Runs of the family whose curves stand beside those of a run."""

router = reading_pages()


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
    return JSONResponse(as_json(charted, marks), headers={"Cache-Control": "no-store"})


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
