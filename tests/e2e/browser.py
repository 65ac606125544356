"""One real browser for all tests of pages: each has contexts of its own, with nothing of the others in them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.conftest import NOWHERE

BROWSERS = (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium"))
"""The first has no window, and takes a third of the CPU of the other."""
CHROMIUM = next((path for path in BROWSERS if path.exists()), BROWSERS[-1])
PATIENCE = 180_000.0
"""Milliseconds."""
SHARES_BROWSER = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no browser: apt-get install chromium-headless-shell"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("shared_browser"),
    pytest.mark.xdist_group("browser"),
]
"""``pytestmark`` of tests that call ``browser``: it belongs to an event loop, and a start takes three CPU-seconds."""
_running: dict[asyncio.AbstractEventLoop, Browser] = {}


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser without any context, which keeps nothing: the one of this event loop, or else one that is started."""
    shared = _running.get(asyncio.get_running_loop())
    if shared is None:
        async with _started() as own:
            yield own
        return
    try:
        yield shared
    finally:
        for context in shared.contexts:
            await context.close()


@asynccontextmanager
async def sharing() -> AsyncIterator[None]:
    """One browser for all that call ``browser`` in this event loop meanwhile."""
    loop = asyncio.get_running_loop()
    async with _started() as chromium:
        _running[loop] = chromium
        try:
            yield
        finally:
            del _running[loop]


@asynccontextmanager
async def _started() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", f"--proxy-server={NOWHERE}"]  # loopback is reached without the proxy
        expect.set_options(timeout=PATIENCE)
        chromium = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        _make_patient(chromium)
        try:
            yield chromium
        finally:
            await chromium.close()


def _make_patient(chromium: Browser) -> None:
    """Give each page of the browser the time that a busy machine needs: 30 s are the default."""
    open_page, open_context = chromium.new_page, chromium.new_context

    async def new_page(**options: Any) -> Page:
        page = await open_page(**options)
        page.set_default_timeout(PATIENCE)
        return page

    async def new_context(**options: Any) -> BrowserContext:
        context = await open_context(**options)
        context.set_default_timeout(PATIENCE)
        return context

    chromium.new_page, chromium.new_context = new_page, new_context  # type: ignore[method-assign]
