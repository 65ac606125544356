"""Jobs and their events over the API."""

from pathlib import Path
from typing import Any

import pytest

from diagnoser.model import AttemptKey, CheckpointPhase, EventKind, Provenance
from diagnoser.model.queries import DiagnosisFilter
from tests.serving import ECC, NOW, OOM, save, serving

JOBS = "/api/v1/jobs"


class CountingWake:
    def __init__(self) -> None:
        self.told = 0

    def notify(self) -> None:
        self.told += 1

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - the shape of the port
        return


async def test_a_registered_job_reads_back(tmp_path: Path) -> None:
    """All fields of a registration are stored and shown."""
    job: dict[str, Any] = {
        "id": "llm-7b_123.4",
        "cluster": "east",
        "name": "pretrain",
        "nodes": ["n1", "n2"],
        "rank_nodes": {"0": "n1", "8": "n2"},
        "framework": "megatron",
        "checkpoint_dir": "/ckpt",
        "tenant": "ida",
        "labels": {"team": "nlp"},
    }
    async with serving(tmp_path, base_url="https://diagnoser.example") as web:
        made = await web.client.post(JOBS, json=job)
        read = await web.client.get(f"{JOBS}/llm-7b_123.4")
    assert made.status_code == 200
    expected = job | {"created": "2026-09-21T14:13:20Z", "url": "https://diagnoser.example/jobs/llm-7b_123.4"}
    assert made.json() == expected
    page = read.json()
    assert [attempt["number"] for attempt in page.pop("attempts")] == [1]
    assert page == expected


async def test_registering_again_completes(tmp_path: Path) -> None:
    """A second registration adds what it gives and leaves the rest."""
    async with serving(tmp_path) as web:
        await web.client.post(JOBS, json={"id": "j", "name": "first", "nodes": ["n1"]})
        answer = await web.client.post(JOBS, json={"id": "j", "cluster": "east"})
    shown = answer.json()
    assert (shown["name"], shown["nodes"], shown["cluster"]) == ("first", ["n1"], "east")


async def test_a_nul_in_words_about_a_job_is_dropped(tmp_path: Path) -> None:
    """PostgreSQL could refuse every query that reads them."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(JOBS, json={"id": "j", "name": "a\0b", "labels": {"te\0am": "nl\0p"}})
    assert (answer.json()["name"], answer.json()["labels"]) == ("ab", {"team": "nlp"})


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"name": "no id"}, "body.id"),
        ({"id": "a b"}, "body.id"),
        ({"id": "../etc"}, "body.id"),
        ({"id": "j", "node": "n1"}, "body.node"),
        ({"id": "j", "rank_nodes": {"-1": "n1"}}, "body.rank_nodes"),
        ({"id": "j", "nodes": ["a b"]}, "body.nodes.0"),
    ],
)
async def test_faulty_registrations(tmp_path: Path, body: dict[str, Any], where: str) -> None:
    """A registration with a wrong or unknown field is refused with the place of the fault."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(JOBS, json=body)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["where"].startswith(where)


@pytest.mark.parametrize("body", [b"{", b"[]", b'"j"', b'{"id": "\\ud800"}', b"\xff\xfe"])
async def test_a_body_that_is_no_object_is_a_bad_request(tmp_path: Path, body: bytes) -> None:
    """Broken JSON, another type, lone surrogates and bytes that are no UTF-8 get a clear 400."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(JOBS, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["detail"]


async def test_a_body_without_end_is_refused(tmp_path: Path) -> None:
    """Bodies of this route have a bound of their own."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(
            JOBS, content=b'"' + bytes(5 << 20) + b'"', headers={"content-type": "application/json"}
        )
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_exit_ends_the_latest_attempt_and_wakes_the_worker(tmp_path: Path) -> None:
    """An event without an attempt belongs to the latest one, without a time it happened now."""
    wake = CountingWake()
    async with serving(tmp_path, attempts_due=wake) as web:
        await web.client.post(f"{JOBS}/j/events", json={"kind": "started", "attempt": 2, "time": NOW - 60})
        answer = await web.client.post(f"{JOBS}/j/events", json={"kind": "exit", "code": 137, "signal": 9})
        attempts = await web.store.jobs.attempts("j")
    assert answer.json()["attempt"] == 2
    assert [(one.key, one.ended) for one in attempts] == [(AttemptKey("j", 2), NOW)]
    assert [(event.kind, event.code, event.signal) for event in attempts[0].events] == [
        (EventKind.STARTED, None, None),
        (EventKind.EXIT, 137, 9),
    ]
    assert wake.told == 2


