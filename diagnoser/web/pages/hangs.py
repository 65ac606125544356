"""The page of a hang: who holds up whom, where each rank is in its groups, and what was collected to know it."""

import asyncio

from fastapi.responses import Response

from diagnoser.diagnosis import hang_evidence
from diagnoser.model import AttemptKey
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.jobs import find_attempt, latest
from diagnoser.web.api.params import JobPath
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages import hang_view
from diagnoser.web.pages.rendering import Drawn, reading_pages

router = reading_pages()

SHOWN = {"suspects": 8, "waits": 12, "groups": 24, "behind": 8, "stacks": 8, "rejected": 8, "requests": 8}
"""Most of each: a page of ten thousand ranks stays small."""


@router.get("/jobs/{id}/attempts/{attempt}/hang")
async def hang_page(id: JobPath, attempt: AttemptPath, core: Core, logs: Logs, pages: Drawn) -> Response:
    """Also of an attempt without dumps: then it says what was asked for."""
    key, store = AttemptKey(id, attempt), core.store
    await find_attempt(store, key)
    job, hang = await store.jobs.find(id), await logs.context.hang_report(key)
    nodes = dict(job.rank_nodes) if job else {}
    nodes |= {suspect.rank: suspect.node for suspect in hang.suspects if suspect.node} if hang else {}
    headline = "No dumps of the ranks"
    if hang:
        headline = hang_evidence.findings(hang, 0).headline or "No rank is suspected"
    return pages.draw(
        "hang.html",
        key=key,
        hang=hang,
        nodes=nodes,
        record=(await latest(store, id)).get(attempt),
        bands=await asyncio.to_thread(hang_view.bands, hang, nodes) if hang else [],
        families_left_out=hang_view.families_left_out(hang) if hang else 0,
        waits=hang_view.waiting(hang.graph) if hang else [],
        headline=headline,
        states=list(hang_view.RankState),
        dumps=hang_view.dumps_by_origin(await store.evidence.list_runtime_files(key)),
        requests=await store.evidence.requests(key),
        group_name=hang_view.group_name,
        shown=SHOWN,
    )
