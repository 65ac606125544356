"""A correction is pressed in a browser: the next failure is decided by it, and one press undoes it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from tests.e2e.browser import CHROMIUM, browser
from tests.e2e.service import service, until
from tests.e2e.test_feedback import fail, log

SHAPES = [
    "RuntimeError: The size of tensor a ({n}) must match the size of tensor b (12) at non-singleton dimension 1\n"
]
RULE = "rule:tensor_shape_mismatch"


def quilt(client: httpx.Client, number: int) -> dict[str, Any]:
    """A failure of the family ``quilt`` that a shipped rule knows."""
    return fail(client, f"quilt-{number}", log(SHAPES, 4000 + number, f"gpu-{number:03d}"))


def decider(client: httpx.Client, job: str) -> str:
    (newest,) = client.get("/api/v1/diagnoses", params={"job": job}).json()["items"]
    return str(newest["decided_by"])


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no browser: apt-get install chromium-headless-shell")
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.usefixtures("shared_browser")
async def test_one_press_teaches_and_one_press_undoes(tmp_path: Path) -> None:
    """No other press between the correction and the next verdict, which says whose word it is; after the undo the page
    lists what that word decided, and the rules decide again."""
    with service(tmp_path) as running:
        client = await asyncio.to_thread(running.start)
        first = await asyncio.to_thread(quilt, client, 1)
        assert first["decided_by"] == RULE
        async with browser() as chromium:
            page = await (await chromium.new_context(java_script_enabled=False)).new_page()
            await page.goto(f"{running.url}/diagnoses/{first['id']}")
            await page.get_by_label("What it was").fill("Dataset loading error")
            await page.get_by_role("button", name="Correct", exact=True).click()
            await expect(page.get_by_text("It decides the next failure of this kind")).to_be_visible()
            second = await asyncio.to_thread(quilt, client, 2)
            assert (second["decided_by"], second["type"]) == (f"incident:{first['id']}", "dataset_loading_error")
            await page.goto(f"{running.url}/diagnoses/{second['id']}")
            told = page.locator("#precedent")
            await expect(told).to_contain_text("Your correction of")
            await expect(told.get_by_role("link", name="quilt-1, attempt 1")).to_be_visible()
            await told.get_by_role("button", name="Undo").click()
            await expect(page.locator("#decided")).to_contain_text("quilt-2, attempt 1: Dataset loading error")
            await expect(page.get_by_role("button", name="Undo")).to_have_count(0)
        await asyncio.to_thread(until, lambda: decider(client, "quilt-2") == RULE, "the rules' verdict")
        assert (await asyncio.to_thread(quilt, client, 3))["decided_by"] == RULE
        (entry, *_) = client.get("/api/v1/audit", params={"object_kind": "diagnosis"}).json()["items"]
        assert entry["action"] == "POST /diagnoses/{id}/feedback/take-back"


@pytest.mark.xdist_group("postgresql")
def test_a_word_said_to_one_replica_holds_in_the_other_at_once(tmp_path: Path, postgresql_database: str) -> None:
    """The correction, and the undo: each decides the next failure, whichever process diagnoses it."""
    folders = [tmp_path / name for name in ("left", "right")]
    for folder in folders:
        folder.mkdir()
    given = {"DIAGNOSER_DATABASE_URL": postgresql_database}
    with service(folders[0], **given) as left, service(folders[1], **given) as right:
        one, two = left.start(), right.start()
        first = quilt(one, 1)
        path = f"/api/v1/diagnoses/{first['id']}/feedback"
        said = one.post(path, json={"verdict": "corrected", "type": "dataset_loading_error"}).json()
        left.stop()
        assert quilt(two, 2)["decided_by"] == f"incident:{first['id']}"
        two.post(f"{path}/take-back", json={"feedback": said["feedback"][0]["id"]}).raise_for_status()
        one = left.start()
        right.stop()
        assert quilt(one, 3)["decided_by"] == RULE
