"""The page of impact: the report, with links from each figure to its failures, and what each figure means."""

from fastapi import Request
from fastapi.responses import Response

from diagnoser.impact.closing import CLOSING_WORDS
from diagnoser.web.api.impact import ImpactQuery, report
from diagnoser.web.http.dependencies import Core
from diagnoser.web.pages.rendering import Drawn, page_query, reading_pages

router = reading_pages()


@router.get("/impact")
async def impact_page(request: Request, core: Core, pages: Drawn) -> Response:
    query = page_query(ImpactQuery, request)
    return pages.draw("impact.html", report=await report(query, core), query=query, closing_words=CLOSING_WORDS)
