"""Pictures of every page for people to look at, in light, dark and on a phone: ``python -m tests.e2e.screenshots OUT``.

The pages show the data of ``tests.e2e.site``; OUT gets ``light``, ``dark`` and ``phone`` with a PNG a page, and
``index.html`` with all of them side by side. ``--only jobs`` takes the pages with this in their address.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser

from tests.e2e.site import ERRORS, addresses, fill_site
from tests.e2e.test_pages import CHROMIUM, UNPLACED, browser, served

TALLEST = 2_400
"""Pixels of a page that are taken: more than a person looks at."""


@dataclass(frozen=True, slots=True)
class Look:
    scheme: Literal["light", "dark"]
    width: int
    height: int


LOOKS: Mapping[str, Look] = {
    "light": Look("light", 1280, 800),
    "dark": Look("dark", 1280, 800),
    "phone": Look("light", 390, 844),
}


def file_name(address: str) -> str:
    """``/jobs?state=silent`` -> ``jobs-state-silent.png``."""
    return (re.sub(r"[^A-Za-z0-9]+", "-", address).strip("-")[:80] or "now") + ".png"


async def take(chromium: Browser, look: Look, at: str, paths: Sequence[str], folder: Path) -> None:
    size = {"width": look.width, "height": look.height}
    context = await chromium.new_context(color_scheme=look.scheme, viewport=size)  # type: ignore[arg-type]
    page = await context.new_page()
    for path in paths:
        await page.goto(at + path)
        height = min(TALLEST, max(look.height, await page.evaluate("document.documentElement.scrollHeight")))
        await page.set_viewport_size({"width": look.width, "height": height})
        await page.screenshot(path=folder / file_name(path))
        await page.set_viewport_size({"width": look.width, "height": look.height})
    await context.close()


async def run(out: Path, only: str) -> int:
    """Number of pages."""
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder)) as (web, at), browser() as chromium:
            names = await fill_site(web)
            await web.store.unplaced.record_unplaced([UNPLACED])
            paths = [path for path in (*addresses(names), *ERRORS) if only in path]
            for name, look in LOOKS.items():
                await take(chromium, look, at, paths, out / name)
    (out / "index.html").write_text(_index(paths), "utf-8")
    return len(paths)


def _index(paths: Sequence[str]) -> str:
    """Every page in all looks, side by side."""
    parts = ['<!doctype html><meta charset="utf-8"><title>Pages</title>']
    for path in paths:
        parts.append(f"<h2>{escape(path)}</h2>")
        parts += [f'<img src="{look}/{file_name(path)}" width="400" alt="{escape(path)}, {look}">' for look in LOOKS]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="pages with this in their address")
    options = parser.parse_args()
    if not CHROMIUM.exists():
        raise SystemExit("no browser: apt-get install chromium-headless-shell")
    count = asyncio.run(run(options.out, options.only))
    sys.stdout.write(f"{count} pages in {options.out / 'index.html'}\n")


if __name__ == "__main__":
    main()
