"""The page of impact: the report, with links from each figure to its failures, and what each figure means."""

from fastapi import Depends, Request
from fastapi.responses import Response

from diagnoser.impact.closing import CLOSING_WORDS
from diagnoser.web.api.impact import ImpactQuery, read_report
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.page_routes import Drawn, page_query

router = Router(include_in_schema=False, dependencies=[Depends(may_read)])


@router.get("/impact")
async def impact_page(request: Request, core: Core, pages: Drawn) -> Response:
    query = page_query(ImpactQuery, request)
    return pages.draw("impact.html", report=await read_report(core, query), query=query, closing_words=CLOSING_WORDS)
