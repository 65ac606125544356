"""Decisions in a real browser: plans, the breaker, and nodes, from the click to what became of it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from diagnoser.adapters.sql.plans import put_plan
from diagnoser.model import (
    AttemptKey,
    Event,
    EventKind,
    Job,
    Mode,
    NodeActor,
    NodeAlert,
    NodeEvent,
    NodeEventKind,
    PlanState,
)
from diagnoser.model.taxonomy import Action
from tests.e2e.browser import SHARES_BROWSER, browser
from tests.e2e.test_pages import served, watched
from tests.serving import ECC, HOSTILE, NOW, Web, save
from tests.unit.test_web_nodes import checked
from tests.unit.test_web_plans import claim, planned, post

pytestmark = SHARES_BROWSER
PICTURES = os.environ.get("SCREENSHOTS", "")
"""Folder that pictures of the pages are kept in, where one is given."""


async def picture(page: Page, name: str) -> None:
    if PICTURES:
        await page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)


async def waiting(web: Web) -> None:
    """Three plans wait: one takes a node out, one checks nodes, one only launches again."""
    await planned(web, "llm-7b", mode=Mode.APPROVE)
    nodes = tuple(f"hgx-{number:02d}" for number in range(1, 9))
    check = Action.CHECK_AND_RESUBMIT
    await planned(web, "llm-70b", Mode.APPROVE, check, suspects=("hgx-03",), allocation=nodes, proofs=())
    await planned(web, "sft", Mode.APPROVE, Action.RESUBMIT, allocation=nodes[:2], proofs=())
    await web.store.jobs.register(Job("neighbour", cluster="default", nodes=("hgx-03", "hgx-04"), created=NOW - 50), 1)


async def state(web: Web, job: str) -> PlanState:
    plan = await web.store.plans.find(f"plan-{job}")
    assert plan is not None
    return plan.state


@pytest.mark.parametrize("script", [True, False])
async def test_two_plans_are_approved_and_one_is_undone(tmp_path: Path, *, script: bool) -> None:
    """In one press, on one page; what an agent took up meanwhile stays approved. With and without script."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await waiting(web)
        context = await chromium.new_context(java_script_enabled=script)
        page = await context.new_page()
        found = await watched(page, address)
        await page.goto(address + "/recovery")
        await expect(page.locator("nav [aria-current=page] .attention")).to_have_text("3", use_inner_text=True)
        await expect(page.get_by_text("other job runs there").first).to_be_visible()
        assert await page.get_by_label("All on this page").is_visible() == script
        await page.get_by_role("checkbox", name="Cordon, resubmit").check()
        await page.get_by_role("checkbox", name="Resubmit", exact=True).check()
        await page.get_by_label("Comment for those selected").fill("checked with Ida")
        await page.get_by_role("button", name="Approve selected").click()
        await expect(page.locator(".notice > div")).to_have_count(2)
        assert [await state(web, job) for job in ("llm-7b", "llm-70b", "sft")] == ["sent", "waiting", "sent"]
        await expect(page.locator("nav [aria-current=page] .attention")).to_have_text("1", use_inner_text=True)
        elsewhere = await context.new_page()
        await elsewhere.goto(page.url)
        taken = (await claim(web))["plan"]["job"]
        other = "sft" if taken == "llm-7b" else "llm-7b"
        await page.locator(".notice > div", has_text=other).get_by_role("button", name="Undo").click()
        await expect(page.get_by_text("waiting for a decision again")).to_be_visible()
        assert [await state(web, job) for job in (taken, other)] == ["sent", "waiting"]
        await elsewhere.locator(".notice > div", has_text=taken).get_by_role("button", name="Undo").click()
        await expect(elsewhere.get_by_text("slurm-1 holds it")).to_be_visible()
        assert await state(web, taken) is PlanState.SENT
    assert found == []


