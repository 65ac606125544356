"""The list of jobs, as page and as JSON."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from diagnoser import compress
from diagnoser.model import AttemptKey, Event, EventKind, Job, LineBlock
from tests.contract.records import OUT, append
from tests.serving import DONE, ECC, HOSTILE, NOW, Web, save, serving

TRAINING = "step 300/20000 loss: 4.7010 step_time: 0.25 tokens/s: 512000\n"


async def prints(web: Web, job: str, text: str, at: float = NOW - 30) -> None:
    block = LineBlock(OUT, text.encode(), 1, None, at)
    piece = append(AttemptKey(job), delta=compress.pack([block]), at=at, lines=text.count("\n"))
    await web.store.logs.append([replace(piece, raw=len(text))])


async def fill(web: Web) -> None:
    await prints(web, "trains", TRAINING)
    await prints(web, "quiet", TRAINING, NOW - 3_600)
    await save(web.store, "broken", ECC)
    await save(web.store, "fine", DONE, created=NOW - 100)


async def test_a_running_job_shows_where_it_stands(tmp_path: Path) -> None:
    """State, stage, step, speed, loss, the end it heads for, and its last line."""
    async with serving(tmp_path) as web:
        await fill(web)
        page = (await web.client.get("/jobs")).text
        (run, *_) = (await web.client.get("/api/v1/jobs")).json()["items"]
    row = page[page.index('id="a-trains-1"') : page.index('id="a-quiet-1"')]
    for shown in (
        "running",
        "training",
        "step 300 of 20\u2009000",
        "4 steps/s",
        "512\u2009000 tokens/s",
        "4.701",
        "in 1",
    ):
        assert shown in row
    assert TRAINING.strip() in row
    assert (run["job"], run["state"], run["step"], run["total_steps"]) == ("trains", "running", 300, 20_000)
    assert (run["stage"], run["step_seconds"], run["verdict"]) == ("train", 0.25, None)


async def test_a_silent_job_says_for_how_long(tmp_path: Path) -> None:
    """And promises no end."""
    async with serving(tmp_path) as web:
        await fill(web)
        page = (await web.client.get("/jobs?state=silent")).text
    assert "no line for 1\u00a0h" in page
    assert "finishes" not in page
    assert "trains" not in page


@pytest.mark.parametrize(
    ("state", "jobs"),
    [
        ("", ["trains", "quiet", "broken", "fine"]),
        ("running", ["trains"]),
        ("silent", ["quiet"]),
        ("ended", ["broken", "fine"]),
        ("failed", ["broken"]),
    ],
)
async def test_a_state_lists_its_jobs(tmp_path: Path, state: str, jobs: list[str]) -> None:
    """All at once, one a page, and on the page of that state, which is marked as the chosen one."""
    async with serving(tmp_path) as web:
        await fill(web)
        query = {"state": state} if state else {}
        whole = (await web.client.get("/api/v1/jobs", params=query)).json()
        paged, cursor = [], ""
        while cursor is not None:
            page = (await web.client.get("/api/v1/jobs", params=query | {"limit": 1, "cursor": cursor})).json()
            paged += [item["job"] for item in page["items"]]
            cursor = page["next"]
        shown = (await web.client.get("/jobs", params=query)).text
    assert [item["job"] for item in whole["items"]] == paged == jobs
    assert whole["next"] is None
    assert [job for job in jobs if f'id="a-{job}-1"' in shown] == jobs
    assert f'href="/jobs{"?state=" + state if state else ""}" aria-current="page"' in shown


async def test_a_failed_job_leads_to_its_diagnosis(tmp_path: Path) -> None:
    """On the page and in the answer."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "broken", ECC)
        page = (await web.client.get("/jobs")).text
        (run,) = (await web.client.get("/api/v1/jobs")).json()["items"]
    assert f'href="/diagnoses/{record.id}">ECC error</a>' in page
    assert run["state"] == "failed"
    assert (run["verdict"]["id"], run["verdict"]["type"]) == (record.id, "ecc_error")


async def test_a_hostile_line_stays_text(tmp_path: Path) -> None:
    """No markup, no control or text-direction characters."""
    async with serving(tmp_path) as web:
        await prints(web, "evil", HOSTILE + "\n")
        page = (await web.client.get("/jobs")).text
    assert "<script>fetch" not in page
    assert "&lt;script&gt;fetch" in page
    assert "\x1b" not in page
    assert "\u202e" not in page


async def test_pages_lead_on_and_back(tmp_path: Path) -> None:
    """The next page keeps the state; the first one is one click away."""
    async with serving(tmp_path) as web:
        for number in range(51):
            await web.store.jobs.add_event(AttemptKey(f"job-{number:02d}"), Event(EventKind.EXIT, NOW - number, code=0))
        first = (await web.client.get("/jobs?state=ended")).text
        link = first[first.index("/jobs?state=ended&amp;cursor=") :].split('"')[0].replace("&amp;", "&")
        second = (await web.client.get(link)).text
    assert second.count("<tr id=") == 1
    assert 'href="/jobs?state=ended">First page</a>' in second
    assert "Next page" not in second


@pytest.mark.parametrize("query", ["state=asleep", "cursor=nonsense", "state=running&cursor=ended:1:1:j", "limit=0"])
async def test_a_query_that_means_nothing_is_refused(tmp_path: Path, query: str) -> None:
    """With a sentence, as page and as JSON."""
    async with serving(tmp_path) as web:
        program = await web.client.get(f"/api/v1/jobs?{query}")
        page = await web.client.get(f"/jobs?{query}")
    assert (program.status_code, page.status_code) == (400, 400)
    assert program.json()["detail"]
    assert "<h1>" in page.text


async def test_before_the_first_job_the_page_says_how_to_begin(tmp_path: Path) -> None:
    """With a state it offers all of them instead."""
    async with serving(tmp_path) as web:
        assert "No job yet" in (await web.client.get("/jobs")).text
        assert "Show all jobs" in (await web.client.get("/jobs?state=silent")).text


@pytest.mark.parametrize(
    ("query", "jobs"),
    [
        ("user=maria", ["trains", "broken"]),
        ("user=maria&state=failed", ["broken"]),
        ("user=maria&cluster=west", []),
        ("cluster=east", ["trains", "broken"]),
        ("cluster=east&state=failed", ["broken"]),
        ("cluster=east&state=failed&sort=job", ["broken"]),
        ("framework=nemo", ["quiet"]),
        ("framework=megatron&sort=job", ["broken", "trains"]),
    ],
)
async def test_a_filter_finds_jobs_by_what_the_scheduler_knows(tmp_path: Path, query: str, jobs: list[str]) -> None:
    """User, cluster and framework, with a state and in an order; the page offers to save it as a view."""
    async with serving(tmp_path) as web:
        for name in ("trains", "broken"):
            await web.store.jobs.register(Job(name, cluster="east", framework="megatron", tenant="maria"))
        await web.store.jobs.register(Job("quiet", cluster="west", framework="nemo", tenant="kai"))
        await fill(web)
        listed, cursor = list[str](), ""
        while cursor is not None:
            params = dict(parse_qsl(query)) | {"limit": "1", "cursor": cursor}
            found = (await web.client.get("/api/v1/jobs", params=params)).json()
            listed += [item["job"] for item in found["items"]]
            cursor = found["next"]
        page = (await web.client.get(f"/jobs?{query}")).text
    assert listed == jobs
    assert [job for job in jobs if f'id="a-{job}-1"' in page] == jobs
    assert "Save this view" in page
