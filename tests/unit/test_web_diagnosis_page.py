"""The page of a diagnosis: the head, what came before and after, links into the log, and the form that corrects."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import escape
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from diagnoser.logview.log_columns import line_id, stream_key
from diagnoser.model import AttemptKey, EvidenceLine, Job, LearnedState, LineBlock, Mode, RootCause, Stream, Symptom
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.taxonomy import DEFINITIONS, FailureType
from diagnoser.wording.words import name
from tests.serving import HOSTILE, NOW, UNSURE, Web, save, serving, store_log, verdict
from tests.unit.test_web_plans import planned

KEY = AttemptKey("llm-7b", 1)
LOG = "/jobs/llm-7b/attempts/1/log"
SAME = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
ROOT = RootCause(40, "ValueError: seam", 1, "gpu-1")
TIMEOUT = FailureType.NCCL_TIMEOUT_ERROR
FAILED = verdict(
    FailureType.VALUE_ERROR,
    root_cause=ROOT,
    evidence=(EvidenceLine(40, "ValueError: seam", "raised first", 1),),
    symptoms=(Symptom(5, "step 5 was slow", TIMEOUT), Symptom(41, "it timed out", TIMEOUT)),
)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        lines = [f"2026-09-21 14:00:{step:02d} step {step}" for step in range(1, 40)]
        lines[4] = "step 5 was slow"
        lines += ["ValueError: seam", "it timed out"]
        data = "".join(line + "\n" for line in lines).encode()
        await store_log(made.store, KEY, LineBlock(Stream("stdout", "gpu-1", 1), data, received=NOW - 100))
        yield made


async def page_of(web: Web, id: str, query: str = "") -> str:
    return (await web.client.get(f"/diagnoses/{id}{query}")).text


def section(page: str, heading: str) -> str:
    start = page.index(f"<h2>{heading}</h2>")
    return page[start : page.index("</section>", start)]


async def test_the_head_leads_into_the_log(web: Web) -> None:
    """Cause, rank and node; one button, to the root line in the log; the rank leads to the log of that rank."""
    page = await page_of(web, (await save(web.store, KEY.job, FAILED)).id)
    line = line_id(Stream("stdout", "gpu-1", 1), 40)
    assert f'<a class="button" href="{LOG}?at={line}#L{line}">Show in the log</a>' in page
    assert page.count('class="button"') == 1
    assert f'href="{LOG}?ranks=1" title="The log of this rank">rank 1</a>' in page


async def test_a_waiting_plan_is_approved_in_the_head(web: Web) -> None:
    """What has to be decided is the one button; advice waits for nobody."""
    await planned(web, mode=Mode.APPROVE)
    (waiting,) = (await web.client.get("/api/v1/diagnoses?job=j")).json()["items"]
    page = await page_of(web, waiting["id"])
    assert re.search(
        r'action="/plans/plan-j/decide"><input[^>]+><button class="button" name="decision" value="approve">Approve:',
        page,
    )
    assert page.count('class="button"') == 1
    advised = await page_of(web, (await save(web.store, KEY.job, FAILED, plan=True, created=NOW + 9)).id)
    assert "Approve:" not in advised


async def test_evidence_leads_to_its_line_in_the_log(web: Web) -> None:
    """Every line number is a link that the log answers with that very line."""
    page = await page_of(web, (await save(web.store, KEY.job, FAILED)).id)
    addresses = re.findall(r'<a class="no" href="([^"#]+)#L([^"]+)"', page)
    assert addresses
    for address, line in addresses:
        shown = (await web.client.get(address)).text
        assert re.search(rf'<li id="L{line}"[^>]*aria-current="true"', shown)


async def test_what_came_first_is_not_said_to_follow(web: Web) -> None:
    """Symptoms before the root have a place of their own."""
    page = await page_of(web, (await save(web.store, KEY.job, FAILED)).id)
    assert "it timed out" in section(page, "What followed")
    assert "step 5 was slow" not in section(page, "What followed")
    assert "step 5 was slow" in section(page, "What came before")


async def test_an_unknown_failure_shows_how_the_ranks_ended(web: Web) -> None:
    """The last lines of each rank, those that end alike once, who fell silent first on top."""
    key = AttemptKey("odd", 1)
    for rank in range(4):
        last = "the frobnicator stopped" if rank == 2 else f"waiting for peer {rank}"
        text = f"2026-09-21 14:00:01 begin\n2026-09-21 14:0{1 if rank == 2 else 9}:00 {last}\n"
        await store_log(web.store, key, LineBlock(Stream("stdout", "n1", rank), text.encode(), received=NOW))
    page = await page_of(web, (await save(web.store, "odd", verdict(FailureType.UNKNOWN), created=NOW + 9)).id)
    shown = section(page, "Last lines")
    assert shown.index("frobnicator") < shown.index("waiting for peer")
    assert "3 ranks end alike" in shown and "0\u20131, 3" in shown
    assert "before all others" in shown
    known = await page_of(web, (await save(web.store, KEY.job, FAILED)).id)
    assert "<h2>Last lines</h2>" not in known


async def test_the_page_says_what_was_not_seen(web: Web) -> None:
    """What a verdict could have rested on and did not; nothing of it where it was there."""
    await web.store.jobs.register(Job("mapped", nodes=("gpu-1",), rank_nodes={1: "gpu-1"}, created=NOW))
    bare = await page_of(web, (await save(web.store, KEY.job, FAILED)).id)
    mapped = await page_of(web, (await save(web.store, "mapped", FAILED, created=NOW + 9)).id)
    assert "no line of a node's own log; no list of the job's nodes" in bare.replace("&#39;", "'")
    assert "no list of the job" not in mapped


async def test_the_form_begins_with_the_line_that_was_chosen(web: Web) -> None:
    """Who comes from the log with a line and a node finds them in the form, as text."""
    made = (await save(web.store, KEY.job, FAILED)).id
    page = await page_of(web, made, "?" + urlencode({"root_line": "12", "node": '"><b>n'}))
    assert 'name="root_line" inputmode="numeric" value="12"' in page
    assert "<b>n" not in page and "&#34;&gt;&lt;b&gt;n" in page


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"verdict": "corrected", "root_line": "4711"}, "The log has no line 4711"),
        ({"verdict": "corrected", "root_line": "forty"}, "Give the line by its number"),
        ({"verdict": "corrected"}, "a correction needs at least one of"),
        ({"verdict": "confirmed", "type": "gpu_lost"}, "to name another type"),
        ({"verdict": "corrected", "node": "no such\u00a0name"}, "has no spaces"),
        ({"verdict": "corrected", "type": "gremlins"}, "Choose one of the listed causes"),
        ({"root_line": "3"}, "Choose Confirm or Correct"),
        ({"verdict": "corrected", "rank": "first"}, "Give the rank by its number"),
    ],
)
async def test_what_cannot_be_stored_is_told_in_place(web: Web, fields: dict[str, str], told: str) -> None:
    """The page comes back with the fault beside the form and all that was typed; nothing is stored."""
    made = (await save(web.store, KEY.job, FAILED)).id
    typed = fields | {"comment": "swapped <i>it</i>"}
    answer = await web.client.post(f"/diagnoses/{made}/feedback", content=urlencode(typed), headers=SAME)
    assert answer.status_code == 400
    form = answer.text[answer.text.index('id="feedback"') :].replace("&#39;", "'")
    assert told in form and 'role="alert"' in form
    assert 'value="swapped &lt;i&gt;it&lt;/i&gt;"' in form
    if fields.get("root_line"):
        assert f'value="{fields["root_line"]}"' in form
    assert (await web.client.get(f"/api/v1/diagnoses/{made}")).json()["feedback"] == []


async def test_a_line_of_the_log_can_be_named_as_the_root(web: Web) -> None:
    """With a line that is there the correction is stored, and the page leads back to it."""
    made = (await save(web.store, KEY.job, FAILED)).id
    form = urlencode({"verdict": "corrected", "root_line": "5"})
    answer = await web.client.post(f"/diagnoses/{made}/feedback", content=form, headers=SAME)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/diagnoses/{made}#feedback")
    (said,) = (await web.client.get(f"/api/v1/diagnoses/{made}")).json()["feedback"]
    assert said["root_line"] == 5


async def test_causes_ranks_and_nodes_are_chosen_from_lists(web: Web) -> None:
    """Every cause with its definition; the ranks and nodes of the registration and of the log."""
    await web.store.jobs.register(Job(KEY.job, nodes=("gpu-1", "gpu-7"), rank_nodes={0: "gpu-0"}, created=NOW))
    page = await page_of(web, (await save(web.store, KEY.job, FAILED)).id)
    for kind, definition in DEFINITIONS.items():
        offered = f'<option value="{name(kind)}" label="{escape(definition)}">' in page
        assert offered == (kind is not FailureType.UNKNOWN), kind
    assert page.count("<dt>ECC error</dt>") == 1
    ranks, nodes = (re.search(rf'<datalist id="{of}">(.*?)</datalist>', page) for of in ("ranks", "nodes"))
    assert ranks and re.findall(r'value="(\d+)"', ranks[1]) == ["0", "1"]
    assert nodes and re.findall(r'value="(.*?)"', nodes[1]) == ["gpu-1", "gpu-7", "gpu-0"]


async def test_a_cause_is_taken_by_its_name_and_the_effect_is_told(web: Web) -> None:
    """Which case it became, and what becomes of the rule; the rank is stored as well."""
    made = (await save(web.store, KEY.job, FAILED)).id
    form = urlencode({"verdict": "corrected", "type": "gpu Lost", "rank": "1", "root_line": "40"})
    assert (await web.client.post(f"/diagnoses/{made}/feedback", content=form, headers=SAME)).status_code == 303
    (said,) = (await web.client.get(f"/api/v1/diagnoses/{made}")).json()["feedback"]
    assert (said["type"], said["rank"]) == ("gpu_lost", 1)
    page = await page_of(web, made)
    assert "<b>case 1</b>" in page and "A rule is being written from it" in page and "data-refresh" in page
    assert f'href="/rules/workbench?case={made}"' in page and ", rank 1" in page
    (rule,) = await web.store.rules.page(LearnedRuleQuery(source=made), "", 2)
    await web.store.rules.change(rule, rule.with_state(LearnedState.REFUSED, by="diagnoser", why=HOSTILE, now=NOW))
    page = await page_of(web, made)
    assert "was refused" in page and "data-refresh" not in page and "<script>fetch" not in page


async def test_a_confirmed_verdict_is_a_case_without_a_new_rule(web: Web) -> None:
    """A rule named the cause already, and the page says so; a cause that stays unknown is no case."""
    made = (await save(web.store, KEY.job, FAILED)).id
    await web.client.post(f"/diagnoses/{made}/feedback", content=b"verdict=confirmed", headers=SAME)
    assert "<b>case 1</b>" in (page := await page_of(web, made)) and "No rule is written from it" in page
    odd = (await save(web.store, "odd", verdict(FailureType.UNKNOWN), created=NOW + 9)).id
    await web.client.post(f"/diagnoses/{odd}/feedback", content=b"verdict=confirmed", headers=SAME)
    assert "It becomes no case" in await page_of(web, odd)


async def test_hostile_lines_stay_text_at_the_end_of_a_log(web: Web) -> None:
    """The last lines of an unknown failure are log text like any other."""
    data = f"step 1\n{HOSTILE}\n".encode()
    await store_log(web.store, AttemptKey("rlhf", 1), LineBlock(Stream(), data, received=NOW))
    page = await page_of(web, (await save(web.store, "rlhf", replace(UNSURE, root_cause=None))).id)
    assert "&lt;script&gt;fetch" in section(page, "Last lines")
    assert "<script>fetch" not in page and "\u202e" not in page


async def two_ranks(web: Web) -> tuple[str, list[Stream]]:
    """A failure in whose log two streams have a line 2; its diagnosis, which cites neither."""
    key, streams = AttemptKey("pair"), [Stream("stdout", "gpu-0", 0), Stream("stdout", "gpu-1", 1)]
    for stream in streams:
        text = f"2026-09-21 14:00:01 begin\n2026-09-21 14:00:02 the seam of rank {stream.rank}\n"
        await store_log(web.store, key, LineBlock(stream, text.encode(), received=NOW))
    return (await save(web.store, "pair", verdict(FailureType.UNKNOWN), created=NOW + 9)).id, streams


async def corrected(web: Web, id: str, **fields: str) -> httpx.Response:
    return await web.client.post(f"/diagnoses/{id}/feedback", content=urlencode(fields), headers=SAME)


async def test_a_confirmed_line_keeps_its_stream(web: Web) -> None:
    """The line of rank 1 that was chosen in the log is stored as rank 1's, and the page says so."""
    made, (_, second) = await two_ranks(web)
    form = {"verdict": "corrected", "type": "value_error", "root_line": "2", "stream": stream_key(second)}
    assert (await corrected(web, made, **form)).status_code == 303
    (said,) = (await web.client.get(f"/api/v1/diagnoses/{made}")).json()["feedback"]
    assert said["root_line"] == 2
    assert said["root_stream"] == {"source": "stdout", "node": "gpu-1", "rank": 1, "provenance": "job"}
    assert "line 2 of stdout, rank 1 on gpu-1" in await page_of(web, made)


