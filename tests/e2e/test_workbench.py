"""From a correction to a rule that people wrote, tried, ran in shadow and retired: in a real browser."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import uvicorn

from diagnoser.learning.workbench import RuleWorkbench
from diagnoser.model import Author, LearnedRule, LearnedState, ValidationResult
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.web.server import create
from tests.contract.conftest import BOTH
from tests.e2e.browser import SHARES_BROWSER, browser
from tests.e2e.test_pages import PALE, SMALL, watched
from tests.postgresql import new_database
from tests.rule_learning import STEPS, Site, site
from tests.serving import HOSTILE, services, workbench

pytestmark = SHARES_BROWSER
PATTERN = r"snapshot \d+ differs from the quilt manifest"


@pytest_asyncio.fixture(loop_scope="session", params=BOTH)
async def here(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    url = "" if request.param == "sqlite" else await new_database(request.getfixturevalue("postgresql"))
    async with site(tmp_path, url=url) as made:
        yield made


@asynccontextmanager
async def served(here: Site) -> AsyncIterator[str]:
    """The pages over a site that learns, and their address."""
    bench: RuleWorkbench = workbench(here.store, here.metrics, here.registry)
    stack = AsyncExitStack()
    given = await services(here.store, stack, workbench=bench, confirmed_failures=here.confirmed_failures)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create(given), log_level="warning", ws="none"))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        given.core.stopping.set()
        server.should_exit = True
        await running
        await stack.aclose()


async def learns(here: Site) -> None:
    """The worker's part, until nothing is left to do."""
    while await here.lifecycle.step():
        pass
    await here.registry.refresh()


async def written(here: Site) -> LearnedRule:
    (rule,) = [rule for rule in await here.store.rules.page(LearnedRuleQuery(), "", 9) if rule.author.name == "person"]
    return rule


async def test_from_a_correction_to_a_retired_rule(here: Site) -> None:
    """Corrected by search, a case with a number, a pattern tried while it is typed, saved, a hit in shadow, retired."""
    made = await here.fail("quilt-1")
    await here.run("fine", [*STEPS, "mosaic-feeder: catalogue snapshot 5 is fine", "Training completed"], code=0)
    async with served(here) as address, browser() as chromium:
        page = await chromium.new_page()
        complaints = await watched(page, address)
        await page.goto(f"{address}/diagnoses/{made.id}?root_line=30")
        assert await page.locator("#types option").count() > 40
        assert await page.locator("#types option[value='DataLoader killed']").get_attribute("label")
        await page.get_by_label("What it was").fill("a torn quilt")
        await page.get_by_label("What helped").fill("rebuild the manifest")
        await page.get_by_role("button", name="Correct").click()
        assert "Choose one of the listed causes" in str(await page.get_by_role("alert").text_content())
        assert await page.get_by_label("What helped").input_value() == "rebuild the manifest"
        complaints.clear()  # that a form was refused stands in the console
        await page.get_by_label("What it was").fill("dataloader Killed")
        await page.get_by_role("button", name="Correct").click()
        await page.get_by_text("case 1", exact=True).wait_for()
        assert await page.get_by_text("A rule is being written from it").is_visible()
        await learns(here)
        await page.reload()
        assert await page.get_by_text("is in shadow").is_visible()

        await page.get_by_role("link", name="Try patterns on it in the rule workbench").click()
        patterns = page.get_by_label("Patterns")
        assert "mosaic-feeder" in await patterns.input_value()
        await patterns.fill("mosaic-feeder: catalogue")
        await page.get_by_label("Anchors").fill("mosaic-feeder")
        await page.locator("#result").get_by_text("Healthy runs print lines that it matches").wait_for()
        await patterns.fill(f"({PATTERN}")
        await page.locator("#result").get_by_text("missing )").wait_for()
        await patterns.fill(PATTERN)
        await page.locator("#result").get_by_text("It matches only failures of the cause DataLoader killed").wait_for()
        assert await page.locator("mark").first.text_content() == "snapshot 4711 differs from the quilt manifest"
        assert "patterns=snapshot" in page.url
        await page.get_by_label("Title").fill("The feeder gave up")
        await page.get_by_role("button", name="Save in shadow").click()
        await page.locator("#rule[data-state=proposed]").wait_for()
        await learns(here)
        await page.locator("#rule[data-state=shadow]").wait_for()  # by itself

        await here.fail("quilt-2", 82, "gpu-201")
        await page.reload()
        hits = page.locator("#hits tbody tr")
        assert await hits.count() == 1
        assert "quilt-2/1" in str(await hits.text_content()) and "would have decided" in str(await hits.text_content())
        await page.get_by_role("button", name="Retire").click()
        await page.locator("#rule[data-state=retired]").wait_for()
    rule = await written(here)
    assert (rule.state, rule.history[-1].by) == (LearnedState.RETIRED, "anonymous")
    assert complaints == []


