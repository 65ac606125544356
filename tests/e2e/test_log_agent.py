"""The Log Agent of the real process, with a model over HTTP and people in a browser."""

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.browser import SHARES_BROWSER, browser
from tests.e2e.service import diagnosis_of, send, service, until
from tests.integration.model_server import model_server
from tests.integration.test_log_agent import DARK, GOOD, printed, says

pytestmark = SHARES_BROWSER


def run(client: httpx.Client, number: int, *end: str, code: int) -> dict[str, Any]:
    job, lines = f"feeding-{number}", [f"{line}\n".encode() for line in printed(number, *end)]
    client.post("/api/v1/jobs", json={"id": job}).raise_for_status()
    send(client, lines, 0, len(lines), job=job)
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": code}).raise_for_status()
    return diagnosis_of(client, job, len(lines))


def rule_in(client: httpx.Client, state: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        items = client.get("/api/v1/rules", params={"filters": True, "state": state}).raise_for_status().json()["items"]
        return next(iter(items), None)

    rule: dict[str, Any] = until(found, f"a filter in {state}")
    return rule


def lived_through(folder: Path, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Clean runs, a shadow, a promotion on the page, a kill, and a failure before and after. Returns both diagnoses."""
    settings = {"LOG_AGENT": "true", "RULE_PROMOTION_MIN_HITS": "0", "LLM_URL": url, "LLM_MODEL": "scripted"}
    with service(folder, **{f"DIAGNOSER_{name}": value for name, value in settings.items()}) as running:
        client = running.start()
        for number in range(1, 5):
            run(client, number, "Training completed", code=0)
        rule = rule_in(client, "shadow")
        before = run(client, 5, DARK, code=1)
        until(lambda: rule_in(client, "shadow")["counts"]["lines"] == 270, "lines that it would filter")
        asyncio.run(promoted(running.url, rule["id"]))
        rule_in(client, "active")
        running.kill()
        client = running.start()
        after = run(client, 6, DARK, code=1)
        until(lambda: rule_in(client, "active")["counts"]["lines"] == 540, "lines that it filters")
    return before, after


async def promoted(address: str, rule: str) -> None:
    """A person sees in the workbench what it would filter, tries its patterns, and promotes it."""
    async with browser() as chromium:
        page = await chromium.new_page()
        await page.goto(f"{address}/rules")
        assert await page.locator(f"#{rule}").get_by_text("270 lines").is_visible()
        await page.goto(f"{address}/rules/workbench?rule={rule}")
        assert await page.get_by_label("Patterns").input_value() == "\n".join(GOOD)
        await page.locator("#result").get_by_text("hides no line of a stored failure").wait_for()
        await page.get_by_role("button", name="Promote").click()
        await page.locator("#rule[data-state=active]").wait_for()


async def test_routine_is_learned_promoted_in_the_workbench_and_filtered(tmp_path: Path) -> None:
    """The verdict is the same with the filter, the lines are counted, and a kill changes nothing."""
    with model_server(lambda _: says(*GOOD)) as server:
        before, after = await asyncio.to_thread(lived_through, tmp_path, server.url)
    assert "270 lines filtered as routine" in after["left_out"]["why"]
    assert "filtered as routine" not in before["left_out"]["why"]
    assert after["compression"]["bytes_out"] < before["compression"]["bytes_out"]
    assert (after["type"], after["outcome"]) == (before["type"], before["outcome"])
    assert before["compression"]["lines_in"] == after["compression"]["lines_in"] == 300
