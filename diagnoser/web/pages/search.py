"""The page that searches everything; with script the same search is one key away from each page."""

from fastapi.responses import Response

from diagnoser.web.api.params import Search
from diagnoser.web.api.search import MOST, SearchResult, search
from diagnoser.web.http.authentication import Caller
from diagnoser.web.http.dependencies import Core, ShippedRules
from diagnoser.web.pages.rendering import Drawn, reading_pages

router = reading_pages()


@router.get("/search")
async def search_page(
    core: Core, shipped_rules: ShippedRules, pages: Drawn, caller: Caller, q: Search = ""
) -> Response:
    result = await search(core, shipped_rules, caller.viewer, q, MOST) if q.strip() else SearchResult(q=q, groups=[])
    return pages.draw("search_all.html", q=q, groups=result.groups)
