"""From a diagnosis into its log and back with a correction, in a real browser: mouse, keyboard, no script, phone."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from diagnoser.diagnosis import line_search, log_indexes
from diagnoser.model import AttemptKey, LineBlock, RootCause, Stream
from diagnoser.model.taxonomy import FailureType
from diagnoser.web.api import sse
from tests.e2e.browser import SHARES_BROWSER, browser
from tests.e2e.test_pages import PALE, served, watched
from tests.large_logs import hold_logs
from tests.serving import HOSTILE, NOW, Web, save, store_log, verdict

KEY = AttemptKey("llm-7b", 1)
LOG = "/jobs/llm-7b/attempts/1/log"
STREAMS = [Stream("stdout", f"gpu-{rank // 8}", rank) for rank in range(16)]

pytestmark = SHARES_BROWSER


def block(stream: Stream, *lines: str) -> LineBlock:
    return LineBlock(stream, "".join(line + "\n" for line in lines).encode(), received=NOW - 100)


async def fill(web: Web) -> str:
    """Sixteen ranks, one of which raises; its diagnosis."""
    for stream in STREAMS:
        steps = [f"2026-09-21 14:{n // 60:02d}:{n % 60:02d} step {n} of rank {stream.rank}" for n in range(200)]
        last = [HOSTILE, "ValueError: seam " + "x" * 900] if stream.rank == 3 else ["waiting for the others"]
        await store_log(web.store, KEY, block(stream, *steps, *last))
    root = RootCause(202, "ValueError: seam " + "x" * 900, 3, "gpu-0")
    return (await save(web.store, KEY.job, verdict(FailureType.VALUE_ERROR, root_cause=root))).id


async def picked(page: Page) -> str:
    return str(await page.locator("#rows > li[aria-current]").get_attribute("id"))


async def picked_by(key: str, page: Page) -> str:
    """The row that is picked once a key has taken the page to another one."""
    before = await picked(page)
    await page.wait_for_load_state()  # a key that is pressed before the page listens is lost
    await page.keyboard.press(key)
    await page.locator(f"#rows > li[aria-current]:not(#{before})").wait_for()
    return await picked(page)


async def test_from_the_diagnosis_to_a_correction(tmp_path: Path) -> None:
    """The button leads to the root line, a click on another number offers it as the root, and the form has it."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        made = await fill(web)
        page = await chromium.new_page()
        complaints = await watched(page, address)
        await page.goto(f"{address}/diagnoses/{made}")
        await page.get_by_role("link", name="Show in the log").click()
        row = page.locator("#rows > li[aria-current]")
        assert "ValueError: seam" in str(await row.text_content())
        assert await row.is_visible() and await row.evaluate("row => row.getBoundingClientRect().top > 60")
        await expect(page.locator("img[src='x']")).to_have_count(0)
        other = page.locator("#rows > li", has_text="step 199 of rank 3")
        await other.locator("a.no").click()
        assert await picked(page) == await other.get_attribute("id")
        assert page.url.endswith("#" + await picked(page))
        await page.reload()
        assert await picked(page) == await other.get_attribute("id")
        await page.get_by_role("link", name="This is the root cause").click()
        assert await page.get_by_label("Line of the cause").input_value() == "200"
        assert await page.get_by_label("Node at fault").input_value() == "gpu-0"
        await page.get_by_label("Line of the cause").fill("9999")
        await page.get_by_label("What helped").fill("a new seam")
        await page.get_by_role("button", name="Correct").click()
        assert "no line 9999" in str(await page.get_by_role("alert").text_content())
        assert await page.get_by_label("What helped").input_value() == "a new seam"
        complaints.clear()  # that a form was refused stands in the console
        await page.get_by_label("Line of the cause").fill("200")
        await page.get_by_role("button", name="Correct").click()
        await page.wait_for_url(f"{address}/diagnoses/{made}#feedback")
        assert "line 200" in str(await page.locator("#feedback").text_content())
    assert complaints == []


