"""OTLP logs to blocks of lines, in both of their forms."""

import base64
import math
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from diagnoser.ingest import Batch, RecordDefaults, Target
from diagnoser.ingest.batch import RECORDS_LIMIT
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.protocols import otlp
from diagnoser.ingest.protocols.otlp import parse_otlp, parse_otlp_json
from diagnoser.ingest.protocols.protobuf_wire import encoded
from diagnoser.model import Stream
from diagnoser.model.errors import BadInput, TooLarge, Undecodable

NOW = 1_800_000_000.0
NANOS = 1_790_000_000 * 10**9
JOB = {"diagnoser.job": "j"}
J = Target("j", None)


def value(of: Any) -> AnyValue:
    """A value of any kind."""
    match of:
        case bool():
            return AnyValue(bool_value=of)
        case int():
            return AnyValue(int_value=of)
        case float():
            return AnyValue(double_value=of)
        case bytes():
            return AnyValue(bytes_value=of)
        case list():
            made = AnyValue()
            made.array_value.values.extend(value(item) for item in of)
            return made
        case dict():
            made = AnyValue()
            made.kvlist_value.values.extend(pairs(of))
            return made
        case None:
            return AnyValue()
        case _:
            return AnyValue(string_value=of)


def pairs(of: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value(item)) for key, item in of.items()]


def record(body: Any, time: int = 0, observed: int = 0, severity: int = 0, **attributes: Any) -> LogRecord:
    """``a__b`` names the attribute a.b."""
    return LogRecord(
        time_unix_nano=time,
        observed_time_unix_nano=observed,
        severity_number=severity,  # type: ignore[arg-type]
        severity_text="INFO" if severity else "",
        body=value(body),
        attributes=pairs({name.replace("__", "."): item for name, item in attributes.items()}),
        trace_id=b"t" * 16 if severity else b"",
    )


def export(*records: LogRecord, resource: Mapping[str, Any] = JOB, scope: Mapping[str, Any] | None = None) -> Any:
    of_scope = ScopeLogs(scope=InstrumentationScope(name="s", attributes=pairs(scope or {})), log_records=records)
    of_resource = ResourceLogs(resource=Resource(attributes=pairs(resource)), scope_logs=[of_scope])
    return ExportLogsServiceRequest(resource_logs=[of_resource])


def parse(request: Any) -> Batch:
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return parse_otlp(body, RecordDefaults(), NOW, DEFAULT)


def parse_json(data: object) -> Batch:
    return parse_otlp_json(orjson.dumps(data), RecordDefaults(), NOW, DEFAULT)


def as_json(request: Any) -> Any:
    """As the standard of OTLP has it: ids in hexadecimal, which Protocol Buffers' own JSON writes as base64."""
    data = MessageToDict(request, use_integers_for_enums=True)
    for resource in data.get("resourceLogs", ()):
        for scope in resource.get("scopeLogs", ()):
            for one in scope.get("logRecords", ()):
                if "traceId" in one:
                    one["traceId"] = base64.b64decode(one["traceId"]).hex()
    return data


def lines(batch: Batch) -> dict[tuple[Target, Stream], bytes]:
    return {(target, block.stream): block.data for target, blocks in batch.blocks.items() for block in blocks}


times = st.integers(NANOS, NANOS + 10**15) | st.just(0)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
texts = words | st.sampled_from(["x" * 125, "y" * 126, "z" * 20_000])
values = st.recursive(
    texts | st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["message", "k", "rank"]), inner),
    max_leaves=5,
)
records = st.builds(record, values, times, times, st.integers(0, 24), rank=st.sampled_from(["0", "1", 2]), other=values)


@given(st.lists(records, max_size=6))
def test_both_forms_say_the_same(made: list[LogRecord]) -> None:
    """What generated classes write is read to the same lines, times and places as the JSON of it."""
    request = export(*made, scope={"slurm.job.id": 3})
    read, told = parse(request), parse_json(as_json(request))
    assert lines(read) == lines(told)
    assert (read.rejected, told.rejected) == (0, 0)
    for target, blocks in read.blocks.items():
        for block, other in zip(blocks, told.blocks[target], strict=True):
            assert (block.times is None) == (other.times is None)
            assert block.times is None or block.times == pytest.approx(other.times, nan_ok=True)


