"""The pages in a real browser: nothing breaks, nothing leaves the host, log text stays text."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from playwright.async_api import Browser, Page, Route, async_playwright

from diagnoser.web import news, sse
from diagnoser.web.server import create
from tests.conftest import NOWHERE
from tests.serving import ECC, HOSTILE, NOW, Looks, StoredLogs, Web, fill, save, serving
from tests.unit.test_web_accuracy import REPLAY
from tests.unit.test_web_hangs import large

HANG = "/jobs/llm-70b-pretrain/attempts/1/hang"
CHROMIUM = Path("/usr/bin/chromium")

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="no browser: apt-get install chromium")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Web, str]]:
    """The pages on a port of their own, and their address. Every attempt hangs like one of 512 ranks."""
    async with serving(folder, logs=StoredLogs(hang=large(512, 300))) as web:
        listening = socket.create_server(("127.0.0.1", 0))  # takes connections before the server is up
        server = uvicorn.Server(uvicorn.Config(create(web.services), log_level="warning", ws="none"))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield web, f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            web.services.stopping.set()
            server.should_exit = True
            await running


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        flags = ["--no-sandbox", f"--proxy-server={NOWHERE}"]  # loopback is reached without the proxy
        chromium = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        try:
            yield chromium
        finally:
            await chromium.close()


async def watched(page: Page, address: str) -> list[str]:
    """What the browser complains about, and every request to another host (which is not let through)."""
    found: list[str] = []

    async def gate(route: Route) -> None:
        if route.request.url.startswith((address, "data:")):
            await route.continue_()
        else:
            found.append(f"request to {route.request.url}")
            await route.abort()

    await page.route("**/*", gate)
    page.on("console", lambda message: found.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.append(f"error: {error}"))
    page.on("dialog", lambda dialog: found.append(f"dialog: {dialog.message}"))
    return found


async def test_all_pages_are_quiet_and_stay_on_this_host(tmp_path: Path) -> None:
    """No page has a console message, an error or a request elsewhere; a hostile line is shown letter by letter."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        records = await fill(web.store)
        page = await chromium.new_page()
        found = await watched(page, address)
        await web.store.add_replay(REPLAY)
        await web.store.add_replay(replace(REPLAY, time=NOW - 60, ruleset="cd34"))
        diagnoses = [f"/diagnoses/{record.id}" for record in records.values()]
        for path in ("/", "/docs", "/accuracy", "/jobs/llm-70b-pretrain", HANG, *diagnoses):
            answer = await page.goto(address + path)
            assert answer is not None
            assert answer.status == 200, path
            assert await page.locator("h1, table.list").first.is_visible()
        await page.goto(f"{address}/diagnoses/{records['unsure'].id}")
        shown = await page.locator("#root").text_content()
        assert shown == HOSTILE.replace("\x1b", "\u20391B\u203a").replace("\u202e", "\u2039U+202E\u203a")
        assert await page.locator("img[src='x']").count() == 0
    assert found == []


async def test_the_list_follows_new_diagnoses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis that is made while the list is open appears in it by itself, at the top."""
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(news, "LOOK_SECONDS", 0.05)
    async with served(tmp_path) as (web, address), browser() as chromium:
        page = await chromium.new_page()
        found = await watched(page, address)
        await page.goto(address + "/")
        looks = Looks(web.store)
        assert await page.get_by_text("No diagnosis yet").is_visible()
        await page.locator("#live").wait_for(state="visible")
        await looks.two()
        first = await save(web.store, "first", ECC, created=NOW - 60)
        await page.locator(f"[id='d-{first.id}']").wait_for()
        second = await save(web.store, "second", ECC)
        await page.locator(f"[id='d-{second.id}']").wait_for()
        rows = await page.locator("table.list tbody tr").evaluate_all("rows => rows.map(row => row.id)")
    assert rows == [f"d-{second.id}", f"d-{first.id}"]
    assert found == []


async def test_the_root_line_leads_to_its_place_in_the_log(tmp_path: Path) -> None:
    """The number beside the root line is a link to the same line among its neighbours."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        record = await save(web.store, "llm-7b", ECC)
        page = await chromium.new_page()
        await page.goto(f"{address}/diagnoses/{record.id}")
        await page.locator("figure.root figcaption a").first.click()
        target = page.locator(".log li:target")
        assert "Contained ECC error" in str(await target.text_content())
        assert "root" in str(await target.get_attribute("class"))


async def test_the_pages_work_without_script(tmp_path: Path) -> None:
    """With script switched off the filters, the links and the pages do the same."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await fill(web.store)
        context = await chromium.new_context(java_script_enabled=False)
        page = await context.new_page()
        await page.goto(address + "/")
        await page.locator("select[name=category]").select_option("script")
        await page.get_by_role("button", name="Filter").click()
        assert await page.locator("table.list tbody tr").count() == 1
        await page.locator("a.type").click()
        assert await page.locator("h1").text_content() == "Import error"
        assert await page.locator("button.copy:visible").count() == 0


@pytest.mark.parametrize("width", [360, 800, 1600])
async def test_no_page_is_wider_than_its_window(tmp_path: Path, width: int) -> None:
    """From a phone to a wall screen nothing runs out at the side."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        records = await fill(web.store)
        page = await chromium.new_page(viewport={"width": width, "height": 900})
        await web.store.add_replay(REPLAY)
        of_one = f"/diagnoses/{records['ecc'].id}"
        for path in ("/", "/docs", "/accuracy", "/jobs/llm-70b-pretrain", HANG, of_one):
            await page.goto(address + path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