@pytest.mark.parametrize("kind", list(EventKind))
async def test_every_kind_of_event_is_taken(tmp_path: Path, kind: EventKind) -> None:
    """Each kind of the closed list is stored under its name."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(f"{JOBS}/j/events", json={"kind": kind, "node": "n1", "step": 10, "reason": "x"})
        attempts = await web.store.jobs.attempts("j")
    assert answer.json()["event"]["kind"] == kind
    assert [event.kind for event in attempts[0].events] == [kind]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (NOW - 5, NOW - 5),
        ("2026-09-21T14:13:10Z", NOW - 10),
        ("2026-09-21T16:13:10+02:00", NOW - 10),
        ("2026-09-21T14:13:10", NOW - 10),
        (NOW + 3_600, NOW),
    ],
)
async def test_times_of_events(tmp_path: Path, given: float | str, stored: float) -> None:
    """Seconds and ISO 8601 are read, without a zone as UTC; a clock that runs ahead counts as now."""
    async with serving(tmp_path) as web:
        await web.client.post(f"{JOBS}/j/events", json={"kind": "exit", "time": given})
        attempts = await web.store.jobs.attempts("j")
    assert attempts[0].ended == stored


@pytest.mark.parametrize("time", [0, 5, -1e300, NOW + 90_000, "1999-12-31T23:59:59Z", "2300-01-01T00:00:00Z", "soon"])
async def test_absurd_times_are_refused(tmp_path: Path, time: float | str) -> None:
    """A time before 2000, more than a day ahead or unreadable is a 400, and nothing is stored."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(f"{JOBS}/j/events", json={"kind": "exit", "time": time})
        attempts = await web.store.jobs.attempts("j")
    assert answer.status_code == 400
    assert "time" in answer.json()["detail"]
    assert attempts == []


