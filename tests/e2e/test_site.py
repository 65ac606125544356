"""Every page in a real browser: quiet, on this host, within its window, light, and usable by everybody."""

import importlib.util
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Literal, TypeVar

import pytest
import pytest_asyncio
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
WIDTHS = (360, 761, 1101, 1401)
"""Of the window, at which nothing may run out at the side."""
Sight = tuple[Scheme, int]
SIGHTS: Sequence[Sight] = (("light", 1280), ("light", 390), ("dark", 1280), ("dark", 390))
"""In which axe-core looks: at each page in one of them, in turn; in all in thorough runs."""
STATIC = Path(web_package.__file__).parent / "static"
SCRIPT_BYTES = 60_000
CHARTS = frozenset({"uplot.js"})
VERBATIM = frozenset({"code", "pre", "script", "style", "datalist"})
KINDS = (FailureType, Action, PlanReason, PlanState, NodeEventKind, NodeActor, AlertKind, IncidentState, Outcome)
IDENTIFIERS = frozenset(str(member) for kind in KINDS for member in kind if "_" in member)
AS_OFTEN = 2
"""As this, axe-core looks at parts of a page that differ by their words alone; at all of them in thorough runs."""
LOOK = """async ([often, options]) => {
  const times = new Map(), away = [];
  const blank = html => html.replace(/>[^<]+</g, '>_<').replace(/ (?!class|style|role|type)[a-z-]+="[^"]+"/g, '');
  const look = (parent, place) => {
    for (const part of [...parent.children]) {
      const name = `${place} ${part.localName}.${part.className}`, shape = name + blank(part.outerHTML);
      times.set(shape, (times.get(shape) || 0) + 1);
      if (parent.localName === 'dl' || times.get(shape) <= often) { look(part, name); continue; }
      const mark = document.createComment('');
      part.replaceWith(mark);
      away.push([mark, part]);
    }
  };
  look(document.body, '');
  try { return await axe.run(document, options); } finally { for (const [mark, part] of away) mark.replaceWith(part); }
}"""
"""Takes away, while axe-core looks, what stands at a place of the same kind, by the tags and classes above it, and has
the same tags and classes inside as parts before it: rows of a table, lines of a log, operations of the API. A list of
definitions stays whole: each word needs its text."""
T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., object])
_AXE = importlib.util.find_spec("axe_playwright_python")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

needs_axe = pytest.mark.skipif(_AXE is None, reason="no axe-core: pip install axe-playwright-python, or make setup")


def needs_browser(test: Test) -> Test:
    for mark in SHARES_BROWSER:
        mark(test)  # it notes itself on the function, which stays what it was
    return test


