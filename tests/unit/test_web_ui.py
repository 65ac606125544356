"""The pages as they leave the server: what they say, and that nothing of a log becomes markup."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.model import (
    AskReason,
    AttemptKey,
    Event,
    EventKind,
    EvidenceLine,
    Hypotheses,
    Line,
    ModelEffect,
    ModelUse,
    RulesVerdict,
    Stream,
    ToolUse,
)
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.web.pages.rendering import STATIC, TEMPLATES
from tests.serving import ECC, HOSTILE, NOW, UNSURE, StoredLogs, fill, save, serving, verdict


async def test_an_empty_list_tells_how_to_begin(tmp_path: Path) -> None:
    """Before the first diagnosis the page shows the two requests that lead to one, for this very address."""
    async with serving(tmp_path) as web:
        page = (await web.client.get("/diagnoses")).text
    assert "No diagnosis yet" in page
    assert "http://diagnoser.test/api/v1/logs?job=my-job" in page
    assert "/api/v1/jobs/my-job/events" in page


async def test_the_list_shows_what_matters(tmp_path: Path) -> None:
    """Each row names cause, category, job, place, confidence, who decided, what to do and when."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "llm-7b", ECC, created=NOW - 200)
        page = (await web.client.get("/diagnoses")).text
    row = page[page.index("<tbody>") : page.index("</tbody>")]
    for shown in (
        f'href="/diagnoses/{record.id}">ECC error<',
        'class="badge infrastructure"',
        'href="/jobs/llm-7b"',
        "hgx-04",
        "rank 12",
        "97\u2009%",
        ">ecc_error_seen</code>",
        "Cordon, resubmit",
        'title="2026-09-21 14:10:00 UTC">3\u00a0min ago<',
        "Contained ECC error",
    ):
        assert shown in row


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("category=&type=&q=&job=&within=", 5),
        ("category=script", 1),
        ("within=1h", 3),
        ("q=nothing-like-this", 0),
        ("utm_source=mail", 5),
    ],
)
async def test_the_filters_of_the_list(tmp_path: Path, query: str, found: int) -> None:
    """Empty fields of the form mean no filter; unknown parameters in a link do no harm."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        page = await web.client.get(f"/diagnoses?{query}")
    assert page.status_code == 200
    assert page.text.count('<tr id="d-') == found
    assert ("Nothing matches" in page.text) is (found == 0)


async def test_facets_lead_to_a_narrower_list_and_back(tmp_path: Path) -> None:
    """Each value is a link that keeps the other filters; the chosen one leads out of it, and the form keeps it."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        page = (await web.client.get("/diagnoses?category=infrastructure")).text
        narrowed = (
            await web.client.get("/diagnoses?category=infrastructure&amp;cluster=east".replace("&amp;", "&"))
        ).text
    assert 'href="/diagnoses?category=infrastructure&amp;cluster=east">east</a>' in page
    assert 'href="/diagnoses?category=infrastructure" aria-current="true">east</a>' in narrowed
    assert '<input type="hidden" name="cluster" value="east">' in narrowed


async def test_a_filter_that_cannot_be_is_a_clear_page(tmp_path: Path) -> None:
    """A wrong value in the address is told on a page, with the values that are right."""
    async with serving(tmp_path) as web:
        page = await web.client.get("/diagnoses?category=hardware")
    assert page.status_code == 400
    assert "infrastructure" in page.text


async def test_older_pages_keep_the_filters(tmp_path: Path) -> None:
    """The link to older diagnoses carries the search on, and the pages show everything once."""
    async with serving(tmp_path) as web:
        for number in range(60):
            await save(web.store, f"job-{number}", ECC, created=NOW - 900 + number)
        first = (await web.client.get("/diagnoses?category=infrastructure")).text
        older = re.search(r'href="([^"]+)" rel="next"', first)
        assert older
        second = (await web.client.get(older.group(1).replace("&amp;", "&"))).text
    assert "category=infrastructure" in older.group(1)
    assert [page.count('<tr id="d-') for page in (first, second)] == [50, 10]
    assert 'rel="next"' not in second
    assert "data-live" in first
    assert "data-live" not in second