async def test_from_a_rank_of_the_time_axis_to_a_confirmed_line(tmp_path: Path) -> None:
    """A rank of the strip, by arrow key, leads to its log; a line chosen there is stored with its stream."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        made = await fill(web)
        page = await chromium.new_page()
        complaints = await watched(page, address)
        await page.goto(f"{address}/diagnoses/{made}")
        await expect(page.locator(".timeaxis .mark.root")).to_have_count(1)
        await page.locator(".ranks a").first.focus()
        for _ in range(5):
            await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{address}{LOG}?ranks=5")
        await page.locator("#rows > li[id]").nth(3).locator("a.no").click()
        number = str(await page.locator("#rows > li[aria-current]").get_attribute("data-line"))
        await page.get_by_role("link", name="This is the root cause").click()
        await page.get_by_role("button", name="Correct").click()
        await page.wait_for_url(f"{address}/diagnoses/{made}#feedback")
        assert f"line {number} of stdout, rank 5 on gpu-0" in str(await page.locator("#feedback").text_content())
    assert complaints == []


async def test_a_search_by_keyboard(tmp_path: Path) -> None:
    """A slash goes to the field, Enter searches, n and N step through the matches, also over the ends of a window."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await fill(web)
        page = await chromium.new_page()
        complaints = await watched(page, address)
        await page.goto(address + LOG)
        await page.keyboard.press("/")
        await page.keyboard.type("step 7 ")
        await page.keyboard.press("Enter")
        await page.locator("#matches", has_text="16 matches").wait_for()
        first = await picked(page)
        second = await picked_by("n", page)
        assert first == await picked_by("N", page) != second
        await page.goto(f"{address}{LOG}?q=waiting")
        before = await picked(page)
        await page.goto(f"{address}{LOG}?q=waiting&at=start")
        await page.keyboard.press("n")
        await page.wait_for_url("**at=**#L*")
        assert await picked(page) == before
    assert complaints == []


