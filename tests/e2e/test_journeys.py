"""What people do at the desk, click by click: the table of ``docs/pages.md``, and fifteen journeys, on one instance.

A path is written as in the docs, a step after each ``>``. ``**Name**`` is pressed, ``**Name**: `text``` is filled in,
`*words*` are seen, ``# Name`` is the page that one is on now, `` `key` `` is a key or text that is typed, and the rest
is one of ``NOUNS``. Paths begin at Now.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from diagnoser.model import Mode
from tests.e2e.browser import SHARES_BROWSER
from tests.e2e.test_pages import watched
from tests.e2e.test_site import findings, needs_axe, site
from tests.serving import NOW, Web
from tests.thorough import diagonal
from tests.unit.test_web_plans import planned, post

pytestmark = SHARES_BROWSER

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pages.md"
_ROW = re.compile(r"^\| (?P<row>[^|]+) \| (?P<path>[^|]+) \|$", re.MULTILINE)
_FILLED = re.compile(r"\*\*(.+)\*\*: `(.+)`")
_KEY = re.compile(r"`([^`]+)`")
_IDENTIFIER = re.compile(r"\b[a-z]+_[a-z_]+\b")
_PRESSED = "a, button, summary, label:has(input)"
WIDTHS = (1280, 390)


def rows() -> dict[str, str]:
    """The table of the docs: row -> path."""
    table = DOCS.read_text("utf-8").partition("## Click paths")[2].partition("\n## ")[0]
    return {match["row"]: match["path"] for match in _ROW.finditer(table) if ">" in match["path"]}


NOUNS: Mapping[str, str] = {
    "an incident": "table.incidents a.type:has-text('hgx-04')",
    "a diagnosis": "table.list tbody tr:has(a[href='/jobs/llm-70b-pretrain']) a.type:has-text('ECC error')",
    "an offender": ".trend table a",
    "a mark": ".timeaxis a.mark, .timeaxis .mark",
    "a rank": ".ranks a",
    "a line number": "#rows > li[id] a.no",
    "a running job": "table.list a[href='/jobs/trains']",
    "its job": ".trail a[href^='/jobs/']",
    "a cluster": "table.list a[title='only this cluster']",
    "a node": "table.nodes a.type",
    "a value": ".facets li a",
    "its head": ".summaryhead",
    "a hit": "#search [role=option]",
}
"""What a path calls by its kind, as a selector: the first that is shown."""
SEEN = frozenset({"a mark", "its head", "a hit"})
"""Nouns that are looked at and not pressed."""


@dataclass(frozen=True, slots=True)
class Desk:
    """The instance that all paths share."""

    web: Web
    address: str
    chromium: Browser


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with site(tmp_path_factory.mktemp("desk")) as (web, address, _, chromium):
        yield Desk(web, address, chromium)


async def test_the_table_has_all_rows() -> None:
    """What the desk offers is a table of 28 rows, none without a path."""
    assert len(rows()) == 28


@needs_axe
@pytest.mark.parametrize("row", rows())
async def test_a_row_of_the_table(desk: Desk, row: str) -> None:
    """Its click path leads there, and the browser has no complaint."""
    if row.startswith("approvals"):
        await waits(desk.web, "row")
    for width in WIDTHS if row.startswith("accessibility") else WIDTHS[:1]:
        await walk(desk, rows()[row], width)


JOURNEYS: Mapping[str, str] = {
    "approve what waits": "an incident > **Approve** > *Waits for an agent* > **Undo** > "
    "*waiting for a decision again*",
    "press too late": "**Recovery** > **ECC error** > somebody refuses > **Approve:** > *Your press changed nothing*",
    "from the verdict to its line": "**Diagnoses** > **Loss divergence** > **Show in the log** > *root cause* > "
    "**Last**",
    "a counted line": "a diagnosis > **Log of attempt** > **Search the log**: `step 117 of rank 3` > "
    "`Enter` > **Search all** > *1 match in* > a line number > *Lines*",
    "one rank": "a diagnosis > a rank > a line number > **This is the root cause** > *Line of the cause*",
    "the tail": "a diagnosis > **Log of attempt** > **Follow** > *Following*",
    "hand over": "an incident > **Assign to**: `ida` > **Assign** > *ida* > **Unassign** > *nobody yet*",
    "mute": "an incident > **Mute** > *muted* > **Now** > **Muted** > an incident > **Unmute** > **Now** > an incident",
    "teach": "**Diagnoses** > **Unknown cause** > **What it was**: `Dataset loading error` > **Correct** > *case* > "
    "**Undo** > **Say what it was**",
    "a live run": "**Jobs** > a running job > *Newest steps* > **Follow the log** > *Following*",
    "a bad node": "**Nodes** > a node > **Note about**: `GPU 3 reseated` > **Add note** > *GPU 3 reseated*",
    "back to a checkpoint": "**Diagnoses** > **Loss divergence** > *verified* > **Export post-mortem**",
    "by keys to a node": "`Control+k` > `hgx-04` > a hit > `Enter` > # hgx-04",
    "by keys to an approval": "`g` `r` > # Recovery > `Tab` > `Enter` > *approved*",
    "by keys to a line": "`?` > *Next and previous row* > `Escape` > `g` `j` > # Jobs > `j` > `Enter` > # trains > "
    "`/` > `hgx` > `Escape` > `g` `d` > # Diagnoses",
}


DECIDING = frozenset({"approve what waits", "press too late", "by keys to an approval"})
"""Journeys that need a plan which waits."""


WALKS = [(journey, width) for place, journey in enumerate(JOURNEYS) for width in diagonal(WIDTHS, place, 2)]


@pytest.mark.parametrize(("journey", "width"), WALKS)
async def test_a_journey(desk: Desk, journey: str, width: int) -> None:
    """From Now to its end, on a screen or on a phone, where nothing runs out at the side; on both in thorough runs."""
    if journey in DECIDING:
        await waits(desk.web, f"{journey}-{width}")
    await walk(desk, JOURNEYS[journey], width)


async def waits(web: Web, name: str) -> None:
    """One more plan waits for approval: those before it may be decided."""
    await planned(web, re.sub(r"\W+", "-", name), Mode.APPROVE, created=NOW - 50_000, expires=NOW + 9_000)


async def walk(desk: Desk, path: str, width: int) -> None:
    context = await desk.chromium.new_context(viewport={"width": width, "height": 844}, accept_downloads=True)
    page = await context.new_page()
    complaints = await watched(page, desk.address)
    await page.clock.set_fixed_time("2026-01-01")  # two keys within a moment, on a busy machine too
    await page.goto(desk.address + "/")
    for step in path.split(" > "):
        await page.wait_for_load_state()
        try:
            await take(desk, page, step.strip())
        except AssertionError as error:
            raise AssertionError(f"{step} at {page.url}: {str(error)[:600]}") from None
        await expect(page.locator("html")).to_have_js_property("scrollWidth", width)
    await context.close()
    assert complaints == []


async def take(desk: Desk, page: Page, step: str) -> None:
    """One step of a path."""
    if filled := _FILLED.fullmatch(step):
        await first(page.get_by_label(filled[1])).fill(filled[2])
    elif step in CHECKS:
        await CHECKS[step](desk, page)
    elif step in NOUNS:
        if step == "a diagnosis":
            await first(named(page, "Diagnoses")).click()
        await look_or_press(page, first(page.locator(NOUNS[step])), is_seen=step in SEEN)
    elif step.startswith("**"):
        await look_or_press(page, first(named(page, step.strip("*"))), is_seen=False)
    elif step.startswith("# "):
        await expect(page.get_by_role("heading", level=1, name=step[2:], exact=True)).to_be_visible()
    elif step.startswith("*"):
        await expect(first(page.get_by_text(step.strip("*")))).to_be_visible()
    else:
        for key in _KEY.findall(step):
            await press(page, key)


def first(found: Locator) -> Locator:
    return found.filter(visible=True).first


def named(page: Page, name: str) -> Locator:
    """What can be pressed and has the name, or a name that begins or ends with it."""
    return page.locator(_PRESSED).filter(has_text=re.compile(rf"^\s*(?:\S+\s+){{0,8}}{re.escape(name)}"))


async def look_or_press(page: Page, part: Locator, *, is_seen: bool) -> None:
    await expect(part).to_be_visible()
    if is_seen:
        return
    if await part.get_attribute("download") is None:
        await part.click()
        return
    async with page.expect_download() as download:
        await part.click()
    assert (await (await download.value).path()).stat().st_size > 0


async def press(page: Page, key: str) -> None:
    """A key by its name; everything else is typed."""
    if len(key) == 1 or re.fullmatch(r"[A-Z]\w+|Control\+\w", key):
        await page.keyboard.press(key)
    else:
        await page.keyboard.type(key)


async def somebody_refuses(desk: Desk, page: Page) -> None:
    identity = await page.locator("form[action^='/plans/']").first.get_attribute("action")
    assert identity is not None
    answer = await post(desk.web, identity.removesuffix("/decide") + "/refuse", {})
    assert answer.status_code == 200, answer.text


async def no_identifiers(desk: Desk, page: Page) -> None:
    """Outside of log lines and code people read words."""
    text = await page.evaluate(
        "(() => { const main = document.querySelector('main').cloneNode(true);"
        " main.querySelectorAll('code, pre, .line').forEach(part => part.remove());"
        " return main.textContent; })()"
    )
    assert _IDENTIFIER.findall(text) == []


async def no_barrier(desk: Desk, page: Page) -> None:
    """axe-core finds nothing serious on what is open now."""
    assert await findings(page, "light") == []


async def the_sentence_of_a_diagnosis(desk: Desk, page: Page) -> None:
    """An alert begins with the sentence of the page, and what it says is words."""
    about = await page.context.new_page()
    await about.goto(desk.address + "/diagnoses")
    await first(about.locator(NOUNS["a diagnosis"])).click()
    await about.wait_for_url("**/diagnoses/*")
    sentence = await about.locator("p.summary").inner_text()
    await page.get_by_label("Id of a diagnosis").fill(about.url)
    await page.get_by_role("button", name="Show what would be sent").click()
    preview = page.locator("#preview")
    await expect(preview.locator("b").first).to_contain_text(sentence.rstrip("."))
    assert _IDENTIFIER.findall(await preview.inner_text()) == []
    await expect(preview).to_contain_text("Goes to: slack")


CHECKS: Mapping[str, Callable[[Desk, Page], Awaitable[None]]] = {
    "somebody refuses": somebody_refuses,
    "no identifier": no_identifiers,
    "no barrier": no_barrier,
    "the sentence of a diagnosis": the_sentence_of_a_diagnosis,
}
