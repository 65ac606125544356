"""Failures of the last days by category, and nodes that failed more than once."""

import re
from pathlib import Path

from diagnoser.web.live.trends import SPAN, Bar, FailureTrend, FailureTrends
from tests.serving import DONE, ECC, NOW, OOM, SCRIPT, save, serving


async def test_parts_of_a_bar_stand_on_one_another(tmp_path: Path) -> None:
    """In shares of the tallest bar, infrastructure at the bottom, whatever comes before in the counts."""
    async with serving(tmp_path) as web:
        for number, verdict in enumerate((SCRIPT, ECC, ECC, ECC)):
            await save(web.store, f"job-{number}", verdict, created=NOW - number)
        page = (await web.client.get("/")).text
    rectangles = re.findall(r'<rect class="(\w+)" x="\d+" y="([\d.]+)" width="8" height="([\d.]+)"/>', page)
    assert rectangles == [("infrastructure", "25.0", "75.0"), ("script", "0.0", "25.0")]


def test_nothing_has_no_bar() -> None:
    """A week without failures divides by nothing."""
    assert FailureTrend((Bar(0.0, SPAN, {}),), []).tallest == 0


async def test_the_last_bar_ends_after_now(tmp_path: Path) -> None:
    """Bars begin at whole spans, so that they do not move while one looks; older failures are left out."""
    async with serving(tmp_path) as web:
        await save(web.store, "now", OOM)
        await save(web.store, "yesterday", ECC, created=NOW - 86_400)
        await save(web.store, "before", OOM, created=NOW - 8 * 86_400)
        trend = await FailureTrends(web.store, lambda: NOW).current()
    assert trend.bars[-1].start <= NOW < trend.bars[-1].end
    assert all(bar.start % SPAN == 0 for bar in trend.bars)
    assert [bar.count for bar in trend.bars if bar.count] == [1, 1]
    assert trend.bars[-1].count == 1


async def test_it_is_counted_once_a_minute(tmp_path: Path) -> None:
    """However many pages are open; a minute later what came meanwhile is there."""
    now = NOW
    async with serving(tmp_path) as web:
        trends = FailureTrends(web.store, lambda: now)
        first = await trends.current()
        await save(web.store, "late", OOM)
        assert await trends.current() is first
        now += 61
        assert (await trends.current()).tallest == 1


async def test_a_node_that_failed_again_is_named(tmp_path: Path) -> None:
    """With its failures; one that failed once is not, nor is a week without any failure drawn."""
    now = NOW
    async with serving(tmp_path, clock=lambda: now) as web:
        await save(web.store, "good", DONE)
        quiet = (await web.client.get("/")).text
        await save(web.store, "a", ECC, created=NOW - 300)
        await save(web.store, "once", SCRIPT, created=NOW - 200)
        await save(web.store, "b", ECC, created=NOW - 100)
        now += 61
        page = (await web.client.get("/")).text
    assert '<svg class="bars"' not in quiet
    section = page[page.index("Nodes that failed more than once") :]
    assert ">hgx-04</a>" in section
    assert "in 2 jobs" in section
    assert 'aria-label="Failures in spans of six hours: 2 infrastructure, 0 framework, 1 script' in page
