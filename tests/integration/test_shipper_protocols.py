"""Loki and OTLP over HTTP, with the real intake: what is stored, and what each kind of shipper is told."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
import pytest
import zstandard
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from prometheus_client import CollectorRegistry

from diagnoser.compress import Compressor
from diagnoser.compress.raw_chunks import unpack
from diagnoser.ingest import Batch, IngestReceipt, RecordDefaults
from diagnoser.ingest.job_access import JobSender
from diagnoser.ingest.protocols.protocol import BodyFormat
from diagnoser.ingest.service import IngestService
from diagnoser.ingest.unattributed import UnattributedStreams
from diagnoser.model import AttemptKey, Job, Provenance, Stream, UnplacedReason, UnplacedStream, node_log_id
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.errors import Overloaded, Unavailable
from diagnoser.observability.metrics import Metrics
from diagnoser.redaction.redact import redact
from diagnoser.web.http import request_bodies
from tests.in_memory import RecentUnplaced
from tests.loki_messages import PushRequest
from tests.serving import NOW, Web, serving

LOKI, OTLP = "/loki/api/v1/push", "/v1/logs"
JSON, PROTOBUF = "application/json", "application/x-protobuf"
NANOS = int(NOW) * 10**9
CREDENTIALS = (
    Credential("agent", Scope.AGENT),
    Credential("shipper", Scope.INGEST),
    Credential("shipper-east", Scope.INGEST, cluster="east"),
)
BODY_BYTES = 100_000


class Intake:
    """The real intake over the store of the test, which is there only once the application is."""

    service: IngestService
    error: Exception | None = None

    async def parse_body(self, body: bytes, format: BodyFormat, defaults: RecordDefaults, received: float) -> Batch:
        return await self.service.parse_body(body, format, defaults, received)

    async def accept_batch(
        self, batch: Batch, protocol: str, defaults: RecordDefaults, received: float, sender: JobSender | None = None
    ) -> IngestReceipt:
        if self.error:
            raise self.error
        return await self.service.accept_batch(batch, protocol, defaults, received, sender)


class Sink(RecentUnplaced):
    """Fails while there is an error."""

    error: Exception | None = None

    async def record_unplaced(self, streams: Sequence[UnplacedStream]) -> None:
        if self.error:
            raise self.error
        await super().record_unplaced(streams)


@dataclass
class Site:
    web: Web
    intake: Intake
    unplaced: UnattributedStreams
    sink: Sink
    metrics: Metrics

    async def post(self, path: str, body: bytes, who: str = "shipper", kind: str = PROTOBUF, **headers: str) -> Any:
        """``content_encoding`` is the header of that name."""
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        told |= {"authorization": f"Bearer {who}"} | ({"content-type": kind} if kind else {})
        return await self.web.client.post(path, content=body, headers=told)

    async def stored(self, job: str) -> dict[Stream, bytes]:
        """The lines of each stream of a job."""
        found: dict[Stream, bytes] = {}
        for piece in await self.web.store.logs.pieces(AttemptKey(job, 1)):
            for block in unpack(piece.data):
                found[block.stream] = found.get(block.stream, b"") + block.data.removesuffix(b"\n") + b"\n"
        return found


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A service with ``CREDENTIALS``: the secret of each is its name."""
    intake, sink, metrics = Intake(), Sink(), Metrics(CollectorRegistry())
    monkeypatch.setattr(request_bodies, "WIRE_BYTES", BODY_BYTES)
    monkeypatch.setattr(request_bodies, "BODY_BYTES", BODY_BYTES)
    async with serving(tmp_path, ingest=intake) as web:
        for credential in CREDENTIALS:
            await web.store.tokens.add(StoredToken(credential, hash_of(credential.name)))
        unplaced = UnattributedStreams(sink.record_unplaced, redact, metrics)
        intake.service = IngestService(web.store.logs, Compressor, metrics, unplaced=unplaced)
        task = asyncio.create_task(intake.service.run())
        yield Site(web, intake, unplaced, sink, metrics)
        task.cancel()


