"""The page of jobs: what runs now and where it stands, what fell silent, what ended and how."""

from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from diagnoser.ports import AttemptState, ListName
from diagnoser.web.api.jobs import RunQuery, list_runs
from diagnoser.web.authentication import Provided, may_read
from diagnoser.web.ui import Drawn, page_query
from diagnoser.web.views import views_of

router = APIRouter(include_in_schema=False, dependencies=[Depends(may_read)])


@router.get("/jobs")
async def jobs_page(request: Request, services: Provided, pages: Drawn) -> Response:
    query = page_query(RunQuery, request)
    runs = await list_runs(services, query)
    chosen = {"state": query.state.value} if query.state else {}
    return pages.draw(
        "jobs.html",
        runs=runs,
        states=list(AttemptState),
        chosen=query.state,
        running=await services.store.count_running(runs.silent_since),
        is_first=not query.cursor,
        first_url="/jobs?" + urlencode(chosen) if chosen else "/jobs",
        next_url="/jobs?" + urlencode(chosen | {"cursor": runs.next}) if runs.next else "",
        saved=await views_of(services, ListName.JOBS, chosen, query),
    )
