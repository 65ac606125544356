"""The charts of an attempt: loss, gradient norm and speed as its log prints them."""

from fastapi import APIRouter, Depends, Response

from diagnoser.model import AttemptKey
from diagnoser.model.errors import NotFound
from diagnoser.web import charts
from diagnoser.web.api.params import JobPath
from diagnoser.web.authentication import Provided, may_read

router = APIRouter(include_in_schema=False, dependencies=[Depends(may_read)])


@router.get("/jobs/{id}/attempts/{number}/series.svg")
async def series(id: JobPath, number: int, services: Provided) -> Response:
    """An SVG image; empty if the log prints no series."""
    key = AttemptKey(id, number)
    if all(attempt.key != key for attempt in await services.store.attempts(id)):
        raise NotFound(f"no attempt {number} of {id!r}")
    drawn = charts.curves(await services.logs.progress(key))
    return Response(charts.svg(drawn), media_type="image/svg+xml", headers={"Cache-Control": "no-cache"})