def test_the_numbers_of_fields_are_the_published_ones() -> None:
    """This reader needs no generated classes, and must not drift from them."""
    published: dict[Any, dict[str, str]] = {
        ExportLogsServiceRequest: {"RESOURCE_LOGS": "resource_logs"},
        ResourceLogs: {"RESOURCE": "resource", "SCOPE_LOGS": "scope_logs"},
        Resource: {"RESOURCE_ATTRIBUTES": "attributes"},
        ScopeLogs: {"SCOPE": "scope", "LOG_RECORDS": "log_records"},
        InstrumentationScope: {"SCOPE_ATTRIBUTES": "attributes"},
        KeyValue: {"KEY": "key", "VALUE": "value"},
        LogRecord: {
            "TIME": "time_unix_nano",
            "SEVERITY_NUMBER": "severity_number",
            "SEVERITY_TEXT": "severity_text",
            "BODY": "body",
            "ATTRIBUTES": "attributes",
            "OBSERVED_TIME": "observed_time_unix_nano",
        },
        AnyValue: {
            "STRING": "string_value",
            "BOOL": "bool_value",
            "INT": "int_value",
            "DOUBLE": "double_value",
            "ARRAY": "array_value",
            "KVLIST": "kvlist_value",
            "BYTES": "bytes_value",
        },
    }
    for message, names in published.items():
        for name, field in names.items():
            assert getattr(otlp, name) == message.DESCRIPTOR.fields_by_name[field].number, field


def test_a_record_is_a_line_with_its_time() -> None:
    """Records of one stream are one block; without a time of its own, that of observation counts."""
    request = export(record("a", NANOS, NANOS + 9, 9), record("b", 0, NANOS + 10**9), record("c"))
    (block,) = parse(request).blocks[J]
    assert (block.data, block.first, block.received) == (b"a\nb\nc", 0, NOW)
    assert block.times is not None
    assert block.times[:2] == (NANOS / 1e9, NANOS / 1e9 + 1)
    assert math.isnan(block.times[2])


def test_attributes_of_resource_scope_and_record_say_where_lines_go() -> None:
    """What the mapping reads of a record's attributes parts lines; what it does not read parts nothing."""
    request = export(
        record("a", rank="0", code__lineno=1),
        record("b", rank=1),
        record("c", rank="0", code__lineno=2),
        resource={"k8s.namespace.name": "n", "k8s.node.name": "gpu-1"},
        scope={"k8s": {"job": {"name": "t"}}},
    )
    target = Target("k8s:job:n:t", None)
    assert lines(parse(request)) == {
        (target, Stream("stdout", "gpu-1", 0)): b"a\nc",
        (target, Stream("stdout", "gpu-1", 1)): b"b",
    }


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (True, b"true"),
        (-7, b"-7"),
        (1.5, b"1.5"),
        (None, b"\n"),
        (["a", 1], b'["a",1]'),
        ({"a": {"b": 1}}, b'{"a":{"b":1}}'),
        ({"MESSAGE": "kernel: x", "PRIORITY": "3"}, b"kernel: x"),
        (b"raw", b"raw"),
    ],
)
def test_a_body_of_any_kind_is_a_line(body: Any, line: bytes) -> None:
    """A map gives its message, or else is written as JSON."""
    request = export(record(body))
    assert lines(parse(request)) == lines(parse_json(as_json(request))) == {(J, Stream()): line}