def loki(*lines: str, **labels: str) -> bytes:
    request = PushRequest()
    stream = request.streams.add(labels="{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}")
    for number, line in enumerate(lines):
        entry = stream.entries.add(line=line)
        entry.timestamp.seconds, entry.timestamp.nanos = int(NOW), number
    return bytes(request.SerializeToString())


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body, wbits=-zlib.MAX_WBITS)


def otlp(*lines: str, **attributes: str) -> bytes:
    request = ExportLogsServiceRequest()
    made = request.resource_logs.add()
    for name, value in attributes.items():
        made.resource.attributes.add(key=name.replace("_", ".")).value.string_value = value
    scope = made.scope_logs.add()
    scope.scope.name = "tests"
    for line in lines:
        scope.log_records.add(time_unix_nano=NANOS).body.string_value = line
    return bytes(request.SerializeToString())


LOKI_JSON = (
    b'{"streams": [{"stream": {"job": "j", "rank": "1"}, "values": [["1790000000000000000", "a"], ["0", "b"]]}]}'
)
OTLP_JSON = (
    b'{"resourceLogs": [{"resource": {"attributes": [{"key": "job", "value": {"stringValue": "j"}}]}, "scopeLogs": ['
    b'{"logRecords": [{"body": {"stringValue": "a"}, "traceId": "5b8efff798038103d269b633813fc60c"},'
    b' {"body": {"stringValue": "b"}, "timeUnixNano": "1790000000000000000", "severityNumber": 9,'
    b' "attributes": [{"key": "rank", "value": {"intValue": "1"}}]}]}]}]}'
)


@pytest.mark.parametrize(
    ("path", "kind", "encoding", "body"),
    [
        (LOKI, PROTOBUF, "", snappy(loki("a", "b", job="j", rank="1"))),
        (LOKI, PROTOBUF, "snappy", snappy(loki("a", "b", job="j", rank="1"))),
        (LOKI, PROTOBUF, "gzip", gzip.compress(snappy(loki("a", "b", job="j", rank="1")), mtime=0)),
        (LOKI, PROTOBUF, "zstd", zstandard.compress(loki("a", "b", job="j", rank="1"))),
        (LOKI, "", "", snappy(loki("a", "b", job="j", rank="1"))),
        (LOKI, JSON, "", LOKI_JSON),
        (LOKI, "application/json; charset=utf-8", "gzip", gzip.compress(LOKI_JSON, mtime=0)),
        (LOKI, JSON, "deflate", raw_deflate(LOKI_JSON)),
        (LOKI, JSON, "snappy", snappy(LOKI_JSON)),
        (OTLP, PROTOBUF, "", otlp("a", "b", job="j", rank="1")),
        (OTLP, PROTOBUF, "gzip", gzip.compress(otlp("a", "b", job="j", rank="1"), mtime=0)),
        (OTLP, PROTOBUF, "zstd", zstandard.compress(otlp("a", "b", job="j", rank="1"))),
        (OTLP, PROTOBUF, "deflate", zlib.compress(otlp("a", "b", job="j", rank="1"))),
        (OTLP, PROTOBUF, "snappy", snappy(otlp("a", "b", job="j", rank="1"))),
    ],
)
async def test_every_form_and_encoding_is_stored(site: Site, path: str, kind: str, encoding: str, body: bytes) -> None:
    """What a shipper may be configured to send is committed when it gets its answer: 204 of Loki, 200 of OTLP."""
    answer = await site.post(path, body, kind=kind, **({"content_encoding": encoding} if encoding else {}))
    assert answer.status_code == (204 if path == LOKI else 200), answer.text
    assert answer.content == b""
    assert await site.stored("j") == {Stream(rank=1): b"a\nb\n"}


async def test_otlp_as_json_is_answered_in_json(site: Site) -> None:
    """The answer to a full success is an empty message in the form of the request."""
    answer = await site.post(OTLP, OTLP_JSON, kind=JSON)
    assert (answer.status_code, answer.headers["content-type"], answer.json()) == (200, JSON, {})
    assert await site.stored("j") == {Stream(): b"a\n", Stream(rank=1): b"b\n"}
    answer = await site.post(OTLP, b"{}", kind=JSON)
    assert (answer.status_code, answer.json()) == (200, {})


