"""The badges of the navigation."""

from pathlib import Path

from diagnoser.model import BreakerState, Mode
from diagnoser.model.errors import Unavailable
from diagnoser.model.queries import Attention
from diagnoser.web.live.nav_badges import ATTENTION_SECONDS, RememberedCount
from tests.serving import NOW, serving
from tests.unit.test_web_plans import Clock, planned


async def test_badges_say_what_waits_for_a_person(tmp_path: Path) -> None:
    """Open incidents, plans that can still be approved, and a breaker that has tripped; each page shows them."""
    async with serving(tmp_path) as web:
        quiet = (await web.client.get("/nodes")).text
        await planned(web, "a", mode=Mode.APPROVE)
        await planned(web, "late", mode=Mode.APPROVE, expires=NOW - 1)
        await web.store.nodes.trip_breaker(BreakerState("default", True, NOW, "audit", "ops"))
        assert await web.store.diagnoses.attention(NOW) == Attention(approvals=1, incidents=1, tripped=1)
    async with serving(tmp_path) as web:
        page = (await web.client.get("/nodes")).text
    assert "attention" not in quiet
    for shown in ('title="open incident">1</span>', 'title="waiting for approval">1</span>', 'title="tripped">breaker'):
        assert shown in page


async def test_the_count_is_remembered_for_some_seconds(tmp_path: Path) -> None:
    """A page asks the database now and then only, and does without an answer."""
    clock = Clock()
    async with serving(tmp_path, clock=clock) as web:
        store = web.store.diagnoses
        count = RememberedCount(lambda now: store.attention(now), Attention(), clock, ATTENTION_SECONDS)
        assert (await count()).approvals == 0
        await planned(web, mode=Mode.APPROVE)
        assert (await count()).approvals == 0
        clock.now += ATTENTION_SECONDS
        assert (await count()).approvals == 1

        async def away(now: float) -> Attention:
            raise Unavailable("away")

        store.attention = away  # type: ignore[method-assign]
        count.forget()
        assert (await count()).approvals == 1
