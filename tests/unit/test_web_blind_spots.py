"""The first page says what the service cannot see."""

from pathlib import Path

from tests.serving import HOSTILE, NOW, serving


async def test_the_page_says_nothing_while_all_is_heard(tmp_path: Path) -> None:
    """There is no strip, not an empty one."""
    async with serving(tmp_path) as web:
        assert "What I cannot see" not in (await web.client.get("/")).text


async def test_the_page_names_what_is_missing_and_what_that_costs(tmp_path: Path) -> None:
    """An agent that fell silent is named with its cluster; what it calls itself is text, not markup."""
    async with serving(tmp_path) as web:
        await web.store.vitals.record_agent("east", HOSTILE, NOW - 500)
        page = (await web.client.get("/")).text
    assert "What I cannot see" in page
    assert "The agent of cluster east" in page
    assert "Plans are not carried out there" in page
    assert "<script>fetch" not in page


async def test_a_claim_is_a_sign_of_life(tmp_path: Path) -> None:
    """Whoever asks for plans is noted under its cluster, half a minute apart, so that polls cost no writes."""
    now = [NOW]
    async with serving(tmp_path, clock=lambda: now[0]) as web:
        for seconds, seen in ((0, NOW), (20, NOW), (31, NOW + 31)):
            now[0] = NOW + seconds
            await web.client.post("/api/v1/plans/claim", json={"executor": "slurm@head", "cluster": "east"})
            vitals = await web.store.vitals.read(now[0], 600.0, 600.0)
            assert [tuple(agent) for agent in vitals.agents] == [("east", "slurm@head", seen)]