def test_a_journal_entry_goes_to_its_node() -> None:
    """The collector sends what journald knows as a map: its fields are read by the mapping."""
    entry = {"MESSAGE": "NVRM: Xid", "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "_HOSTNAME": "gpu-1"}
    batch = parse(export(record(entry), resource={"k8s.cluster.name": "east"}))
    assert lines(batch) == {(Target("~node/east/gpu-1", None), Stream("kernel", "gpu-1")): b"NVRM: Xid"}


def test_the_stack_of_an_exception_belongs_to_its_line() -> None:
    """Logging libraries put it beside the text, and it is what a diagnosis needs most."""
    stack = "Traceback (most recent call last):\n  x\nValueError: no"
    attributes: dict[str, Any] = {"exception__type": "ValueError", "exception__message": "no"}
    request = export(record("failed", **attributes, exception__stacktrace=stack), record("failed", **attributes))
    assert lines(parse(request)) == {(J, Stream()): f"failed\n{stack}\nfailed\nValueError: no".encode()}
    same = export(record("a", **attributes), record("b", **attributes))
    assert lines(parse(same)) == {(J, Stream()): b"a\nValueError: no\nb\nValueError: no"}


def test_the_last_bytes_of_an_attribute_are_no_time() -> None:
    """Nine bytes that look like a time of observation, inside of something else, part lines as everything does."""
    request = export(record("a", rank="1", span="Y12345678"), record("b", rank="1", span="Y87654321"))
    assert lines(parse(request)) == {(J, Stream(rank=1)): b"a\nb"}
    ranks = export(record("a", host="Y12345678"), record("b", host="Y87654321"))
    assert lines(parse(ranks)) == {(J, Stream(node="Y12345678")): b"a", (J, Stream(node="Y87654321")): b"b"}


def test_a_broken_record_costs_itself_only() -> None:
    """Inside of a record nothing leads out of it; it is counted and told. What is not UTF-8 is a line."""
    good, raw = record("good", NANOS).SerializeToString(), encoded(5, encoded(1, b"\xff\xfe"))
    for bad in (b"\x09\x01", b"\x2a\x05\x0a\x09x", b"\x2a\xff", b"\x0b", b"\x2a\x7f\x0a", b"\x32\x03\x0a\x7fx"):
        scope = encoded(1, b"") + b"".join(encoded(2, one) for one in (good, bad, raw))
        resource = Resource(attributes=pairs(JOB)).SerializeToString()
        batch = parse(encoded(1, encoded(1, resource) + encoded(2, scope)))
        assert lines(batch) == {(J, Stream()): b"good\n\xff\xfe"}, bad
        assert (batch.rejected, batch.errors[0][:9]) == (1, "record 2:")


@pytest.mark.parametrize("bad", [7, None, [], {"attributes": 7}, {"attributes": [7]}])
def test_a_broken_record_of_json_costs_itself_only(bad: Any) -> None:
    """It is counted and told, with its number."""
    job = {"attributes": [{"key": "diagnoser.job", "value": {"stringValue": "j"}}, {"key": "x"}, 7]}
    good = {"body": {"stringValue": "good"}, "timeUnixNano": "x", "severityNumber": "INFO", "new": 1}
    batch = parse_json({"resourceLogs": [{"resource": job, "scopeLogs": [{"logRecords": [good, bad, good]}, 7]}, None]})
    assert lines(batch) == {(J, Stream()): b"good\ngood"}
    assert (batch.rejected, batch.errors[0][:9]) == (1, "record 2:")


def test_what_belongs_to_no_job_is_kept_apart() -> None:
    """It is no fault of a record: its attributes, the reason and a sample are there to be shown."""
    batch = parse(export(record("GET /"), record("GET /a"), resource={"service.name": "web"}))
    ((unplaced, told),) = batch.unplaced.items()
    assert unplaced.labels == (("service.name", "web"),)
    assert (told, batch.rejected, batch.blocks) == ((2, "GET /"), 0, {})


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05", export(record("abc")).SerializeToString()[:-1]])
def test_a_body_that_is_cut_off_is_refused(body: bytes) -> None:
    """What it would have held is not known."""
    with pytest.raises(Undecodable):
        parse(body)
    with pytest.raises(Undecodable):
        parse_otlp_json(body, RecordDefaults(), NOW, DEFAULT)


def test_small_bodies_of_many_records_are_bounded() -> None:
    """Two bytes can be a record."""
    many = encoded(1, encoded(2, encoded(1, b"") + encoded(2, b"") * (RECORDS_LIMIT + 1)))
    with pytest.raises(TooLarge, match="records"):
        parse(many)


def test_values_that_nest_without_end_are_bounded() -> None:
    """What lies too deep is left out, whoever wrote it."""
    deep, nested = encoded(1, b"x"), dict[str, Any](stringValue="x")
    for _ in range(60):
        deep = encoded(5, encoded(1, deep))
        nested = {"arrayValue": {"values": [nested]}}
    log_record = encoded(5, deep) + encoded(6, encoded(2, deep))
    assert parse(encoded(1, encoded(2, encoded(1, b"") + encoded(2, log_record)))).rejected == 0
    one = {"body": nested, "attributes": [{"key": "k", "value": nested}]}
    assert parse_json({"resourceLogs": [{"scopeLogs": [{"logRecords": [one]}]}]}).rejected == 0


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 30))
def test_no_body_breaks_the_parser(noise: bytes, at: int, cut: int) -> None:
    """Any bytes are read or refused as a bad request."""
    body = export(record("x" * 150, NANOS, NANOS, 9, rank="1"), record({"a": [1.5]}, 0, NANOS)).SerializeToString()
    for data in (noise, body[:at] + noise + body[at + cut :]):
        try:
            batch = parse(data)
        except BadInput:
            continue
        assert all(block.lines == len(block.times or range(block.lines)) for b in batch.blocks.values() for block in b)
