"""The rule workbench: its page, its form and its routes."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from diagnoser.learning.workbench import LineHit
from diagnoser.model import AttemptKey, Author, LearnedRule, LearnedState, LineBlock, RuleHit, Stream
from diagnoser.model.access import Credential, Scope, StoredToken, Token, hash_of
from diagnoser.model.taxonomy import FailureType
from diagnoser.web.pages.workbench import pieces
from tests.serving import HOSTILE, NOW, Web, save, serving, store_log, verdict

PAGE, TRY, RULES = "/rules/workbench", "/api/v1/rules/try", "/api/v1/rules"
SAME = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
KEY = AttemptKey("quilt-1", 1)
ROOT = f"mosaic-feeder: quilt manifest torn at seam 12 {HOSTILE}"
UNKNOWN = verdict(FailureType.UNKNOWN, decided_by="heuristic:no_evidence", root_cause=None)
FIELDS = {
    "patterns": "quilt manifest torn at seam \\d+",
    "anchors": "quilt manifest torn",
    "title": "The manifest is torn",
    "mitigation": "Sew it.",
}
WORDS = ("ops", "w" * 16, Scope.OPERATE), ("eyes", "r" * 16, Scope.READ)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        yield made


async def judged(web: Web, job: str = KEY.job, line: str = ROOT) -> str:
    """The diagnosis of a failure whose cause a person named."""
    lines = [f"step {step} of the run" for step in range(1, 20)] + [line]
    data = "".join(f"{text}\n" for text in lines).encode()
    await store_log(web.store, AttemptKey(job, 1), LineBlock(Stream(), data, received=NOW - 100))
    made = (await save(web.store, job, UNKNOWN)).id
    said = {"verdict": "corrected", "type": "dataset_loading_error", "root_line": 20}
    assert (await web.client.post(f"/api/v1/diagnoses/{made}/feedback", json=said)).status_code == 200
    return made


async def page_of(web: Web, **query: str) -> str:
    answer = await web.client.get(f"{PAGE}?{urlencode(query)}")
    assert answer.status_code == 200
    return answer.text


async def test_the_page_shows_what_a_pattern_matches(web: Web) -> None:
    """Counts, causes and lines, what matches marked, all of it as text."""
    made = await judged(web)
    page = await page_of(web, patterns="quilt manifest torn")
    assert "<b>1</b> of 1 case" in page and f'href="/diagnoses/{made}"' in page and "the root line" in page
    assert "<mark>quilt manifest torn</mark>" in page
    assert "Dataset loading error 1" in page and "It matches only failures of the cause Dataset loading error" in page
    assert "<script>fetch" not in page and "\u202e" not in page and "&lt;script&gt;fetch" in page
    assert f"patterns=quilt+manifest+torn&amp;case={made}" in page
    assert "No stored failure has a line" in await page_of(web, patterns="velvet")


async def test_a_pattern_that_cannot_be_tried_is_told_beside_it(web: Web) -> None:
    """With what was typed, and as text."""
    page = await page_of(web, patterns="(<b>", anchors="one\r\ntwo", unless="three")
    assert 'role="alert"' in page and "RE2" in page and "(&lt;b&gt;" in page and "<b>&#39;" not in page
    assert ">one\ntwo</textarea>" in page and ">three</textarea>" in page


async def test_a_shipped_rule_is_found_and_loaded(web: Web) -> None:
    """By its words; its patterns stand in the form and match its own examples."""
    listed = await page_of(web, q="cuda oom")
    assert f'href="{PAGE}?rule=cuda_oom&amp;q=cuda+oom"' in listed
    page = await page_of(web, rule="cuda_oom")
    assert "CUDA out of memory" in page and '<input type="hidden" name="rule" value="cuda_oom">' in page
    assert "<b>0</b> of 0 cases" in page and "It comes with the rule files of this site" in page
    assert f'<a href="{PAGE}?rule=cuda_oom"><code>cuda_oom</code></a>' in page
    assert (await web.client.get(f"{PAGE}?rule=no_such_rule")).status_code == 404
    assert "0 rules" in await page_of(web, q="no such words anywhere")


async def test_a_case_suggests_its_pattern(web: Web) -> None:
    """Who comes from the diagnosis has something to begin with."""
    made = await judged(web, line="mosaic-feeder: quilt manifest torn at seam 12")
    page = await page_of(web, case=made)
    assert "quilt\\s+manifest\\s+torn" in page and "<b>1</b> of 1 case" in page
    assert 'formaction="/rules/workbench#save"' in page


async def test_a_rule_is_saved_and_then_shown(web: Web) -> None:
    """Stored to be tested, under the name of who wrote it; the page leads to it."""
    made = await judged(web)
    answer = await web.client.post(PAGE, content=urlencode(FIELDS | {"case": made}), headers=SAME)
    assert answer.status_code == 303
    (rule,) = [rule for rule in (await web.client.get(RULES)).json()["items"] if rule["author"]["name"] == "person"]
    assert answer.headers["location"] == f"{PAGE}?rule={rule['id']}#rule"
    assert (rule["state"], rule["by"], rule["type"]) == ("proposed", "anonymous", "dataset_loading_error")
    page = await page_of(web, rule=rule["id"])
    assert 'data-state="proposed"' in page and "quilt manifest torn at seam \\d+" in page
    assert 'value="Sew it."' in page


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"case": ""}, "Choose the case"),
        ({"patterns": ""}, "Type a pattern"),
        ({"anchors": ""}, "Give an anchor"),
        ({"title": ""}, "Give the rule a title"),
        ({"patterns": "(torn"}, "RE2"),
        ({"anchors": "velvet", "patterns": "velvet"}, "its examples"),
        ({"case": "nowhere"}, "there is no diagnosis"),
    ],
)
async def test_what_cannot_be_saved_loses_nothing(web: Web, fields: dict[str, str], told: str) -> None:
    """The page comes back with the fault and all that was typed; nothing is stored."""
    given = FIELDS | {"case": await judged(web), "unless": "<i>retry</i>"} | fields
    before = (await web.client.get(RULES)).json()
    answer = await web.client.post(PAGE, content=urlencode(given), headers=SAME)
    assert answer.status_code == 400
    page = answer.text.replace("&#39;", "'")
    assert told in page[page.index('id="save"') :] and "Nothing was stored" in page
    assert "&lt;i&gt;retry&lt;/i&gt;</textarea>" in page
    assert given["anchors"] in page and given["patterns"] in page
    assert (await web.client.get(RULES)).json() == before


async def test_a_rule_in_shadow_has_its_hits_and_is_retired_there(web: Web) -> None:
    """What it would have decided, what became known of it, and the way back after the button."""
    record = await save(web.store, "other", UNKNOWN)
    rule = LearnedRule("learned_x_1", record.id, NOW, type="gpu_lost", author=Author("person"), by=HOSTILE)
    await web.store.rules.propose(rule.with_state(LearnedState.SHADOW, by=HOSTILE, why=HOSTILE, now=NOW))
    await web.store.rules.record_hits([RuleHit(rule.id, AttemptKey("other", 1), NOW, record.id)])
    page = await page_of(web, rule=rule.id)
    assert "Hits in shadow: 1, 0 confirmed, 0 wrong" in page and "nobody judged it" in page
    assert "<script>fetch" not in page
    form = urlencode({"decision": "retire", "page": "workbench"})
    answer = await web.client.post(f"/rules/{rule.id}/decide", content=form, headers=SAME)
    assert answer.headers["location"] == f"{PAGE}?rule={rule.id}#rule"
    assert 'data-state="retired"' in await page_of(web, rule=rule.id)


async def test_the_routes_do_the_same(web: Web) -> None:
    """A trial in numbers and lines; a proposal that is made once; faults as 400 with the reason."""
    made = await judged(web)
    found = (await web.client.post(TRY, json={"patterns": ["torn at seam \\d+"], "anchors": ["quilt"]})).json()
    (case,) = found["cases"]["items"]
    assert (found["cases"]["matched"], case["diagnosis"], case["is_root"]) == (1, made, True)
    start, stop = case["line"]["spans"][0]
    assert case["line"]["text"][start:stop] == "torn at seam 12"
    assert found["types"] == {"dataset_loading_error": 1} and found["is_complete"]
    body = {"patterns": [FIELDS["patterns"]], "anchors": [FIELDS["anchors"]], "title": "Torn", "source": made}
    first = await web.client.post(RULES, json=body)
    again = await web.client.post(RULES, json=body)
    assert (first.status_code, first.json()["state"]) == (200, "proposed")
    assert again.json()["id"] == first.json()["id"]
    for path, wrong in ((TRY, {"patterns": ["("]}), (TRY, {"patterns": []}), (RULES, body | {"patterns": ["velvet"]})):
        answer = await web.client.post(path, json=wrong)
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert "its examples" in answer.json()["detail"]


async def test_who_only_reads_tries_but_does_not_save(tmp_path: Path) -> None:
    """Nor does a credential of one cluster: a rule is for all of them."""
    async with serving(tmp_path, tokens=[Token(*words) for words in WORDS]) as web:
        credential = Credential("east", Scope.OPERATE, cluster="east")
        await web.store.tokens.add(StoredToken(credential, hash_of("e" * 16)))
        eyes, east = ({"authorization": f"Bearer {letter * 16}"} for letter in "re")
        body = {"patterns": ["x"], "anchors": ["xyz"], "title": "t", "source": "1"}
        assert (await web.client.post(TRY, json={"patterns": ["x"]}, headers=eyes)).status_code == 200
        assert (await web.client.post(RULES, json=body, headers=eyes)).status_code == 403
        assert (await web.client.post(RULES, json=body, headers=east)).status_code == 403
        page = (await web.client.get(PAGE, headers=eyes)).text
        assert 'id="save"' not in page and 'id="result"' in page


def test_of_a_long_line_the_part_around_the_match_is_shown() -> None:
    """Parts that were left out are marked as such; what matches is told apart."""
    assert [*pieces(LineHit("a quilt", ((2, 7),)))] == [("a ", False), ("quilt", True)]
    shown = [*pieces(LineHit("x" * 1000 + "quilt" + "y" * 1000, ((1000, 1005),)))]
    assert shown[0] == ("…", False) and shown[-1] == ("…", False) and ("quilt", True) in shown
    assert sum(len(text) for text, _ in shown) <= 402
    empty = [*pieces(LineHit("abc", ((0, 0),)))]
    assert "".join(text for text, _ in empty) == "abc"


async def test_the_page_of_rules_leads_to_the_workbench(web: Web) -> None:
    """And each rule that has a text."""
    rule = LearnedRule("learned_x_1", "01", NOW, type="gpu_lost", text="id: learned_x_1\n")
    await web.store.rules.propose(replace(rule, state=LearnedState.SHADOW))
    page = (await web.client.get("/rules")).text
    assert f'href="{PAGE}"' in page and f'href="{PAGE}?rule=learned_x_1"' in page
    assert (await web.client.get(f"{PAGE}?rule=learned_x_1")).status_code == 200