async def test_a_number_that_several_streams_have_is_asked_for(web: Web) -> None:
    """Nothing is stored, the streams are offered, and what was typed stands."""
    made, streams = await two_ranks(web)
    answer = await corrected(web, made, verdict="corrected", root_line="2", comment="a new seam")
    assert answer.status_code == 400
    assert "2 streams have a line 2: choose whose it is." in answer.text and "a new seam" in answer.text
    assert all(f'<option value="{stream_key(stream)}">' in answer.text for stream in streams)
    assert (await web.client.get(f"/api/v1/diagnoses/{made}")).json()["feedback"] == []


async def test_the_api_takes_the_row_of_a_line(web: Web) -> None:
    """Its id names stream and number; one that contradicts the number, or that no row has, is refused."""
    made, (first, _) = await two_ranks(web)
    row = line_id(first, 2)
    url, body = f"/api/v1/diagnoses/{made}/feedback", {"verdict": "corrected", "type": "value_error"}
    for wrong in ({"root_id": row, "root_line": 1}, {"root_id": "0123456789-2"}, {"root_id": "x"}):
        assert (await web.client.post(url, json=body | wrong)).status_code == 400
    answer = await web.client.post(url, json=body | {"root_id": row})
    assert (answer.json()["correction"]["root_line"], answer.json()["correction"]["root_stream"]["rank"]) == (2, 0)


