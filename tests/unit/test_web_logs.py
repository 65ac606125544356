"""POST /api/v1/logs: what reaches the intake, and what every kind of bad request is told."""

import gzip
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from diagnoser.ingest import IngestReceipt, RecordDefaults
from diagnoser.model import Stream
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.web.http import request_bodies
from tests.serving import NOW, serving

LOGS = "/api/v1/logs"
TEXT = {"content-type": "text/plain"}
NDJSON = {"content-type": "application/x-ndjson"}


async def test_the_query_becomes_the_defaults_of_all_lines(tmp_path: Path) -> None:
    """Job, attempt, node, rank, source and offset reach the intake; the offset as the number of the first line."""
    query = "?job=llm-7b&attempt=3&node=n1&rank=12&source=stderr&offset=40"
    async with serving(tmp_path) as web:
        answer = await web.client.post(LOGS + query, content=b"a\nb\n", headers=TEXT)
    assert (answer.status_code, answer.content) == (204, b"")
    defaults = RecordDefaults("llm-7b", 3, Stream("stderr", "n1", 12), 41, vouched=True)
    assert web.ingest.taken == [(b"a\nb\n", "text", defaults, NOW)]


async def test_what_the_query_does_not_say_stays_open(tmp_path: Path) -> None:
    """Without more than the job, the attempt, the rank and the line numbers are left to the intake."""
    async with serving(tmp_path) as web:
        await web.client.post(LOGS + "?job=llm-7b", content=b"a\n", headers=TEXT)
    assert web.ingest.taken[0][2] == RecordDefaults("llm-7b", None, Stream(), None, vouched=True)


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        ("text/plain", "text"),
        ("Text/Plain; charset=UTF-8", "text"),
        ("application/x-ndjson", "ndjson"),
        ("application/json", "json"),
        ("application/json; charset=utf-8", "json"),
    ],
)
async def test_content_types(tmp_path: Path, kind: str, format: str) -> None:
    """Each content type that is read goes to its parser, with or without a charset."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(LOGS + "?job=j", content=b'"a"', headers={"content-type": kind})
    assert answer.status_code == 204
    assert web.ingest.taken[0][1] == format


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/html", "text/plain; charset=latin-1"])
async def test_other_content_types_are_refused(tmp_path: Path, kind: str) -> None:
    """A body in a form or charset that is not read is a 415 that says so, and nothing reaches the intake."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(LOGS + "?job=j", content=b"a\n", headers={"content-type": kind} if kind else {})
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"
    assert web.ingest.taken == []


async def test_a_compressed_body_arrives_plain(tmp_path: Path) -> None:
    """Content-Encoding is undone before the intake sees the lines."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(
            LOGS + "?job=j", content=gzip.compress(b"a\nb\n"), headers=TEXT | {"content-encoding": "gzip"}
        )
    assert answer.status_code == 204
    assert web.ingest.taken[0][0] == b"a\nb\n"


@pytest.mark.parametrize(
    ("query", "body", "headers", "status", "says"),
    [
        ("", b"a\n", TEXT, 400, "no job"),
        ("?job=j", b"", TEXT, 400, "empty"),
        ("?job=a/b", b"a\n", TEXT, 400, "query.job"),
        ("?job=.hidden", b"a\n", TEXT, 400, "query.job"),
        ("?job=" + "j" * 201, b"a\n", TEXT, 400, "query.job"),
        ("?job=j&rank=-2", b"a\n", TEXT, 400, "query.rank"),
        ("?job=j&rank=many", b"a\n", TEXT, 400, "query.rank"),
        ("?job=j&attempt=0", b"a\n", TEXT, 400, "query.attempt"),
        ("?job=j&offset=-1", b"a\n", TEXT, 400, "query.offset"),
        ("?job=j&source=a%00b", b"a\n", TEXT, 400, "query.source"),
        ("?job=j&nod=n1", b"a\n", TEXT, 400, "query.nod"),
        ("?job=j", b"a\n", TEXT | {"content-encoding": "br"}, 415, "br"),
        ("?job=j", b"not gzip", TEXT | {"content-encoding": "gzip"}, 400, "gzip"),
        ("?job=j", gzip.compress(bytes(50_000), mtime=0), TEXT | {"content-encoding": "gzip"}, 413, "10000 bytes"),
        ("?job=j", bytes(10_001), TEXT, 413, "10000 bytes"),
    ],
)
async def test_bad_requests(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    says: str,
) -> None:
    """Each fault of a request has its own status and a sentence that names it; nothing reaches the intake."""
    monkeypatch.setattr(request_bodies, "WIRE_BYTES", 10_000)
    monkeypatch.setattr(request_bodies, "BODY_BYTES", 10_000)
    async with serving(tmp_path) as web:
        answer = await web.client.post(LOGS + query, content=body, headers=headers)
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (status, status)
    assert says in problem["detail"]
    assert web.ingest.taken == []


async def test_records_may_name_their_job(tmp_path: Path) -> None:
    """NDJSON needs no job in the query: the records can carry it."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(LOGS, content=b'{"job": "j", "message": "a"}\n', headers=NDJSON)
    assert answer.status_code == 204