async def test_the_query_gives_what_labels_do_not(site: Site) -> None:
    """A shipper that can set nothing but an address names the job there."""
    answer = await site.post(LOKI + "?job=q&node=gpu-1", snappy(loki("a", filename="/x", rank="3")))
    assert answer.status_code == 204
    assert await site.stored("q") == {Stream("stdout", "gpu-1", 3): b"a\n"}
    answer = await site.post(OTLP + "?jobs=q", otlp("a"))
    assert answer.status_code == 400
    assert b"query.jobs: unknown field" in answer.content


async def test_loki_names_faulty_entries_and_keeps_the_others(site: Site) -> None:
    """400 with the text, as Loki does it: shippers print it and do not send the same again."""
    body = b'{"streams": [{"stream": {"job": "j"}, "values": [["0", "a"], ["x", "b"], ["0", "c"]]}]}'
    answer = await site.post(LOKI, body, kind=JSON)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert answer.text.startswith("1 of the entries were not taken:\nstream 1, entry 2: ")
    assert await site.stored("j") == {Stream(): b"a\nc\n"}


async def test_otlp_counts_faulty_records_as_a_partial_success(site: Site) -> None:
    """In the form of the request; they are not sent again."""
    good = otlp("a", job="j")
    faulty = good + good[:1] + bytes([7]) + b"\x12\x05\x12\x03\x2a\x7f\x01"
    answer = await site.post(OTLP, faulty)
    partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_log_records) == (200, 1)
    assert partial.error_message.startswith("record 2: ")
    assert await site.stored("j") == {Stream(): b"a\n"}
    answer = await site.post(
        OTLP, OTLP_JSON.replace(b'"5b8efff798038103d269b633813fc60c"', b'"", "attributes": 7'), kind=JSON
    )
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"


async def test_what_belongs_to_no_job_is_shown_and_no_error(site: Site) -> None:
    """A site may point everything at the service: Loki's clients hear nothing, those of OTLP a partial success; labels,
    reason and a redacted sample go to the sink, those of equal labels together."""
    for _ in range(2):
        assert (await site.post(LOKI, snappy(loki("GET /?password=hunter2hunter2", "x", app="web")))).status_code == 204
    answer = await site.post(OTLP, otlp("a", service_name="web"))
    partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
    assert (partial.rejected_log_records, partial.error_message) == (1, "1 records belong to no job")
    assert site.sink.streams == []
    await site.unplaced.flush()
    of_loki, of_otlp = site.sink.streams
    assert (of_loki.labels, of_loki.reason, of_loki.lines) == ((("app", "web"),), UnplacedReason.NO_JOB, 4)
    assert (of_loki.protocol, of_loki.sender, of_loki.received) == ("loki", "shipper", NOW)
    assert "hunter2" not in of_loki.sample
    assert (of_otlp.labels, of_otlp.protocol) == ((("service.name", "web"),), "otlp")
    assert site.metrics.unplaced_lines.labels(UnplacedReason.NO_JOB)._value.get() == 5


async def test_a_sink_that_does_not_answer_costs_no_line(site: Site) -> None:
    """What belongs to no job waits for it, and lines of jobs do not."""

    await site.post(LOKI, snappy(loki("x", app="web")))
    site.sink.error = Unavailable("no database")
    with pytest.raises(Unavailable):
        await site.unplaced.flush()
    assert (await site.post(LOKI, snappy(loki("y", app="web")))).status_code == 204
    site.sink.error = None
    await site.unplaced.flush()
    assert [stream.lines for stream in site.sink.streams] == [2]