@pytest.mark.parametrize("time", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_times_that_are_no_number_are_refused(tmp_path: Path, time: str) -> None:
    """Numbers that JSON readers let through although no clock shows them are a 400."""
    async with serving(tmp_path) as web:
        body = '{"kind": "exit", "time": ' + time + "}"
        answer = await web.client.post(f"{JOBS}/j/events", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "crashed"},
        {"kind": "heartbeat", "code": 1},
        {"kind": "exit", "code": 1 << 40},
        {"kind": "exit", "signal": 0},
        {"kind": "exit", "attempt": 0},
        {"kind": "exit", "exit_code": 1},
        {"kind": "exit", "phase": "bad", "step": 1, "path": "/c"},
        {"kind": "heartbeat", "just_in_time": False},
        {"kind": "checkpoint", "phase": "saved", "step": 1, "path": "/c"},
        {"kind": "checkpoint", "phase": "bad", "path": "/c"},
        {"kind": "checkpoint", "phase": "bad", "step": 1},
        {"kind": "checkpoint", "step": 1, "blocked_ms": -1},
        {"kind": "checkpoint", "step": 1, "bytes": 1.5},
    ],
)
async def test_faulty_events(tmp_path: Path, body: dict[str, Any]) -> None:
    """An event of an unknown kind, with an unknown or misplaced field, or out of range is a 400."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(f"{JOBS}/j/events", json=body)
    assert answer.status_code == 400


SAVED = {"kind": "checkpoint", "step": 1200, "path": "/ckpt/1200"}


async def test_the_phases_of_a_checkpoint_are_stored_and_counted_once(tmp_path: Path) -> None:
    """A phase that is reported again, with other figures too, changes neither what is stored nor a metric."""
    staged = SAVED | {"phase": "staged", "blocked_ms": 812.5, "bytes": 9_000, "finite": True, "just_in_time": True}
    bad = SAVED | {"phase": "bad", "why": "model.pt: checksum", "attempt": 1}
    async with serving(tmp_path) as web:
        answers = [
            await web.client.post(f"{JOBS}/j/events", json=body) for body in (staged, staged | {"blocked_ms": 1.0}, bad)
        ]
        (attempt,) = await web.store.jobs.attempts("j")
        count = web.services.core.metrics.registry.get_sample_value
        shown = (await web.client.get(f"{JOBS}/j")).json()["attempts"][0]["events"]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    told = {event.phase: event for event in attempt.events}
    assert set(told) == {CheckpointPhase.STAGED, CheckpointPhase.BAD} and len(attempt.events) == 2
    first = told[CheckpointPhase.STAGED]
    assert (first.blocked_ms, first.bytes, first.finite, first.just_in_time) == (812.5, 9_000, True, True)
    assert told[CheckpointPhase.BAD].reason == "model.pt: checksum"
    assert {event["phase"]: event["blocked_ms"] for event in shown} == {"staged": 812.5, "bad": None}
    counts = [count("diagnoser_checkpoints_total", {"phase": phase}) for phase in CheckpointPhase]
    assert counts == [1.0, 0.0, 0.0, 1.0]
    assert count("diagnoser_checkpoint_blocked_seconds_total") == 0.8125


async def test_a_checkpoint_without_a_phase_is_saved(tmp_path: Path) -> None:
    """Launchers that know no phases report as before; their checkpoints count as written out."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(f"{JOBS}/j/events", json=SAVED)
        count = web.services.core.metrics.registry.get_sample_value
    assert answer.json()["event"]["phase"] is None
    assert count("diagnoser_checkpoints_total", {"phase": "durable"}) == 1.0


async def test_what_is_said_of_a_checkpoint_is_the_jobs_word(tmp_path: Path) -> None:
    """An agent's token vouches for nodes and ends; not for a node that a checkpoint's event names as lost."""
    async with serving(tmp_path) as web:
        for body in (SAVED | {"phase": "bad", "node": "n1", "why": "NODE_FAIL"}, {"kind": "exit", "code": 1}):
            await web.client.post(f"{JOBS}/j/events", json=body)
        (attempt,) = await web.store.jobs.attempts("j")
    provenances = {event.kind: event.provenance for event in attempt.events}
    assert provenances == {EventKind.CHECKPOINT: Provenance.JOB, EventKind.EXIT: Provenance.SCHEDULER}


async def test_a_job_shows_its_attempts_with_their_diagnoses(tmp_path: Path) -> None:
    """Every attempt comes with its events and the diagnosis that is current."""
    async with serving(tmp_path) as web:
        await save(web.store, "j", OOM, attempt=1, created=NOW - 500)
        await save(web.store, "j", ECC, attempt=2)
        shown = (await web.client.get(f"{JOBS}/j")).json()
        records = await web.store.diagnoses.page(DiagnosisFilter(job="j"), "", 10)
    assert [one["number"] for one in shown["attempts"]] == [1, 2]
    assert [one["diagnosis"]["type"] for one in shown["attempts"]] == ["out_of_memory_error", "ecc_error"]
    assert {one["diagnosis"]["id"] for one in shown["attempts"]} == {record.id for record in records}
    assert [event["kind"] for event in shown["attempts"][1]["events"]] == ["started", "exit"]


async def test_a_job_that_nobody_knows_is_not_found(tmp_path: Path) -> None:
    """Reading never makes a job."""
    async with serving(tmp_path) as web:
        first = await web.client.get(f"{JOBS}/ghost")
        again = await web.client.get(f"{JOBS}/ghost")
    assert (first.status_code, again.status_code) == (404, 404)
    assert "ghost" in first.json()["detail"]
