"""The page of accuracy over time."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.model import AttemptKey, CaseMark, CaseOutcome, CaseReplay
from diagnoser.model.access import Scope, Token
from diagnoser.model.taxonomy import FailureType
from tests.serving import HOSTILE, NOW, Web, save, serving, verdict

RIGHT = CaseOutcome(
    "01", AttemptKey("fine"), NOW - 900, FailureType.GPU_LOST, FailureType.GPU_LOST, FailureType.GPU_LOST, True
)
LEARNED = replace(RIGHT, diagnosis="02", attempt=AttemptKey("learned"), said=FailureType.UNKNOWN, root=False)
SPOILED = replace(RIGHT, diagnosis="03", attempt=AttemptKey("spoiled", 2), says=FailureType.ECC_ERROR, root=None)
REPLAY = CaseReplay(NOW - 600, HOSTILE, "ab12", CaseMark(3, NOW), (RIGHT, LEARNED, SPOILED))


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        yield made


async def test_without_cases_the_page_says_how_they_come_about(web: Web) -> None:
    """And draws nothing."""
    page = await web.client.get("/accuracy")
    assert page.status_code == 200 and "Nobody has judged a diagnosis yet" in page.text
    assert (await web.client.get("/accuracy/series.svg")).text.count("<polyline") == 0


async def test_the_page_shows_then_and_now_and_what_got_worse(web: Web) -> None:
    """Shares as judged and as replayed, the wrong cases with links, every replay; text of others stays text."""
    await web.store.cases.add_replay(REPLAY)
    await web.store.cases.add_replay(replace(REPLAY, time=NOW - 60, ruleset="cd34"))
    page = (await web.client.get("/accuracy")).text
    assert "2 of 3 (67 %) named the right cause" in page
    assert "1 of 2 (50 %) the right line" in page
    assert "1 of them was right when judged" in page
    assert 'href="/diagnoses/03"' in page and 'href="/diagnoses/02"' not in page
    assert "ab12" in page and "cd34" in page
    assert "<script>fetch" not in page
    drawn = (await web.client.get("/accuracy/series.svg")).text
    assert drawn.count("<polyline") == 3 and "%" in drawn


async def test_weeks_deciders_and_confusions_are_those_of_peoples_words(web: Web) -> None:
    """Judged verdicts by week and by who decided, and what was corrected to what, before any replay."""
    assert "by week" not in (await web.client.get("/accuracy")).text
    for number, (kind, known) in enumerate((("ecc_error", ""), ("ecc_error", "gpu_lost"), ("unknown", "gpu_lost"))):
        made = await save(web.store, f"j{number}", verdict(FailureType(kind)), created=NOW - 8 * 86_400 * number)
        said = {"verdict": "corrected", "type": known} if known else {"verdict": "confirmed"}
        assert (await web.client.post(f"/api/v1/diagnoses/{made.id}/feedback", json=said)).status_code == 200
    page = (await web.client.get("/accuracy")).text
    assert "1 of 3 (33 %) named the right cause in the last 26 weeks" in page
    assert page.count('<rect class="right"') == 4, "three weeks and the legend"
    assert "at most 1 in a week" in page and page.count("<title>Week of") == 3
    assert '<td class="kind">rule</td><td>1 of 3 (33 %)</td>' in page
    assert 'href="/rules/workbench?rule=ecc_error_seen"' in page and "1 of 2 (50 %)" in page
    assert "<td>ECC error</td><td>GPU lost</td><td>1</td>" in page
    assert "<td>Unknown cause</td><td>GPU lost</td><td>1</td>" in page


async def test_one_replay_draws_only_what_was_judged(web: Web) -> None:
    """A curve needs two points."""
    await web.store.cases.add_replay(REPLAY)
    assert (await web.client.get("/accuracy/series.svg")).text.count("<polyline") == 1


async def test_the_page_needs_a_token_that_reads(tmp_path: Path) -> None:
    """As every page does where tokens are used."""
    async with serving(tmp_path, tokens=(Token("eyes", "r" * 16, Scope.READ),)) as web:
        for path in ("/accuracy", "/accuracy/series.svg"):
            assert (await web.client.get(path)).status_code == 401
            answer = await web.client.get(path, headers={"Authorization": f"Bearer {'r' * 16}"})
            assert answer.status_code == 200
