"""The page and the route of impact over a real store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser.model import Job
from diagnoser.model.taxonomy import FailureType
from tests.serving import HOSTILE, NOW, Web, save, serving, verdict


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        yield made


async def test_without_failures_nothing_is_claimed(web: Web) -> None:
    """Figures that nothing is known of are no zeros."""
    page = await web.client.get("/impact")
    assert page.status_code == 200 and "not known: five launches by people" in page.text
    answer = (await web.client.get("/api/v1/impact")).json()
    assert answer["recovery"]["lost_hours"] is None and answer["share"]["share"] is None


async def test_figures_lead_to_their_failures(web: Web) -> None:
    """By cluster, type, job; names of others stay text."""
    await web.store.jobs.register(Job("j1", cluster="east", labels={"gpus": "64"}, tenant=HOSTILE, created=1.0))
    await save(web.store, "j1", verdict(FailureType.ECC_ERROR), created=NOW - 3600)
    page = (await web.client.get("/impact?within=7d")).text
    assert 'href="/diagnoses?type=ecc_error&amp;within=7d"' in page
    assert 'href="/diagnoses?job=j1&amp;within=7d"' in page
    assert "<script>fetch" not in page
    answer = (await web.client.get("/api/v1/impact?within=7d")).json()
    assert [cost["name"] for cost in answer["cost_by_type"]] == ["ecc_error"]
    assert answer["recovery"]["failures"] == 1
    other = (await web.client.get("/api/v1/impact?cluster=elsewhere")).json()
    assert other["recovery"]["failures"] == 0


async def test_a_window_that_no_list_has_is_refused(web: Web) -> None:
    """Figures and lists cover the same span."""
    assert (await web.client.get("/api/v1/impact?within=9d")).status_code == 400
