"""The pages in a real browser: nothing breaks, nothing leaves the host, log text stays text."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.async_api import ConsoleMessage, Page, Request, expect

from diagnoser.model import AttemptKey, LineBlock, Stream, UnplacedReason, UnplacedStream
from diagnoser.web.api import sse
from diagnoser.web.live import diagnosis_feed
from diagnoser.web.server import create
from tests.e2e.browser import CHROMIUM as CHROMIUM
from tests.e2e.browser import SHARES_BROWSER
from tests.e2e.browser import browser as browser
from tests.serving import ECC, HOSTILE, NOW, Looks, StoredLogs, Web, fill, save, serving, store_log
from tests.unit.test_web_hangs import large

HANG = "/jobs/llm-70b-pretrain/attempts/1/hang"
CHANGES = "/jobs/llm-70b-pretrain/attempts/2/changes"

pytestmark = SHARES_BROWSER
UNPLACED = UnplacedStream(
    labels=(("app", HOSTILE), ("a_label_with_quite_a_long_name/of_some_operator", "v" * 200), ("unit", "web")),
    reason=UnplacedReason.NO_JOB,
    detail=f"no job: {HOSTILE}",
    protocol="loki",
    sample=HOSTILE * 3,
    lines=12_345,
    sender=HOSTILE,
    cluster=HOSTILE,
    received=NOW - 60,
)


@asynccontextmanager
async def served(folder: Path, **parts: Any) -> AsyncIterator[tuple[Web, str]]:
    """The pages on a port of their own, and their address. Every attempt hangs like one of 512 ranks. parts: as of
    ``serving``."""
    async with serving(folder, context=StoredLogs(hang=large(512, 300)), **parts) as web:
        listening = socket.create_server(("127.0.0.1", 0))  # takes connections before the server is up
        server = uvicorn.Server(uvicorn.Config(create(web.services), log_level="warning", ws="none"))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield web, f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            web.services.core.stopping.set()
            server.should_exit = True
            await running


async def watched(page: Page, address: str) -> list[str]:
    """What the browser complains about, and every request to another host, which its proxy that does not exist keeps on
    this machine: to stop each request and let it go again takes a seventh of the CPU of a page."""
    found: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith((address, "data:")):
            found.append(f"request to {request.url}")

    def complain(message: ConsoleMessage) -> None:
        if message.type != "info":  # such as that a focus was not moved
            found.append(f"{message.type}: {message.text}")

    page.on("request", note)
    page.on("console", complain)
    page.on("pageerror", lambda error: found.append(f"error: {error}"))
    page.on("dialog", lambda dialog: found.append(f"dialog: {dialog.message}"))
    return found


async def test_a_hostile_line_is_shown_letter_by_letter(tmp_path: Path) -> None:
    """Nothing of it is markup, and characters that would be invisible are named."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        records = await fill(web.store)
        page = await chromium.new_page()
        found = await watched(page, address)
        await page.goto(f"{address}/diagnoses/{records['unsure'].id}")
        shown = await page.locator("#root").text_content()
        assert shown == HOSTILE.replace("\x1b", "\u20391B\u203a").replace("\u202e", "\u2039U+202E\u203a")
        await expect(page.locator("img[src='x']")).to_have_count(0)
    assert found == []


async def test_the_list_follows_new_diagnoses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis that is made while the list is open appears in it by itself, at the top."""
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(diagnosis_feed, "LOOK_SECONDS", 0.05)
    async with served(tmp_path) as (web, address), browser() as chromium:
        page = await chromium.new_page()
        found = await watched(page, address)
        await page.goto(address + "/diagnoses")
        looks = Looks(web.store)
        await expect(page.get_by_text("No diagnosis yet")).to_be_visible()
        await page.locator("#live").wait_for(state="visible")
        await looks.two()
        first = await save(web.store, "first", ECC, created=NOW - 60)
        await page.locator(f"[id='d-{first.id}']").wait_for()
        second = await save(web.store, "second", ECC)
        await page.locator(f"[id='d-{second.id}']").wait_for()
        rows = await page.locator("table.list tbody tr").evaluate_all("rows => rows.map(row => row.id)")
    assert rows == [f"d-{second.id}", f"d-{first.id}"]
    assert found == []


async def test_the_pages_work_without_script(tmp_path: Path) -> None:
    """With script switched off the filters, the links and the pages do the same."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await fill(web.store)
        context = await chromium.new_context(java_script_enabled=False)
        page = await context.new_page()
        await page.goto(address + "/diagnoses")
        await page.locator("select[name=category]").select_option("script")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("table.list tbody tr")).to_have_count(1)
        await page.locator("a.type").click()
        assert await page.locator("h1").text_content() == "Import error"
        await expect(page.locator("button.copy:visible")).to_have_count(0)


