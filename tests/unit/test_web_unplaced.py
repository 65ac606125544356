"""The page and the route of lines that belong to no job."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.batch import Place
from diagnoser.ingest.mapping import load
from diagnoser.model import UnplacedReason, UnplacedStream
from diagnoser.model.errors import Unavailable
from diagnoser.web.live.nav_badges import UNPLACED_SECONDS, RememberedCount
from tests.serving import HOSTILE, NOW, Web, serving

WEB = UnplacedStream(
    labels=(("app", "web"), ("namespace", "shop")),
    reason=UnplacedReason.NO_JOB,
    detail="no job: none of app, namespace names one",
    protocol="loki",
    sample="GET /cart 200",
    lines=3,
    sender="alloy",
    cluster="east",
    received=NOW - 60,
)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as running:
        yield running


async def test_the_route_says_what_came_why_and_what_helps(web: Web) -> None:
    """The lines that it proposes are a mapping file that gives these labels a place."""
    await web.store.unplaced.record_unplaced([WEB, replace(WEB, received=NOW - 90, lines=2)])
    body = (await web.client.get("/api/v1/unplaced")).json()
    (item,) = body["items"]
    assert body["total"] == 1
    assert (item["labels"], item["reason"], item["lines"]) == ({"app": "web", "namespace": "shop"}, "no_job", 5)
    assert (item["sender"], item["protocol"], item["sample"]) == ("alloy", "loki", "GET /cart 200")
    assert item["first_seen"] < item["last_seen"]
    assert "diagnoser_job" in item["remedy"]["setting"]
    where = load("site.yaml", item["remedy"]["mapping"]).attribute(WEB.labels, RecordDefaults())
    assert isinstance(where, Place)
    assert where.target.job == "web"


async def test_the_list_is_bounded(web: Web) -> None:
    """A page holds what was asked for, the newest first; the total tells that there are more."""
    streams = [replace(WEB, labels=(("app", str(number)),), received=NOW - number) for number in range(5)]
    await web.store.unplaced.record_unplaced(streams)
    body = (await web.client.get("/api/v1/unplaced", params={"limit": 2})).json()
    assert [item["labels"]["app"] for item in body["items"]] == ["0", "1"]
    assert body["total"] == 5
    assert (await web.client.get("/api/v1/unplaced", params={"limit": 0})).status_code == 400


async def test_without_any_the_navigation_does_not_lead_there(web: Web) -> None:
    """Who opens the page all the same reads that there is nothing to do."""
    assert "/unplaced" not in (await web.client.get("/")).text
    assert "belong to a job or a node" in (await web.client.get("/unplaced")).text


async def test_the_navigation_says_how_many_there_are(web: Web) -> None:
    """A person who looks at anything sees that something is missing."""
    await web.store.unplaced.record_unplaced([WEB])
    assert '<a href="/unplaced">Unplaced <span class="badge plain">1</span></a>' in (await web.client.get("/")).text


async def test_the_page_shows_what_is_hostile_letter_by_letter(web: Web) -> None:
    """Labels, sample, sender and proposal are text of strangers."""
    hostile = replace(WEB, labels=((HOSTILE, HOSTILE), ("app", "web")), sample=HOSTILE, detail=HOSTILE, sender=HOSTILE)
    await web.store.unplaced.record_unplaced([hostile])
    page = (await web.client.get("/unplaced")).text
    assert "<script>fetch" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;fetch" in page
    assert "  - app" in page


async def test_the_count_is_asked_for_now_and_then() -> None:
    """Not for each page, and a store that does not answer costs no page."""
    now, counts = [1000.0], [3, 4]

    async def stored(now: float) -> int:
        if not counts:
            raise Unavailable("away")
        return counts.pop(0)

    count = RememberedCount(stored, 0, lambda: now[0], UNPLACED_SECONDS)
    assert [await count(), await count()] == [3, 3]
    now[0] += UNPLACED_SECONDS
    assert await count() == 4
    now[0] += UNPLACED_SECONDS
    assert await count() == 4
