"""The page of lines that belong to no job: what was received, why it has no place, and what would give it one."""

from fastapi import Depends
from fastapi.responses import Response

from diagnoser.ingest.mapping_hints import mapping_hint
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.page_routes import Drawn

SHOWN = 100

router = Router(include_in_schema=False, dependencies=[Depends(may_read)])


@router.get("/unplaced")
async def unplaced_page(core: Core, pages: Drawn) -> Response:
    now = core.clock()
    records = await core.store.unplaced.page(now, SHOWN)
    streams = [(r, mapping_hint(r.stream.labels, r.stream.reason, r.stream.protocol)) for r in records]
    return pages.draw("unplaced.html", streams=streams, total=await core.store.unplaced.count(now))
