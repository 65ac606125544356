"""Every page in a real browser: quiet, on this host, within its window, light, and usable by everybody."""

import importlib.util
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Literal, TypeVar

import pytest
from playwright.async_api import Browser, Page, Request, Response, expect

from diagnoser import web as web_package
from diagnoser.model import IncidentState, NodeActor, NodeEventKind, PlanReason, PlanState
from diagnoser.model.alerts import AlertKind
from diagnoser.model.taxonomy import Action, FailureType, Outcome
from diagnoser.web.server import create
from tests.e2e.browser import SHARES_BROWSER, browser
from tests.e2e.site import ERRORS, PAGES, addresses, fill_site, page_routes
from tests.e2e.test_pages import UNPLACED, served, watched
from tests.serving import Web, serving
from tests.thorough import THOROUGH

PAGE_BYTES = 200_000
HEIGHT = 900
Scheme = Literal["light", "dark"]
WIDTHS = (360, 390, 800, 1280, 1600)
"""Of the window, at which nothing may run out at the side."""
SIGHTS: Sequence[tuple[Scheme, int]] = (("light", 1280), ("light", 390), ("dark", 1280), ("dark", 390))
"""In which axe-core looks: at each page in one of them, in turn; in all in thorough runs."""
STATIC = Path(web_package.__file__).parent / "static"
SCRIPT_BYTES = 60_000
CHARTS = frozenset({"uplot.js"})
VERBATIM = frozenset({"code", "pre", "script", "style", "datalist"})
KINDS = (FailureType, Action, PlanReason, PlanState, NodeEventKind, NodeActor, AlertKind, IncidentState, Outcome)
IDENTIFIERS = frozenset(str(member) for kind in KINDS for member in kind if "_" in member)
T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., object])
_AXE = importlib.util.find_spec("axe_playwright_python")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

needs_axe = pytest.mark.skipif(_AXE is None, reason="no axe-core: pip install axe-playwright-python, or make setup")


def needs_browser(test: Test) -> Test:
    for mark in SHARES_BROWSER:
        mark(test)  # it notes itself on the function, which stays what it was
    return test


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[tuple[Web, str, list[str], Browser]]:
    """The pages with their data, where they are, their addresses, and a browser."""
    async with served(folder) as (web, address), browser() as chromium:
        names = await fill_site(web)
        await web.store.unplaced.record_unplaced([UNPLACED])
        yield web, address, addresses(names), chromium


def note(seen: list[T], one: T) -> None:
    seen.append(one)


async def findings(page: Page, scheme: Scheme) -> list[str]:
    """What axe-core finds serious or critical, each with the part of the page. In the dark a page differs by its
    colours alone."""
    assert _AXE is not None and _AXE.submodule_search_locations
    if not await page.evaluate("'axe' in window"):
        await page.evaluate((Path(_AXE.submodule_search_locations[0]) / "axe.min.js").read_text("utf-8"))
    which = {"type": "tag", "values": RULES} if scheme == "light" else {"type": "rule", "values": ["color-contrast"]}
    options = {"runOnly": which, "resultTypes": ["violations"]}
    result = await page.evaluate(f"axe.run(document, {json.dumps(options)})")
    return [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


async def is_wider(page: Page, width: int) -> bool:
    await page.set_viewport_size({"width": width, "height": HEIGHT})
    return bool(await page.evaluate("document.documentElement.scrollWidth") > width)


async def test_every_page_is_among_those_that_are_looked_at(tmp_path: Path) -> None:
    """A route that draws a page has an address in ``PAGES``; whoever adds one adds it there."""
    async with serving(tmp_path) as web:
        assert page_routes(create(web.services)) == set(PAGES)


@needs_browser
async def test_every_page_is_quiet_stays_on_this_host_and_is_light(tmp_path: Path) -> None:
    """No console message, no error, no request elsewhere, each resource once, and at most 200 kB come over the wire."""
    async with site(tmp_path) as (_, address, paths, chromium):
        context = await chromium.new_context()
        for path in paths:
            page = await context.new_page()
            complaints = await watched(page, address)  # which also sees to it that nothing is kept from page to page
            answers: list[Response] = []
            page.on("response", partial(note, answers))
            answer = await page.goto(address + path)
            assert answer is not None and answer.status == 200, path
            await page.wait_for_load_state("load")
            taken = [one for one in answers if "event-stream" not in one.headers.get("content-type", "")]
            urls = [one.url for one in taken]
            assert len(urls) == len(set(urls)), path
            sizes = [await one.request.sizes() for one in taken]
            assert sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes) <= PAGE_BYTES, path
            assert complaints == [], path
            await page.close()


