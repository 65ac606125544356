"""Learned rules over the API and on their page."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.model import Author, LearnedRule, LearnedState, RuleHit, ValidationResult
from diagnoser.model.access import Scope, Token
from tests.serving import ECC, HOSTILE, NOW, Web, save, serving

SAME = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
RULE = LearnedRule(
    "learned_gpu_lost_1",
    source="01",
    created=NOW - 60,
    type="gpu_lost",
    text=f"id: learned_gpu_lost_1\ntitle: {HOSTILE}\n",
    by=HOSTILE,
    author=Author("llm:qwen", "qwen", "rule_writer/v1", "ab12", failure=HOSTILE),
    gates=(ValidationResult("compiles", True, "yes"), ValidationResult("healthy_logs", True, HOSTILE)),
).with_state(LearnedState.SHADOW, by="diagnoser", why=HOSTILE, now=NOW - 30)
OTHER = replace(RULE, id="learned_gpu_lost_0", source="00", by="diagnoser")
BY = {"by": "kai", "comment": "seen thrice"}
"""As earlier clients send it: the name is not used."""
TOKENS = (Token("ops", "w" * 16, Scope.OPERATE), Token("eyes", "r" * 16, Scope.READ))


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        await made.store.rules.propose(RULE)
        await made.store.rules.propose(OTHER)
        yield made


def path(id: str = RULE.id, move: str = "") -> str:
    return f"/api/v1/rules/{id}" + (f"/{move}" if move else "")


async def test_rules_are_listed_with_all_that_is_known(web: Web) -> None:
    """State, gates, author, file; by state, in pages; one rule with its hits."""
    await save(web.store, "j", ECC)
    hit = RuleHit(RULE.id, (await web.store.jobs.attempts("j"))[0].key, NOW, "d1")
    await web.store.rules.record_hits([hit])
    page = (await web.client.get("/api/v1/rules", params={"limit": 1})).json()
    rest = (await web.client.get("/api/v1/rules", params={"after": page["next"]})).json()
    assert [one["id"] for one in page["items"] + rest["items"]] == [RULE.id, OTHER.id]
    assert rest["next"] is None
    found = (await web.client.get(path())).json()
    assert (found["path"], found["text"]) == ("infrastructure/learned_gpu_lost_1.yaml", RULE.text)
    assert (found["author"]["prompt_hash"], found["gates"][0]["reason"]) == ("ab12", "yes")
    assert [(one["job"], one["diagnosis"], one["verdict"]) for one in found["hits"]] == [("j", "d1", "open")]
    assert found["counts"]["hits"] == 1
    assert len((await web.client.get("/api/v1/rules", params={"state": "shadow"})).json()["items"]) == 2
    assert (await web.client.get("/api/v1/rules", params={"state": "active"})).json()["items"] == []


async def test_a_rule_is_promoted_retired_and_brought_back(web: Web) -> None:
    """Each step with who and why; what was retired passes the gates again."""
    for move, state in (("promote", "active"), ("retire", "retired"), ("restore", "proposed")):
        answer = await web.client.post(path(move=move), json=BY)
        assert (answer.status_code, answer.json()["state"]) == (200, state)
    assert [(turn["state"], turn["by"], turn["why"]) for turn in answer.json()["history"][1:]] == [
        (state, "anonymous", "seen thrice") for state in ("active", "retired", "proposed")
    ]


async def test_steps_that_make_no_sense_are_refused(web: Web) -> None:
    """409 with the reason; 404 for what is not there; 400 for a body that is none."""
    again = await web.client.post(path(move="restore"), json=BY)
    assert again.status_code == 409 and "is shadow" in again.json()["detail"]
    assert (await web.client.post(path("learned_none", "promote"), json=BY)).status_code == 404
    assert (await web.client.get(path("learned_none"))).status_code == 404
    assert (await web.client.get(path("..%2Fetc"))).status_code in (400, 404)
    assert (await web.client.post(path(move="promote"), json={"comment": 7})).status_code == 400


async def test_changes_need_a_token_that_operates(tmp_path: Path) -> None:
    """A reader sees rules and changes none."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        await web.store.rules.propose(RULE)
        eyes, ops = ({"authorization": f"Bearer {letter * 16}"} for letter in "rw")
        assert (await web.client.get(path())).status_code == 401
        assert (await web.client.get(path(), headers=eyes)).status_code == 200
        assert (await web.client.post(path(move="promote"), json=BY, headers=eyes)).status_code == 403
        assert (await web.client.post(path(move="promote"), json=BY, headers=ops)).status_code == 200


async def test_the_page_shows_everything_as_text(web: Web) -> None:
    """What programs, people and models wrote is never obeyed by a browser."""
    page = (await web.client.get("/rules")).text
    assert "<script>fetch" not in page and "<img src=x" not in page and "\u202e" not in page
    assert page.count("&lt;script&gt;fetch") >= 5
    assert f'id="{RULE.id}"' in page and f'action="/rules/{RULE.id}/decide"' in page


async def test_an_empty_page_says_how_rules_come(tmp_path: Path) -> None:
    """The page says so when nothing was learned yet."""
    async with serving(tmp_path) as web:
        assert "No rules learned yet" in (await web.client.get("/rules")).text


async def test_the_buttons_of_the_page_decide(web: Web) -> None:
    """Only from a page of this service, and only what there is to decide."""
    url, body = f"/rules/{RULE.id}/decide", b"decision=promote&comment=go"
    answer = await web.client.post(url, content=body, headers=SAME)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/rules#{RULE.id}")
    found = await web.store.rules.find(RULE.id)
    assert found is not None and (found.state, found.history[-1].by) == (LearnedState.ACTIVE, "anonymous")
    cross = SAME | {"sec-fetch-site": "cross-site"}
    assert (await web.client.post(url, content=body, headers=cross)).status_code == 403
    assert (await web.client.post(url, content=b"decision=burn", headers=SAME)).status_code == 400
    assert (await web.client.post(url, content=body, headers=SAME)).status_code == 409


async def test_a_diagnosis_tells_what_was_learned_from_it_and_by_what(web: Web) -> None:
    """Links both ways: to the rule that came from it, and to the learned rule that decided it."""
    record = await save(web.store, "j", replace(ECC, decided_by=f"rule:{RULE.id}"))
    rule = replace(RULE, id="learned_ecc_error_1", source=record.id)
    await web.store.rules.propose(rule.with_state(LearnedState.REFUSED, by="diagnoser", why=HOSTILE, now=NOW))
    page = (await web.client.get(f"/diagnoses/{record.id}")).text
    assert 'href="/rules#learned_ecc_error_1"' in page and f'href="/rules#{RULE.id}"' in page
    assert "<script>fetch" not in page