async def test_blank_lines_are_lines(tmp_path: Path) -> None:
    """A batch of nothing but blank lines is taken: a shipper that numbers its lines could never pass it otherwise."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(LOGS + "?job=j&offset=5", content=b"\n\n", headers=TEXT)
    assert answer.status_code == 204
    assert web.ingest.taken[0][0] == b"\n\n"


@pytest.mark.parametrize(
    "receipt",
    [
        IngestReceipt(lines=3, rejected=1, errors=("line 2: not JSON",)),
        IngestReceipt(lines=3, duplicates=2),
        IngestReceipt(lines=3, cut=1),
    ],
)
async def test_what_was_not_taken_as_sent_is_told(tmp_path: Path, receipt: IngestReceipt) -> None:
    """Rejected, repeated and cut lines are counted in the answer, with the reasons."""
    async with serving(tmp_path) as web:
        web.ingest.receipt = receipt
        answer = await web.client.post(LOGS + "?job=j", content=b'"a"\n', headers=NDJSON)
    assert answer.status_code == 200
    assert answer.json() == {
        "lines": 3,
        "duplicates": receipt.duplicates,
        "rejected": receipt.rejected,
        "cut": receipt.cut,
        "errors": list(receipt.errors),
        "unplaced": 0,
    }


async def test_lines_that_could_not_be_stored_are_asked_for_again(tmp_path: Path) -> None:
    """When the commit fails the answer is 503 with Retry-After, so that the shipper sends the same again."""
    async with serving(tmp_path) as web:
        web.ingest.error = Unavailable("the lines were not stored")
        answer = await web.client.post(LOGS + "?job=j", content=b"a\n", headers=TEXT)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["detail"] == "the lines were not stored"


async def test_what_the_parsers_refuse_is_a_bad_request(tmp_path: Path) -> None:
    """The intake's own refusal reaches the caller as it is."""
    async with serving(tmp_path) as web:
        web.ingest.error = BadInput("no usable line: line 1: not JSON")
        answer = await web.client.post(LOGS + "?job=j", content=b"{\n", headers=NDJSON)
    assert (answer.status_code, answer.json()["detail"]) == (400, "no usable line: line 1: not JSON")


async def test_a_fault_of_the_service_tells_nothing_of_itself(tmp_path: Path) -> None:
    """An unforeseen error is a plain 500: its text, which may hold secrets, stays in the log."""
    async with serving(tmp_path) as web:
        web.ingest.error = RuntimeError("password=hunter2")
        with capture_logs() as logged:
            answer = await web.client.post(LOGS + "?job=j", content=b"a\n", headers=TEXT)
    assert [(one["event"], one["path"]) for one in logged] == [("request_failed", "/api/v1/logs")]
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert answer.headers["content-type"] == "application/problem+json"