async def test_foreign_jobs_are_refused_in_every_protocol(site: Site) -> None:
    """A credential of one cluster adds no line to a job of another; the rest of the body is stored."""
    await site.web.store.jobs.register(Job("theirs", cluster="west", created=NOW))
    for path, body in ((LOKI, snappy(loki("a", job="theirs"))), (OTLP, otlp("a", job="theirs"))):
        answer = await site.post(path, body, "shipper-east")
        assert answer.status_code == 403
        assert b"belongs to the cluster 'west'" in answer.content
    mixed = PushRequest()
    for job in ("ours", "theirs"):
        mixed.MergeFromString(loki("a", job=job))
    answer = await site.post(LOKI, snappy(mixed.SerializeToString()), "shipper-east")
    assert answer.status_code == 400
    assert "belongs to the cluster 'west'" in answer.text
    answer = await site.post(OTLP, otlp("a", job="ours") + otlp("b", job="theirs"), "shipper-east")
    assert ExportLogsServiceResponse.FromString(answer.content).partial_success.rejected_log_records == 1
    assert await site.stored("ours") == {Stream(): b"a\na\n"}
    assert await site.stored("theirs") == {}


async def test_whose_word_a_line_is_follows_from_the_credential(site: Site) -> None:
    """An agent's token speaks for nodes, that of a shipper does not, whatever the labels say."""
    kernel = {"transport": "kernel", "syslog_facility": "0", "hostname": "gpu-1"}
    for path, body in ((LOKI, snappy(loki("NVRM: x", **kernel))), (OTLP, otlp("NVRM: x", **kernel))):
        assert (await site.post(path, body)).status_code == 403
        assert (await site.post(path, body, "agent")).status_code in (200, 204)
    log = node_log_id("", "gpu-1")
    (streams,) = (
        await site.web.store.logs.cursors([AttemptKey(log, await site.web.store.logs.current_attempt(log))])
    ).values()
    assert list(streams) == [Stream("kernel", "gpu-1", provenance=Provenance.NODE)]
    named = {"job": "j", "diagnoser_source": "kernel"}
    await site.post(LOKI, snappy(loki("NVRM: x", **named)))
    assert [stream.provenance for stream in await site.stored("j")] == [Provenance.JOB]


def status_class() -> Any:
    """google.rpc.Status: its package is not needed for two fields."""
    file = descriptor_pb2.FileDescriptorProto(name="status.proto", package="rpc_tests", syntax="proto3")
    message = file.message_type.add(name="Status")
    for name, number, kind in (("code", 1, 5), ("message", 2, 9)):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rpc_tests.Status"))


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"who": "nobody"}, 401, 16),
        ({"body": b"\xff"}, 400, 3),
        ({"content_encoding": "br"}, 415, 3),
        ({"content_encoding": "gzip"}, 400, 3),
        ({"body": bytes(100_001)}, 413, 8),
        ({"kind": "text/plain"}, 415, 3),
    ],
)
async def test_errors_are_told_as_the_protocol_wants(
    site: Site, change: dict[str, Any], status: int, code: int
) -> None:
    """OTLP: a Status in the form of the request. Loki: text, which its clients print."""
    answer = await site.post(OTLP, **{"body": otlp("a", job="j"), **change})
    assert answer.status_code == status
    if change.get("kind"):
        assert answer.json()["code"] == code
    else:
        assert answer.headers["content-type"] == PROTOBUF
        told = status_class().FromString(answer.content)
        assert (told.code, bool(told.message)) == (code, True)
    answer = await site.post(LOKI, **{"body": snappy(loki("a", job="j")), **change})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/plain; charset=utf-8")
    assert answer.text.strip()


@pytest.mark.parametrize(
    ("error", "status", "code"), [(Unavailable("the disk is full"), 503, 14), (Overloaded("wait", 3.2), 429, 8)]
)
async def test_what_can_be_sent_again_says_when(site: Site, error: Exception, status: int, code: int) -> None:
    """503 and 429 with Retry-After: shippers of both protocols keep the batch and wait."""
    site.intake.error = error
    answer = await site.post(OTLP, OTLP_JSON, kind=JSON)
    assert (answer.status_code, answer.json()) == (status, {"code": code, "message": str(error)})
    assert int(answer.headers["retry-after"]) > 0
    answer = await site.post(LOKI, LOKI_JSON, kind=JSON)
    assert (answer.status_code, answer.text) == (status, f"{error}\n")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(("path", "body"), [(LOKI, snappy(b"")), (OTLP, b"")])
async def test_an_empty_request_is_no_error(site: Site, path: str, body: bytes) -> None:
    """Shippers send one to see whether they are understood."""
    assert (await site.post(path, body)).status_code in (200, 204)