async def test_new_lines_are_open_where_the_failure_is_unknown(tmp_path: Path) -> None:
    """With their numbers, as text; on the page of a known failure on demand; without a baseline not at all."""
    why = "in none of 5 clean runs"
    new = (EvidenceLine(4, HOSTILE, why), EvidenceLine(9, "seam open", why, source="stderr"))
    async with serving(tmp_path) as web:
        pages = {}
        shown = {"a": replace(UNSURE, new_lines=new), "b": replace(ECC, new_lines=new), "c": ECC}
        for at, (job, found) in enumerate(shown.items()):
            record = await save(web.store, job, found, created=NOW + at)
            pages[job] = (await web.client.get(f"/diagnoses/{record.id}")).text
    unknown = pages["a"][pages["a"].index('id="new-lines"') :]
    assert "<details open><summary>2 lines that clean runs" in unknown
    assert ">4</a><code>&lt;script&gt;" in unknown and "<script>fetch" not in unknown
    assert '>9</a><code>seam open</code><span class="note">in none of 5 clean runs, stderr' in unknown
    assert "<details><summary>2 lines that clean runs" in pages["b"]
    assert "new-lines" not in pages["c"]


async def test_the_verdict_comes_first(tmp_path: Path) -> None:
    """The page of a diagnosis goes from the verdict over what to do to the evidence and how it was read."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "llm-7b", ECC, plan=True)
        page = (await web.client.get(f"/diagnoses/{record.id}")).text
    order = [
        "<h1>ECC error</h1>",
        "Rank 12 on hgx-04 had an ECC memory error (Xid 94); 1 other rank then waited and timed out.",
        'id="root"',
        "Cordon the node and resubmit",
        "reset or replace GPU",
        "advice only, nothing was sent",
        "the kernel log of this node names the GPU",
        "<h2>Evidence</h2>",
        "Xid 94 reports a contained",
        "<h2>What followed</h2>",
        "<h2>Rejected causes</h2>",
        "a warning that healthy runs print as well",
        "<h2>How it was diagnosed</h2>",
        "52.5 times smaller",
        "routine progress lines",
        "5d2f9c01ab77",
        f"/api/v1/diagnoses/{record.id}",
    ]
    places = [page.index(part) for part in order]
    assert places == sorted(places)


async def test_commands_in_the_advice_read_as_commands(tmp_path: Path) -> None:
    """What stands between backticks in a rule's advice is set as code, and escaped like everything else."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "j", verdict(mitigation="Run `dcgmi diag -r 3 <node>`, then resubmit."))
        page = (await web.client.get(f"/diagnoses/{record.id}")).text
    assert "<p>Run <code>dcgmi diag -r 3 &lt;node&gt;</code>, then resubmit.</p>" in page


async def test_kept_lines_stand_around_the_evidence(tmp_path: Path) -> None:
    """Where the kept lines of the attempt can be read, they are shown as context."""
    lines = [Line(Stream(), 18_232, "iteration 900 | lm loss: 2.31", "")]
    async with serving(tmp_path, context=StoredLogs(lines)) as web:
        record = await save(web.store, "llm-7b", ECC)
        page = (await web.client.get(f"/diagnoses/{record.id}")).text
    assert "iteration 900 | lm loss: 2.31" in page


async def test_log_text_never_becomes_markup(tmp_path: Path) -> None:
    """Markup and control characters in a line or a name are shown as text on every page that has them."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "rlhf", UNSURE)
        event = Event(EventKind.EXIT, NOW, code=1, reason="<u>why</u>", node="<s>n</s>")
        await web.store.jobs.add_event(AttemptKey("rlhf", 1), event)
        pages = [(await web.client.get(path)).text for path in ("/", f"/diagnoses/{record.id}", "/jobs/rlhf")]
    for page in pages:
        assert "&lt;script&gt;fetch" in page
        for raw in ("<script>fetch", "<img src=x", "<b>n1", "<i>why", "<u>why", "<s>n", "\x1b", "\u202e"):
            assert raw not in page


async def test_a_search_never_becomes_markup(tmp_path: Path) -> None:
    """What the address says is shown as text too."""
    async with serving(tmp_path) as web:
        page = (await web.client.get("/", params={"q": '"><script>alert(1)</script>'})).text
        lost = (await web.client.get("/jobs/<script>alert(1)<%2Fscript>")).text
    assert "<script>alert" not in page + lost


async def test_a_replaced_diagnosis_says_so(tmp_path: Path) -> None:
    """Who follows an old link learns that there is a later verdict."""
    async with serving(tmp_path) as web:
        old = await save(web.store, "j", verdict(FailureType.UNKNOWN), created=NOW - 100)
        await save(web.store, "j", ECC, created=NOW)
        page = (await web.client.get(f"/diagnoses/{old.id}")).text
    assert "This diagnosis does not stand any more" in page


async def test_the_page_of_a_job_is_a_timeline(tmp_path: Path) -> None:
    """The latest attempt stands first, each with how long it ran, its verdict and its events."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        page = (await web.client.get("/jobs/llm-70b-pretrain")).text
    whole, page = page, page[page.index('class="timeline"') :]
    assert page.index("Attempt 2") < page.index("ECC error") < page.index("Attempt 1") < page.index("Out of memory")
    assert "ran 2\u00a0h 4\u00a0min" in page
    assert "16 nodes" in whole
    assert "code 1 NonZeroExitCode" in page


