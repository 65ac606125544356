"""Feedback, similar confirmed failures and search, over the API and on the pages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser import compress
from diagnoser.model import AttemptKey, LineBlock, Stream
from diagnoser.model.logs import Append
from diagnoser.model.queries import DiagnosisFilter
from tests.rule_files import ANALYZER
from tests.serving import ECC, UNSURE, Web, save, serving

SAME = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
LINES = b"step 1 loss 2.0\nfeeder error: catalogue snapshot 4 differs from quilt manifest\n<b>bold</b> error\n"


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        yield made


async def failed(web: Web, job: str) -> str:
    """A stored log with a diagnosis that nobody decided: its id."""
    compressor = ANALYZER.compressor()
    compressor.feed(LineBlock(Stream(), LINES))
    delta = compress.to_bytes(compressor.take())
    await web.store.logs.append([Append(AttemptKey(job), delta, 100.0, {Stream(): (0, ((1, 3),))}, False)])
    number = 1 + len(await web.store.diagnoses.page(DiagnosisFilter(), "", 100))
    return (await save(web.store, job, UNSURE, created=1_790_000_000.0 + number)).id


def path(id: str, rest: str = "feedback") -> str:
    return f"/api/v1/diagnoses/{id}/{rest}"


async def test_a_correction_comes_first_and_the_verdict_stays(web: Web) -> None:
    """The API shows the correction; what the machine said is still there; a later word takes its place."""
    made = (await save(web.store, "j", ECC)).id
    said = {"verdict": "corrected", "type": "gpu_lost", "root_line": 7, "node": "n9", "comment": "cable"}
    shown = (await web.client.post(path(made), json=said)).json()
    assert shown["type"] == "ecc_error"
    assert {name: shown["correction"][name] for name in said} == said
    shown = (await web.client.post(path(made), json={"verdict": "confirmed"})).json()
    assert shown["correction"] is None
    assert [one["verdict"] for one in shown["feedback"]] == ["confirmed", "corrected"]


async def test_the_newest_word_counts_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """Each of two corrections behind the jump takes the place of the one before."""
    times = iter((1_800_000_000.0, *(1_799_996_400.0 + number for number in range(99))))
    async with serving(tmp_path, clock=lambda: next(times)) as web:
        made = (await save(web.store, "j", ECC)).id
        for name in ("gpu_lost", "cuda_error", "node_failure"):
            said = {"verdict": "corrected", "type": name}
            shown = (await web.client.post(path(made), json=said)).json()
            assert shown["correction"]["type"] == name


@pytest.mark.parametrize(
    "body",
    [
        {"verdict": "corrected"},
        {"verdict": "confirmed", "type": "gpu_lost"},
        {"verdict": "corrected", "type": "gremlins"},
        {"verdict": "corrected", "root_line": 0},
        {"verdict": "confirmed", "by": 7},
        {"verdict": "perhaps"},
    ],
)
async def test_words_that_make_no_sense_are_refused(web: Web, body: dict[str, object]) -> None:
    """A correction says what is right, a confirmation nothing else; types are of the closed list."""
    made = (await save(web.store, "j", ECC)).id
    assert (await web.client.post(path(made), json=body)).status_code == 400
    assert (await web.client.get(f"/api/v1/diagnoses/{made}")).json()["feedback"] == []


async def test_feedback_needs_a_diagnosis_and_no_foreign_page(web: Web) -> None:
    """404 for an id that is not there; a page of another site may not say anything."""
    said = {"verdict": "confirmed"}
    assert (await web.client.post(path("nope"), json=said)).status_code == 404
    made = (await save(web.store, "j", ECC)).id
    foreign = await web.client.post(path(made), json=said, headers={"sec-fetch-site": "cross-site"})
    form = b"verdict=confirmed"
    page = await web.client.post(f"/diagnoses/{made}/feedback", content=form, headers=SAME | {"sec-fetch-site": "none"})
    assert (foreign.status_code, page.status_code) == (403, 403)


async def test_a_form_corrects_and_the_page_shows_it_first(web: Web) -> None:
    """Without script: empty fields say nothing, the answer leads back, and the correction stands before the verdict."""
    made = (await save(web.store, "j", ECC)).id
    form = b"verdict=corrected&type=gpu_lost&root_line=&node=&comment=%3Cb%3Eloose%3C/b%3E"
    answer = await web.client.post(f"/diagnoses/{made}/feedback", content=form, headers=SAME)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/diagnoses/{made}#feedback")
    page = (await web.client.get(f"/diagnoses/{made}")).text
    assert page.index("<h1>GPU lost</h1>") < page.index("Original verdict:") < page.index("<h2>ECC error</h2>")
    assert "<b>loose" not in page and "loose" in page
    assert "not ECC error" in (await web.client.get("/diagnoses")).text


async def test_a_confirmed_failure_is_shown_with_the_same_failure(web: Web) -> None:
    """Seen before: with score, type, who said so and what was done; never the attempt itself."""
    first, again = await failed(web, "quilt-1"), await failed(web, "quilt-2")
    assert (await web.client.get(path(again, "similar"))).json() == {"items": []}
    said = {"verdict": "corrected", "type": "key_error", "comment": "rebuild"}
    await web.client.post(path(first), json=said)
    (one,) = (await web.client.get(path(again, "similar"))).json()["items"]
    assert (one["id"], one["type"], one["by"], one["comment"]) == (first, "key_error", "anonymous", "rebuild")
    assert one["score"] > 0.99 and one["done"] == "advised: notify user"
    assert "Seen before" in (await web.client.get(f"/diagnoses/{again}")).text
    assert (await web.client.get(path(first, "similar"))).json() == {"items": []}


async def test_a_word_that_is_taken_back_teaches_nothing(web: Web) -> None:
    """Confirming that the cause is unknown takes an earlier type out of the memory."""
    first, again = await failed(web, "quilt-1"), await failed(web, "quilt-2")
    await web.client.post(path(first), json={"verdict": "corrected", "type": "key_error"})
    assert (await web.client.get(path(again, "similar"))).json()["items"]
    await web.client.post(path(first), json={"verdict": "confirmed"})
    assert (await web.client.get(path(again, "similar"))).json() == {"items": []}


async def test_the_log_of_an_attempt_is_searched(web: Web) -> None:
    """By words, over the API and on a page that shows log text as text."""
    await failed(web, "quilt-1")
    found = (await web.client.get("/api/v1/jobs/quilt-1/attempts/1/search", params={"q": "manifests"})).json()["items"]
    assert found[0]["line"] == 2
    page = (await web.client.get("/jobs/quilt-1/attempts/1/search", params={"q": "bold"})).text
    assert "&lt;b&gt;bold" in page and "<b>bold" not in page
    for missing in ("/api/v1/jobs/quilt-1/attempts/9/search?q=x", "/api/v1/jobs/nope/attempts/1/search?q=x"):
        assert (await web.client.get(missing)).status_code == 404
    assert (await web.client.get("/api/v1/jobs/quilt-1/attempts/1/search?q=")).status_code == 400