async def test_chips_and_scrolling(tmp_path: Path) -> None:
    """A chip narrows the log; later rows come as one scrolls, each once."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await fill(web)
        page = await chromium.new_page()
        complaints = await watched(page, address)
        await page.goto(address + LOG)
        await page.get_by_role("group", name="Rank").get_by_role("link", name="3", exact=False).first.wait_for()
        await expect(page.locator("#rows > li[id]")).to_have_count(200)
        await page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        await page.locator("#rows > li[id]").nth(200).wait_for(state="attached")
        ids = await page.locator("#rows > li[id]").evaluate_all("rows => rows.map(row => row.id)")
        assert len(set(ids)) == len(ids)
        await page.goto(f"{address}{LOG}?at=end")
        await page.get_by_role("link", name="error 1").click()
        await expect(page.locator("#rows > li[id]")).to_have_count(1)
        await page.locator("summary", has_text="more characters").click()
        assert "x" * 400 in str(await page.locator("#rows .rest").text_content())
    assert complaints == []


async def test_new_lines_appear_until_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows sees what comes; a pause holds it back, and going on shows what was missed."""
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(log_indexes, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(log_indexes, "STALE_FACTOR", 0.0)
    async with served(tmp_path) as (web, address), browser() as chromium:
        await fill(web)
        page = await chromium.new_page()
        complaints = await watched(page, address)
        await page.goto(address + LOG)
        await page.get_by_role("link", name="Follow").click()
        await page.get_by_text("Following: new lines appear below.").wait_for()
        await store_log(web.store, KEY, block(STREAMS[0], "2026-09-21 14:08:00 the first new line"))
        await page.get_by_text("the first new line").wait_for()
        await page.get_by_role("button", name="Pause").click()
        await store_log(web.store, KEY, block(STREAMS[0], "2026-09-21 14:09:00 the second new line"))
        await page.get_by_text("Paused. Newer lines have come.").wait_for()
        await expect(page.get_by_text("the second new line")).to_have_count(0)
        await page.get_by_role("button", name="Go on").click()
        await page.get_by_text("the second new line").wait_for()
        ids = await page.locator("#rows > li[id]").evaluate_all("rows => rows.map(row => row.id)")
        assert len(set(ids)) == len(ids)
    assert complaints == []


async def test_the_log_works_without_script(tmp_path: Path) -> None:
    """Search, filters, links to lines, opening of long lines and the way to a correction need none."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await fill(web)
        context = await chromium.new_context(java_script_enabled=False)
        page = await context.new_page()
        await page.goto(address + LOG)
        await page.get_by_role("searchbox").fill("seam")
        await page.get_by_role("button", name="Search").click()
        await expect(page.locator("mark")).to_have_count(1)
        await page.locator("summary", has_text="more characters").click()
        await page.get_by_role("link", name="This is the root cause").click()
        assert await page.get_by_label("Line of the cause").input_value() == "202"
        await page.goto(address + LOG)
        await page.get_by_role("link", name="Later rows").click()
        assert "Rows 201" in str(await page.locator("#place").text_content())


async def test_a_line_that_is_only_counted_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the log to all lines as they came, answer after answer without a press, to a line's neighbours, on a phone;
    hostile text stays text."""
    monkeypatch.setattr(line_search, "ANSWER_BYTES", 1)
    monkeypatch.setattr(line_search, "_PIECES_BYTES", 1)
    async with served(tmp_path) as (web, address), browser() as chromium:
        await fill(web)
        page = await (await chromium.new_context(viewport={"width": 390, "height": 800})).new_page()
        complaints = await watched(page, address)
        await page.goto(f"{address}{LOG}?q=step 117 of rank 3")
        await expect(page.locator("#matches")).to_have_text("0 matches in these rows")
        await page.get_by_role("link", name="Search all").click()
        await expect(page.locator("#progress")).to_have_text("1 match in 3\u2009217 lines, newest first.")
        await expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
        await expect(page.locator("#rows mark")).to_have_text("step 117 of rank 3")
        await page.locator("#rows a.no").click()
        await expect(page.locator("#rows > li[aria-current]")).to_contain_text("step 117 of rank 3")
        await expect(page.locator("#rows > li")).to_have_count(101)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await page.goto(f"{address}{LOG.removesuffix('log')}lines?q=img")
        await expect(page.locator("#rows mark")).to_have_text("img")
        await expect(page.locator("img[src='x']")).to_have_count(0)
        assert await page.evaluate(PALE) == []
        assert complaints == []
        await page.goto(f"{address}{LOG.removesuffix('log')}lines?q=(&regex=1")
        await expect(page.get_by_role("alert")).to_contain_text("'('")


async def test_pages_come_before_a_large_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is there at once and says that the log is being read; when it is, the page is drawn anew by itself,
    unless somebody has typed into it: then it offers that. The log's own page does the same."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        made = await fill(web)
        may_read = hold_logs(monkeypatch)
        pages = [await chromium.new_page() for _ in range(3)]
        complaints = [await watched(page, address) for page in pages]
        for page, path in zip(pages, (f"/diagnoses/{made}", f"/diagnoses/{made}", LOG), strict=True):
            await page.goto(address + path)
            await expect(page.locator("#reading")).to_contain_text("is being read")
        untouched, typed, log = pages
        await expect(untouched.locator("#root")).to_contain_text("ValueError: seam")
        await expect(untouched.locator("#axis")).to_have_count(0)
        await typed.get_by_label("What helped").fill("a new seam")
        may_read.set()
        await expect(untouched.locator("#axis")).to_be_visible()
        await expect(log.locator("#rows > li").first).to_be_visible()
        await expect(typed.locator("#reading")).to_contain_text("has been read")
        assert await typed.get_by_label("What helped").input_value() == "a new seam"
        await typed.get_by_role("link", name="Look again").click()
        await expect(typed.locator("#axis")).to_be_visible()
    assert complaints == [[], [], []]
