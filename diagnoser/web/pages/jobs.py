"""The page of jobs: what runs now and where it stands, what fell silent, what ended and how."""

from fastapi import Request
from fastapi.responses import Response

from diagnoser.model.queries import AttemptState
from diagnoser.model.sorting import NEWEST
from diagnoser.model.views import ListName
from diagnoser.web.api.jobs import RunQuery, list_runs
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages.column_order import ColumnOrder, filled
from diagnoser.web.pages.rendering import Drawn, page_query, reading_pages
from diagnoser.web.pages.views import views_of

FILTERS = ("user", "cluster", "framework")

router = reading_pages()


@router.get("/jobs")
async def jobs_page(request: Request, core: Core, logs: Logs, pages: Drawn) -> Response:
    query = page_query(RunQuery, request)
    runs = await list_runs(core, logs, query)
    typed = {name: getattr(query, name) for name in FILTERS}
    filters = filled({"state": query.state or "", **typed})
    order = ColumnOrder("/jobs", filters, query.order, NEWEST)
    return pages.draw(
        "jobs.html",
        runs=runs,
        states=list(AttemptState),
        chosen=query.state,
        typed=typed,
        running=await core.store.attempts.count_running(runs.silent_since),
        is_first=not query.cursor,
        order=order,
        next_url=order.page(runs.next),
        saved=await views_of(core, ListName.JOBS, order.chosen, query),
    )