async def test_an_unknown_failure_shows_what_else_failed(web: Web) -> None:
    """Incidents of the same cluster within the hour; not those of yesterday, nor its own."""
    await save(web.store, "before", verdict(FailureType.IMPORT_ERROR), created=NOW - 86_400)
    await save(web.store, "now", verdict(FailureType.ECC_ERROR, nodes=()), created=NOW)
    page = await page_of(web, (await save(web.store, "odd", verdict(FailureType.UNKNOWN), created=NOW + 60)).id)
    shown = section(page, "Other failures within the hour")
    assert "ECC error" in shown and "Import error" not in shown and "Unknown" not in shown


async def test_the_time_axis_is_there_without_script(web: Web) -> None:
    """Marks and ranks are links into the log, the same stands in a table, and log text stays text."""
    cited = EvidenceLine(5, "step 5 was slow", HOSTILE, 1)
    record = await save(web.store, KEY.job, replace(FAILED, evidence=(*FAILED.evidence, cited)))
    shown = section(await page_of(web, record.id), "Time axis")
    line = line_id(Stream("stdout", "gpu-1", 1), 40)
    assert f'<a href="{LOG}?at={line}#L{line}" class="mark root">' in shown
    assert re.search(rf'<a href="{re.escape(LOG)}\?ranks=1"[^>]*><title>rank 1 on gpu-1', shown)
    assert shown.count("<table") == 2 and "root cause (raised first)" in shown
    assert "<script>" not in shown and "&lt;script&gt;" in shown
