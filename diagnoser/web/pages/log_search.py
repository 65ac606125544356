"""The page that searches the log of an attempt by words."""

from fastapi import Depends
from fastapi.responses import Response

from diagnoser.model import AttemptKey
from diagnoser.web.api.feedback import FOUND, AttemptPath, find_lines
from diagnoser.web.api.params import JobPath, Search
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Scoped
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.rendering import Drawn

router = Router(include_in_schema=False)


@router.get("/jobs/{id}/attempts/{number}/search", dependencies=[Depends(may_read)])
async def search(id: JobPath, number: AttemptPath, scope: Scoped, pages: Drawn, q: Search = "") -> Response:
    results = await find_lines(scope, AttemptKey(id, number), q, FOUND) if q.strip() else []
    return pages.draw("search.html", job=id, number=number, q=q, found=results)
