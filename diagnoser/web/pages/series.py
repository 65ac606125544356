"""The charts of an attempt: loss, gradient norm and speed as its log prints them, and what its checkpoints cost."""

import asyncio

from fastapi import Depends, Response

from diagnoser.localize.metric_watch import seen_in
from diagnoser.model import AttemptKey
from diagnoser.model.errors import NotFound
from diagnoser.web.api.params import JobPath
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.http.routing import Router
from diagnoser.web.pages import charts

router = Router(include_in_schema=False, dependencies=[Depends(may_read)])


@router.get("/jobs/{id}/attempts/{number}/series.svg")
async def series(id: JobPath, number: int, core: Core, logs: Logs) -> Response:
    """An SVG image; empty if the log prints no series and no checkpoint was reported."""
    key = AttemptKey(id, number)
    attempt = next((attempt for attempt in await core.store.jobs.attempts(id) if attempt.key == key), None)
    if attempt is None:
        raise NotFound(f"no attempt {number} of {id!r}")
    points = sorted(await logs.context.progress(key), key=lambda point: point.line)
    drawn, events = charts.curves(points), await asyncio.to_thread(seen_in, points, is_running=attempt.ended is None)
    blocked = charts.blocked_curve(attempt.events)
    drawn += [blocked] if blocked else []
    return Response(charts.svg(drawn, events), media_type="image/svg+xml", headers={"Cache-Control": "no-cache"})
