"""The page that searches everything; with script the same search is one key away from each page."""

from fastapi import Depends
from fastapi.responses import Response

from diagnoser.web.api.params import Search
from diagnoser.web.api.search import MOST, SearchResult, search
from diagnoser.web.http.authentication import Caller, may_read
from diagnoser.web.http.dependencies import Core, ShippedRules
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.page_routes import Drawn

router = Router(include_in_schema=False, dependencies=[Depends(may_read)])


@router.get("/search")
async def search_page(
    core: Core, shipped_rules: ShippedRules, pages: Drawn, caller: Caller, q: Search = ""
) -> Response:
    result = await search(core, shipped_rules, caller.viewer, q, MOST) if q.strip() else SearchResult(q=q, groups=[])
    return pages.draw("search_all.html", q=q, groups=result.groups)