@pytest.mark.parametrize("script", [True, False])
async def test_an_incident_is_dealt_with_from_the_first_page(tmp_path: Path, *, script: bool) -> None:
    """Acknowledged there, resolved with a word on its own page, found again among the resolved ones; with and without
    script."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await save(web.store, "llm-7b", ECC, created=NOW - 60)
        await save(web.store, "llm-13b", ECC)
        page = await (await chromium.new_context(java_script_enabled=script)).new_page()
        await page.goto(address + "/")
        await page.get_by_role("button", name="Acknowledge", exact=True).click()
        row = page.locator("table.incidents tbody tr")
        await row.get_by_text("acknowledged", exact=True).wait_for()
        await expect(row.get_by_text("anonymous", exact=True)).to_be_visible()
        await page.get_by_role("link", name="hgx-04: ECC error").click()
        await expect(page.get_by_text("2 failures in 2 jobs")).to_be_visible()
        await page.get_by_label("Comment").fill("GPU replaced <b>today</b>")
        await page.get_by_role("button", name="Resolve").click()
        await expect(page.get_by_text("GPU replaced <b>today</b>")).to_be_visible()
        await page.get_by_role("link", name="Now", exact=True).first.click()
        await expect(row).to_have_count(0)
        await page.get_by_role("link", name="Resolved", exact=True).click()
        await expect(row).to_have_count(1)


async def test_a_running_job_moves_by_itself(tmp_path: Path) -> None:
    """Its step and its loss follow the log while the page is open, and its curve can be hovered."""
    async with served(tmp_path, clock=time.time) as (web, address), browser() as chromium:
        await store_log(web.store, AttemptKey("trains"), _steps(0, 40))
        page = await chromium.new_page()
        found = await watched(page, address)
        await page.goto(address + "/jobs/trains")
        await expect(page.locator("#run .figures")).to_contain_text("39")
        plot = page.locator("#curves .u-over").first
        await plot.hover()
        await expect(page.locator("#curves .u-legend").first).to_contain_text("this run")
        await store_log(web.store, AttemptKey("trains"), _steps(40, 80))
        await expect(page.locator("#run .figures")).to_contain_text("79")
        await expect(page.locator("#steps")).to_contain_text("78")
        assert found == []


def _steps(first: int, last: int) -> LineBlock:
    lines = (f"step {n}/900 loss: {4 - n / 100:.2f} step_time: 0.25\n" for n in range(first, last))
    return LineBlock(Stream("stdout"), "".join(lines).encode(), received=time.time())


SMALL = """[...document.querySelectorAll('button, nav a, a.tile, a.type, input, select')]
  .filter(part => part.getClientRects().length && part.getBoundingClientRect().height < 24)
  .map(part => part.outerHTML)"""
PALE = """(() => {
  const parts = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = part => {
    for (; part; part = part.parentElement) {
      const color = parts(getComputedStyle(part).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const pale = part => {
    const [one, other] = [light(parts(getComputedStyle(part).color)), light(behind(part))].sort((a, b) => b - a);
    return (one + 0.05) / (other + 0.05) < 4.5;
  };
  return [...document.querySelectorAll('body *')]
    .filter(part => [...part.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
    .filter(part => part.getClientRects().length && pale(part)).map(part => part.outerHTML);
})()"""
"""Elements with text of their own whose contrast, as WCAG 2 defines it, is below AA."""