async def test_attempts_without_a_verdict(tmp_path: Path) -> None:
    """A job that only was registered, one that runs and one that just ended each say what they are."""
    async with serving(tmp_path) as web:
        await web.client.post("/api/v1/jobs", json={"id": "new"})
        await web.store.jobs.add_event(AttemptKey("runs"), Event(EventKind.STARTED, NOW - 60))
        await web.store.jobs.add_event(AttemptKey("ended"), Event(EventKind.EXIT, NOW - 1, code=1))
        pages = [(await web.client.get(f"/jobs/{job}")).text for job in ("new", "runs", "ended")]
    assert "No attempt has started yet" in pages[0]
    assert "Running, as far as the service knows" in pages[1]
    assert "not diagnosed yet" in pages[2]


def test_no_template_marks_text_as_safe() -> None:
    """The one way around the escaping of log text is used nowhere."""
    for file in TEMPLATES.iterdir():
        text = file.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), file.name


def test_pages_hold_no_script_or_style_of_their_own() -> None:
    """Nothing inline, so that the content policy can forbid it; and nothing from another host."""
    for file in [*TEMPLATES.iterdir(), *STATIC.iterdir()]:
        text = re.sub(r"/\*!.*?\*/", "", file.read_text(), flags=re.DOTALL)  # licences name where they are from
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=\"|javascript:", text), file.name
        assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z0-9.-]+\.[a-z]{2,}", text), file.name


async def test_what_a_model_had_to_do_with_a_verdict_is_shown(tmp_path: Path) -> None:
    """Why it was asked, what the rules said and what it changed; and that a person has to look, also in the list."""
    before = RulesVerdict(FailureType.RUNTIME_ERROR, "rule:x", 0.72, line=3, action=Action.NOTIFY_USER)
    use = ModelUse("m", "failure_agent/v4", "ab12", asked=(AskReason.UNSURE,), effect=ModelEffect.DECIDED)
    pair = Hypotheses(FailureType.ECC_ERROR, FailureType.GPU_LOST, "whether <i>the card</i> answers")
    use = replace(use, tools=(ToolUse("node_log(node='gpu-1')", 3), ToolUse("search_log(pattern='(')", None)))
    use = replace(use, hypotheses=pair)
    heard = replace(ECC, decided_by="llm:m", model=replace(use, before=before), needs_review="the model says <b>so</b>")
    async with serving(tmp_path) as web:
        record = await save(web.store, "llm-7b", heard, created=NOW - 200)
        listed = (await web.client.get("/diagnoses")).text
        page = (await web.client.get(f"/diagnoses/{record.id}")).text
        shape = (await web.client.get(f"/api/v1/diagnoses/{record.id}")).json()
    assert ">needs review</span>" in listed
    assert "Needs review: the model says &lt;b&gt;so&lt;/b&gt;" in page
    assert "verdicts of its kind are often wrong" in page
    assert 'node_log(node=&#39;gpu-1&#39;)</code> <span class="faint">3 lines</span>' in page
    assert '<span class="faint">refused</span>' in page
    assert ". To tell them apart: whether &lt;i&gt;the card&lt;/i&gt; answers" in page
    assert "the model&#39;s verdict stands: type runtime_error \u2192 ecc_error" in page
    assert (shape["needs_review"], shape["model"]["asked"]) == (heard.needs_review, ["unsure"])
    assert shape["model"]["before"]["type"] == "runtime_error"
