"""The page of lines that belong to no job: what was received, why it has no place, and what would give it one."""

from fastapi.responses import Response

from diagnoser.ingest.mapping_hints import mapping_hint
from diagnoser.web.http.dependencies import Core
from diagnoser.web.pages.rendering import Drawn, reading_pages

SHOWN = 100

router = reading_pages()


@router.get("/unplaced")
async def unplaced_page(core: Core, pages: Drawn) -> Response:
    now = core.clock()
    records = await core.store.unplaced.page(now, SHOWN)
    streams = [(r, mapping_hint(r.stream.labels, r.stream.reason, r.stream.protocol)) for r in records]
    return pages.draw("unplaced.html", streams=streams, total=await core.store.unplaced.count(now))
