"""The pages that search: everything (with script one key away from each page), and the log of one attempt."""

from fastapi.responses import Response

from diagnoser.model import AttemptKey
from diagnoser.web.api.feedback import FOUND, AttemptPath, find_lines
from diagnoser.web.api.params import JobPath, Search
from diagnoser.web.api.search import MOST, SearchQuery, search
from diagnoser.web.http.authentication import Caller
from diagnoser.web.http.dependencies import Core, Scoped, ShippedRules
from diagnoser.web.pages.rendering import Drawn, reading_pages

router = reading_pages()


@router.get("/search")
async def search_page(
    core: Core, shipped_rules: ShippedRules, pages: Drawn, caller: Caller, q: Search = ""
) -> Response:
    result = await search(SearchQuery(q=q, limit=MOST), core, shipped_rules, caller)
    return pages.draw("search_all.html", q=q, groups=result.groups)


@router.get("/jobs/{id}/attempts/{number}/search")
async def search_log(id: JobPath, number: AttemptPath, scope: Scoped, pages: Drawn, q: Search = "") -> Response:
    results = await find_lines(scope, AttemptKey(id, number), q, FOUND) if q.strip() else []
    return pages.draw("search.html", job=id, number=number, q=q, found=results)
