"""The checkpoints of a job in a real browser: the lane, its signs, the tables, and what the plan goes back to."""

import re
from pathlib import Path

import pytest

from tests.e2e.browser import SHARES_BROWSER, browser
from tests.e2e.site import DIVERGED, fill_diverged
from tests.e2e.test_decisions import picture
from tests.e2e.test_pages import served, watched

pytestmark = SHARES_BROWSER
SIGNS = {"verified": 3, "bad": 2, "durable": 1, "staged": 1}


async def test_the_states_of_checkpoints_differ_in_shape(tmp_path: Path) -> None:
    """On the diagnosis and on the job's page; the sign of each state is one of its own, whatever the colours."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        record = await fill_diverged(web)
        page = await chromium.new_page()
        found = await watched(page, address)
        for path in (f"/diagnoses/{record.id}", f"/jobs/{DIVERGED}"):
            await page.goto(address + path)
            lane = page.locator(".lane", has=page.get_by_role("heading", name="Checkpoints", exact=True))
            signs = {}
            for state, count in SIGNS.items():
                marks = lane.locator(f".mark.checkpoint.{state}")
                assert await marks.count() == count, (path, state)
                assert await marks.first.is_visible()
                drawn = await marks.first.inner_html()
                signs[state] = re.findall(r"<(?:path|rect)[^>]*>", drawn.split("</title>")[1])[-1]
            assert len(set(signs.values())) == len(SIGNS)
            legend = await page.locator(".legend").first.inner_text()
            assert "verified checkpoint" in legend and "not written out yet" in legend
    assert found == []


async def test_the_plan_and_the_page_say_whether_the_checkpoint_is_verified(tmp_path: Path) -> None:
    """The chosen checkpoint stands out on the time axis, and its proof beside its path."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        record = await fill_diverged(web)
        page = await chromium.new_page()
        await page.goto(f"{address}/diagnoses/{record.id}")
        plan = await page.locator("#plan").inner_text()
        assert "/ckpt/step_400 (step 400), verified, skip the batches of steps 500 to 600" in plan
        assert await page.locator("#axis .lane .mark.chosen .ring").count() == 1
        chosen = page.locator("#axis .lane .mark.chosen title")
        assert "step 400: verified, the plan goes back to it" in (await chosen.text_content() or "")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
async def test_the_page_of_a_job_says_what_its_checkpoints_cost(tmp_path: Path, scheme: str, width: int) -> None:
    """The newest verified one, how long training stood still, and each checkpoint in a table; also on a phone."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        record = await fill_diverged(web)
        context = await chromium.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 900}
        )
        page = await context.new_page()
        await page.goto(f"{address}/diagnoses/{record.id}")
        await picture(page, f"diagnosis-{scheme}-{width}")
        await page.goto(f"{address}/jobs/{DIVERGED}")
        summary = await page.locator(".saves > p").inner_text()
        assert "Newest verified checkpoint: step 400 /ckpt/step_400" in summary
        assert (
            "2 bad" in summary
            and "Training stood still for 8.4 s in all to save 7 checkpoints, 2.4 s at most." in summary
        )
        await page.get_by_text("The checkpoints as a table").click()
        rows = await page.locator(".saves .wide-table").last.locator("tbody tr").all_inner_texts()
        assert len(rows) == sum(SIGNS.values()) and "/ckpt/step_600" in rows[0]
        assert any("bad: step_300/model.pt: checksum" in row for row in rows)
        await picture(page, f"job-{scheme}-{width}")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