async def test_a_hostile_pattern_holds_nobody_up(tmp_path: Path) -> None:
    """While a pattern that backtracks for ever elsewhere is tried, other pages answer; it is answered, too."""
    async with site(tmp_path) as here:
        await here.say(await here.run("long", [*STEPS, *(f"{number} " + "ab" * 990 for number in range(400))]), None)
        async with served(here) as address, browser() as chromium:
            page, other = await chromium.new_page(), await chromium.new_page()
            await page.goto(f"{address}/rules/workbench")
            await page.get_by_label("Patterns").fill("(.{1,250}){1,4}z")
            await other.goto(f"{address}/livez")
            await page.locator("#result h3").first.wait_for(timeout=60_000)
            assert "Stored failures" in str(await page.locator("#result h3").first.text_content())


async def test_the_workbench_works_without_script(tmp_path: Path) -> None:
    """Typed, tried, loaded, chosen and saved by buttons and links alone; what log lines say stays text."""
    async with site(tmp_path) as here:
        made = await here.run("quilt-1", [*STEPS, f"mosaic-feeder: the quilt manifest is torn {HOSTILE}"])
        await here.say(made)
        async with served(here) as address, browser() as chromium:
            page = await (await chromium.new_context(java_script_enabled=False)).new_page()
            complaints = await watched(page, address)
            await page.goto(f"{address}/rules")
            await page.get_by_role("link", name="Rule workbench").click()
            await page.get_by_label("Patterns").fill("quilt manifest is torn")
            await page.get_by_label("Anchors").fill("quilt manifest")
            await page.get_by_role("button", name="Try").click()
            assert await page.locator("mark").first.text_content() == "quilt manifest is torn"
            assert await page.locator("img[src='x']").count() == 0
            await page.get_by_role("link", name="Write the rule for it").click()
            await page.get_by_role("button", name="Save in shadow").click()
            assert "Give the rule a title" in str(await page.get_by_role("alert").text_content())
            assert await page.get_by_label("Patterns").input_value() == "quilt manifest is torn"
            await page.get_by_label("Title").fill("A torn manifest")
            await page.get_by_role("button", name="Save in shadow").click()
            assert await page.locator("#rule").get_attribute("data-state") == "proposed"
            await page.get_by_label("Search the rules").fill("fell off the bus")
            await page.get_by_role("button", name="Search").click()
            await page.locator(".rulelist a").first.click()
            assert "It comes with the rule files" in str(await page.locator("#rule").text_content())
        assert (await written(here)).type == "dataloader_killed"
        assert all("400" in complaint for complaint in complaints)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pages_of_teaching_fit_a_phone_and_can_be_read(tmp_path: Path, scheme: str) -> None:
    """390 pixels wide nothing runs out at the side, what is pressed is 24 pixels high, and text stands out."""
    async with site(tmp_path) as here:
        rule = await here.taught()
        await here.fail("quilt-2", 82, "gpu-201")
        await here.say(await here.run("seam", [*STEPS, "ValueError: seam " + "x" * 900 + HOSTILE]), None)
        refused = LearnedRule(
            "learned_" + "x" * 150,
            rule.source,
            1.0,
            type="gpu_lost",
            text=rule.text + f"reference: {'r' * 200}\n",
            by="m" * 90,
            author=Author("llm:" + "q" * 120, prompt="rule_writer/v1", failure=HOSTILE * 3),
            gates=(ValidationResult("examples_of_other_rules", True, "z" * 300),),
        )
        why = "its_examples: " + "y" * 300
        await here.store.rules.propose(refused.with_state(LearnedState.REFUSED, by="diagnoser", why=why, now=2.0))
        async with served(here) as address, browser() as chromium:
            context = await chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
            page = await context.new_page()
            for path in (
                "/rules",
                "/rules/workbench?patterns=quilt%0Aseam",
                f"/rules/workbench?rule={rule.id}",
                f"/rules/workbench?rule={refused.id}",
                "/accuracy",
                f"/diagnoses/{rule.source}",
            ):
                await page.goto(address + path)
                await page.evaluate("document.querySelectorAll('details').forEach(part => (part.open = true))")
                assert await page.evaluate("document.documentElement.scrollWidth") <= 390, path
                assert await page.evaluate(SMALL) == [], path
                assert await page.evaluate(PALE) == [], path