class _Words(HTMLParser):
    """The text of a page outside of log lines and code."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if (tag in VERBATIM and not self._inside) or (self._inside and tag == self._inside[0]):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[0]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)


def identifiers_in(page: str) -> set[str]:
    """Identifiers of ours that a person would have to read."""
    words = _Words()
    words.feed(page)
    return set(IDENTIFIERS) & set(re.findall(r"[a-z_]+", " ".join(words.texts)))


async def test_pages_speak_in_words(tmp_path: Path) -> None:
    """No cause, action, state or reason of ours stands on any page as the identifier that it has in the code."""
    assert identifiers_in("<p>Cause: gpu_lost <code>ecc_error</code></p>") == {"gpu_lost"}
    async with serving(tmp_path) as web:
        names = await fill_site(web)
        found = {}
        for path in addresses(names):
            answer = await web.client.get(path)
            if path != "/docs" and (shown := identifiers_in(answer.text)):
                found[path] = shown
    assert found == {}


def test_the_scripts_are_light() -> None:
    """All JavaScript but that of the charts is below 60 kB, as it is written."""
    scripts = [path for path in STATIC.glob("*.js") if path.name not in CHARTS]
    assert 0 < sum(path.stat().st_size for path in scripts) < SCRIPT_BYTES


@needs_browser
async def test_a_list_is_loaded_once(tmp_path: Path) -> None:
    """The live stream of a page that was just drawn has nothing to tell, and the page does not ask for itself again."""
    async with site(tmp_path) as (_, address, _, chromium):
        for path in ("/", "/diagnoses"):
            page = await chromium.new_page()
            asked: list[Request] = []
            page.on("request", partial(note, asked))
            await page.goto(address + path)
            await page.locator("#live").wait_for(state="visible")
            await page.wait_for_timeout(600)  # a list is asked for 300 ms after the news
            assert [request.url for request in asked].count(address + path) == 1


@needs_browser
@needs_axe
async def test_every_page_is_accessible_and_as_wide_as_its_window(tmp_path: Path) -> None:
    """axe-core finds nothing serious on any page, of WCAG 2.2 AA and of its own best practice, in light and in dark,
    on a screen and on a phone. From a phone to a wall screen nothing runs out at the side."""
    sights = cycle(SIGHTS)
    async with site(tmp_path) as (_, address, paths, chromium):
        page = await chromium.new_page()
        found: dict[str, list[str]] = {}
        wide: list[str] = []

        async def look(name: str) -> None:
            wide.extend([f"{name} at {width}" for width in WIDTHS if await is_wider(page, width)])
            for scheme, width in SIGHTS if THOROUGH else [next(sights)]:
                await page.emulate_media(color_scheme=scheme)
                await page.set_viewport_size({"width": width, "height": HEIGHT})
                if faults := await findings(page, scheme):
                    found[f"{name} in {scheme} at {width}"] = faults

        for path in (*paths, *ERRORS):
            await page.goto(address + path)
            await look(path)
        await page.goto(address + "/search?q=hgx")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("hgx")
        await page.locator("#search [role=option]").first.wait_for()
        await look("the search")
        assert (found, wide) == ({}, [])


@needs_browser
async def test_everything_is_searched_from_the_keyboard(tmp_path: Path) -> None:
    """A slash or Ctrl-K opens the search on any page, arrows choose, Enter opens, Escape gives the focus back,
    with words in the field too; the log keeps its own slash."""
    async with site(tmp_path) as (_, address, _, chromium):
        page = await chromium.new_page()
        complaints = await watched(page, address)
        await page.goto(address + "/recovery")
        await page.keyboard.press("/")
        field = page.get_by_role("combobox", name="Search everything")
        await field.wait_for()
        await page.keyboard.type("hgx-04")
        options = page.locator("#search [role=option]")
        await options.nth(1).wait_for()
        assert await options.nth(0).get_attribute("aria-selected") == "true"
        await page.keyboard.press("ArrowDown")
        assert await field.get_attribute("aria-activedescendant") == await options.nth(1).get_attribute("id")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/nodes/hgx-04?cluster=default")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("xid contained")
        await options.filter(has_text="Contained ECC").last.click()
        await page.wait_for_url("**/diagnoses/*")
        link = page.locator("main a").first
        await link.focus()
        await page.keyboard.press("Control+k")
        await field.wait_for()
        await page.keyboard.type("hgx")
        await page.keyboard.press("Escape")
        await field.wait_for(state="hidden")
        await expect(link).to_be_focused()
        await page.goto(address + "/jobs/llm-70b-pretrain/attempts/2/log")
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.id") == "q"
    assert complaints == []


@needs_browser
async def test_the_search_works_without_script(tmp_path: Path) -> None:
    """The link in the head leads to a form, and that to the hits."""
    async with site(tmp_path) as (_, address, _, chromium):
        context = await chromium.new_context(java_script_enabled=False)
        page = await context.new_page()
        await page.goto(address + "/")
        await page.get_by_role("link", name="Search").click()
        await page.get_by_role("searchbox").fill("hgx-04")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="hgx-04: ECC error").first.click()
        assert "ECC error" in str(await page.locator("h1").text_content())