@dataclass(frozen=True, slots=True)
class Desk:
    """The pages with their data, which tests here only read: where they are, their addresses, and a browser."""

    address: str
    paths: Sequence[str]
    chromium: Browser


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
    result = await page.evaluate(LOOK, [1_000_000 if THOROUGH else AS_OFTEN, options])
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


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of a page that was opened once. urls, size: of all that came over the wire. barriers: what axe-core
    found, and where."""

    complaints: list[str]
    urls: Sequence[str]
    size: int
    identifiers: set[str]
    wide: Sequence[str]
    barriers: Sequence[str]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory, shared_browser: None) -> AsyncIterator[Desk]:
    async with site(tmp_path_factory.mktemp("desk")) as (_, address, paths, chromium):
        yield Desk(address, paths, chromium)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def visits(desk: Desk) -> Mapping[str, Visit]:
    """Every page, each opened once for all that is said of it, one after the other in one tab: a tab of its own costs a
    process."""
    sights = cycle(SIGHTS)
    async with await desk.chromium.new_page() as page:
        complaints = await watched(page, desk.address)
        settings = await page.context.new_cdp_session(page)
        await settings.send("Network.setCacheDisabled", {"cacheDisabled": True})  # each page is weighed by itself
        answers: list[Response] = []
        page.on("response", partial(note, answers))
        found = {}
        for path in desk.paths:
            found[path] = await visit(page, desk.address + path, answers, sights)
            found[path].complaints.extend(complaints)
            complaints.clear()
            await page.goto("about:blank")  # what the page still does is its own
            answers.clear()
        return found


async def visit(page: Page, address: str, answers: Sequence[Response], sights: Iterator[Sight]) -> Visit:
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size({"width": 1280, "height": HEIGHT})
    answer = await page.goto(address)
    assert answer is not None and answer.status == 200, address
    await page.wait_for_load_state("load")
    taken = [one for one in answers if "event-stream" not in one.headers.get("content-type", "")]
    sizes = [await one.request.sizes() for one in taken]
    size = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
    words = set() if address.endswith("/docs") else identifiers_in(await answer.text())
    urls = [one.url for one in taken]
    return Visit([], urls, size, words, await too_wide(page), await barriers(page, sights))


async def too_wide(page: Page) -> list[str]:
    return [f"at {width}" for width in WIDTHS if await is_wider(page, width)]


async def barriers(page: Page, sights: Iterator[Sight]) -> list[str]:
    found: list[str] = []
    for scheme, width in (SIGHTS if THOROUGH else [next(sights)]) if _AXE else ():
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        found += [f"in {scheme} at {width}: {fault}" for fault in await findings(page, scheme)]
    return found


def told(found: Mapping[str, T]) -> dict[str, T]:
    """Pages of which there is something to tell."""
    return {path: some for path, some in found.items() if some}


@needs_browser
async def test_every_page_is_quiet_and_stays_on_this_host(visits: Mapping[str, Visit]) -> None:
    """No console message, no error, no request elsewhere."""
    assert told({path: seen.complaints for path, seen in visits.items()}) == {}


@needs_browser
async def test_every_page_is_light(visits: Mapping[str, Visit]) -> None:
    """Each resource comes once, and at most 200 kB come over the wire."""
    twice = {path: len(seen.urls) - len(set(seen.urls)) for path, seen in visits.items()}
    assert told(twice) == {}
    assert {path: seen.size for path, seen in visits.items() if not 0 < seen.size <= PAGE_BYTES} == {}


@needs_browser
async def test_pages_speak_in_words(visits: Mapping[str, Visit]) -> None:
    """No cause, action, state or reason of ours stands on any page as the identifier that it has in the code."""
    assert identifiers_in("<p>Cause: gpu_lost <code>ecc_error</code></p>") == {"gpu_lost"}
    assert told({path: seen.identifiers for path, seen in visits.items()}) == {}


@needs_browser
async def test_every_page_is_as_wide_as_its_window(visits: Mapping[str, Visit]) -> None:
    """From a phone to a wall screen nothing runs out at the side."""
    assert told({path: seen.wide for path, seen in visits.items()}) == {}


@needs_browser
@needs_axe
async def test_every_page_is_accessible(visits: Mapping[str, Visit]) -> None:
    """axe-core finds nothing serious on any page, of WCAG 2.2 AA and of its own best practice, in light and in dark,
    on a screen and on a phone."""
    assert told({path: seen.barriers for path, seen in visits.items()}) == {}


@needs_browser
@needs_axe
async def test_errors_and_the_search_are_accessible_and_as_wide_as_their_window(desk: Desk) -> None:
    """As pages are."""
    sights = cycle(SIGHTS)
    async with await desk.chromium.new_page() as page:
        for path in ERRORS:
            await page.goto(desk.address + path)
            assert (await too_wide(page), await barriers(page, sights)) == ([], []), path
        await page.goto(desk.address + "/search?q=hgx")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("hgx")
        await page.locator("#search [role=option]").first.wait_for()
        assert (await too_wide(page), await barriers(page, sights)) == ([], [])


def test_the_scripts_are_light() -> None:
    """All JavaScript but that of the charts is below 60 kB, as it is written."""
    scripts = [path for path in STATIC.glob("*.js") if path.name not in CHARTS]
    assert 0 < sum(path.stat().st_size for path in scripts) < SCRIPT_BYTES


@needs_browser
async def test_a_list_is_loaded_once(desk: Desk) -> None:
    """The live stream of a page that was just drawn has nothing to tell, and the page does not ask for itself again."""
    for path in ("/", "/diagnoses"):
        async with await desk.chromium.new_page() as page:
            asked: list[Request] = []
            page.on("request", partial(note, asked))
            await page.goto(desk.address + path)
            await page.locator("#live").wait_for(state="visible")
            await page.wait_for_timeout(600)  # a list is asked for 300 ms after the news
            assert [request.url for request in asked].count(desk.address + path) == 1


@needs_browser
async def test_everything_is_searched_from_the_keyboard(desk: Desk) -> None:
    """A slash or Ctrl-K opens the search on any page, arrows choose, Enter opens, Escape gives the focus back,
    with words in the field too; the log keeps its own slash."""
    address = desk.address
    async with await desk.chromium.new_page() as page:
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
async def test_the_search_works_without_script(desk: Desk) -> None:
    """The link in the head leads to a form, and that to the hits."""
    async with await desk.chromium.new_page(java_script_enabled=False) as page:
        await page.goto(desk.address + "/")
        await page.get_by_role("link", name="Search").click()
        await page.get_by_role("searchbox").fill("hgx-04")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="hgx-04: ECC error").first.click()
        assert "ECC error" in str(await page.locator("h1").text_content())