async def test_a_plan_moves_on_under_the_readers_eyes(tmp_path: Path) -> None:
    """From the press on the diagnosis to the second attempt: each stage appears without a reload."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        plan = await planned(web, "llm-7b", mode=Mode.APPROVE)
        page = await chromium.new_page()
        found = await watched(page, address)
        await page.goto(f"{address}/diagnoses/{plan.diagnosis}")
        strip = page.locator("ol.strip")
        await expect(strip.locator("[aria-current=step]")).to_contain_text("Waits for approval")
        await page.get_by_label("What helped").fill("not lost")
        await page.get_by_role("button", name="Approve:").click()
        await expect(strip.locator(".current")).to_contain_text("Waits for an agent")
        token = (await claim(web))["token"]
        await expect(strip).to_contain_text("Claimed slurm-1")
        report = {"token": token, "drained": list(plan.nodes), "requeued": "llm-7b-2"}
        await post(web, f"/plans/{plan.id}/report", {**report, "state": "reached"})
        await expect(strip).to_contain_text("Resubmitted llm-7b-2")
        await web.store.jobs.add_event(AttemptKey("llm-7b", 2), Event(EventKind.STARTED, NOW + 30))
        await expect(strip.get_by_role("link", name="Attempt 2")).to_be_visible()
        await picture(page, "strip")
    assert found == []


async def test_all_on_the_page_are_refused_at_once(tmp_path: Path) -> None:
    """One tick for all of them; one that was decided about meanwhile is told."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await waiting(web)
        page = await chromium.new_page()
        await page.goto(address + "/recovery")
        await page.get_by_label("All on this page").check()
        await expect(page.locator("article input:checked")).to_have_count(3)
        await post(web, "/plans/plan-sft/approve", {})
        await page.get_by_role("button", name="Refuse selected").click()
        await expect(page.locator(".notice .good")).to_have_count(2)
        assert await page.locator(".notice .bad").inner_text() == (
            "Resubmit for sft: not changed, it has been sent already (by anonymous, just now) Undo"
        )
        assert [await state(web, job) for job in ("llm-7b", "llm-70b", "sft")] == ["refused", "refused", "sent"]


async def test_the_breaker_is_tripped_and_reset(tmp_path: Path) -> None:
    """By hand, each with a reason; every page shows that it is tripped."""
    async with served(tmp_path) as (_, address), browser() as chromium:
        page = await chromium.new_page()
        await page.goto(address + "/recovery")
        await page.get_by_text("Trip the breaker manually").click()
        await page.get_by_label("Why the breaker is tripped").fill("cooling fails in row 3")
        await page.get_by_role("button", name="Trip", exact=True).click()
        await expect(page.get_by_text("cooling fails in row 3")).to_be_visible()
        await page.get_by_role("link", name="Nodes").click()
        await expect(page.locator("nav .attention")).to_have_text("breaker", use_inner_text=True)
        await page.get_by_role("link", name="Recovery").click()
        await page.get_by_label("Why it is safe to reset the breaker of default").fill("cooling is back")
        await page.get_by_role("button", name="Reset").click()
        await expect(page.get_by_text("Closed: plans may take nodes out of service")).to_be_visible()
        await expect(page.get_by_text("by anonymous: cooling is back")).to_be_visible()
        await expect(page.locator("nav .attention")).to_have_count(0)


async def a_node(web: Web) -> None:
    """All that its page can show: out because of a plan, a check, alerts, jobs, incidents."""
    await web.store.jobs.register(Job("llm-7b", nodes=("hgx-04", "hgx-05"), created=NOW - 9_000), 1)
    record = await save(web.store, "llm-7b", ECC, plan=True)
    assert record.plan is not None
    async with web.store.db.writing() as connection:
        await put_plan(connection, replace(record.plan, cluster="default", check=checked("n2", 7)))
    await web.store.jobs.register(Job("sft", nodes=("hgx-04",), created=NOW - 60, tenant="ida"), 1)
    cordoned = NodeEvent("default", "hgx-04", NodeEventKind.CORDONED, NodeActor.DIAGNOSER, NOW - 500, "plan p1")
    await web.store.nodes.add_event(cordoned)
    alert = NodeAlert("default", "hgx-04", "f", "GpuXid", NOW - 900, NOW - 890, None, "critical", HOSTILE, by="am")
    await web.store.node_facts.record_alerts(
        [alert, replace(alert, name="NodeDown", started=NOW - 9_000, ended=NOW - 8_000)]
    )


@pytest.mark.parametrize("script", [True, False])
async def test_a_node_gets_a_note_and_is_given_back(tmp_path: Path, *, script: bool) -> None:
    """The agent does it; the page says how far it is, and by whom it was asked."""
    async with served(tmp_path) as (web, address), browser() as chromium:
        await a_node(web)
        page = await (await chromium.new_context(java_script_enabled=script)).new_page()
        found = await watched(page, address)
        await page.goto(address + "/nodes")
        await page.get_by_role("link", name="hgx-04").click()
        await page.get_by_label("Note about hgx-04").fill("GPU 3 reseated, RMA 4711")
        await page.get_by_role("button", name="Add note").click()
        await expect(page.locator(".notes li")).to_have_text(
            "just now anonymous GPU 3 reseated, RMA 4711", use_inner_text=True
        )
        await page.get_by_label("What was repaired").fill("GPU 3 replaced")
        await page.get_by_role("button", name="Give it back").click()
        await expect(page.get_by_text("waits for the agent")).to_be_visible()
        await expect(page.get_by_role("button", name="Give it back")).to_have_count(0)
        (asked,) = (await post(web, "/uncordons/claim", {})).json()
        await post(web, f"/uncordons/{asked['id']}/result", {"state": "done", "result": "hgx-04: back in service"})
        await page.reload()
        await expect(page.get_by_text("given back")).to_be_visible()
    assert found == []
