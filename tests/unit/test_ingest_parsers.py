"""Request bodies to blocks of lines."""

import math
from collections.abc import Callable

import orjson
import pytest

from diagnoser.ingest import Batch, RecordDefaults, Target
from diagnoser.ingest.ndjson import parse_array, parse_ndjson
from diagnoser.ingest.protocols.lines import parse_text
from diagnoser.model import Stream
from diagnoser.model.errors import BadInput, TooLarge, Undecodable

NOW = 1_800_000_000.0


def ndjson(*records: object) -> bytes:
    return b"\n".join(orjson.dumps(record) for record in records)


def test_text_is_one_block_of_the_query() -> None:
    """Plain text keeps its bytes and takes job, stream and number from the query."""
    batch = parse_text(b"a\nb\n", RecordDefaults("j", 2, Stream("stderr", "gpu-1", 3), 11), NOW)
    (block,) = batch.blocks[Target("j", 2)]
    assert (block.data, block.first, block.stream.rank, block.received) == (b"a\nb\n", 11, 3, NOW)


def test_text_without_a_job_is_refused() -> None:
    """A text body names no job by itself, so the query must."""
    with pytest.raises(BadInput, match="no job"):
        parse_text(b"a\n", RecordDefaults(), NOW)


def test_records_are_grouped_by_attempt_and_stream() -> None:
    """Each record's own fields override the query's, and each stream gets one block."""
    body = ndjson(
        {"message": "a", "rank": 0}, {"log": "b\n", "rank": 1, "host": "gpu-7"}, "c", {"line": "d", "job": "other"}
    )
    batch = parse_ndjson(body, RecordDefaults("j"), NOW)
    got = {(target, block.stream): block.data for target, blocks in batch.blocks.items() for block in blocks}
    assert got == {
        (Target("j", None), Stream(rank=0)): b"a",
        (Target("j", None), Stream(rank=1, node="gpu-7")): b"b",
        (Target("j", None), Stream()): b"c",
        (Target("other", None), Stream()): b"d",
    }


def test_records_with_the_same_keys_are_placed_by_their_own_values() -> None:
    """Also where the first of them has a null under a key that can name the place."""
    rows = [{"message": "a", "node": None}, {"message": "b", "node": "gpu-7"}, {"message": "c", "node": None}]
    batch = parse_ndjson(b"\n".join(map(orjson.dumps, rows)), RecordDefaults(job="j"), NOW)
    blocks = [block for blocks in batch.blocks.values() for block in blocks]
    assert {(block.stream.node, block.data) for block in blocks} == {("", b"a\nc"), ("gpu-7", b"b")}


def test_bad_records_are_told_and_the_good_ones_kept() -> None:
    """A malformed record costs itself only; the first ones are named with their line."""
    batch = parse_ndjson(
        b'{"message": "a"}\n{oops\n[1]\n{"x": 1}\n{"message": "b", "rank": "no"}', RecordDefaults("j"), NOW
    )
    assert [block.data for block in batch.blocks[Target("j", None)]] == [b"a"]
    assert batch.rejected == 4
    assert [error.split(":")[0] for error in batch.errors] == ["line 2", "line 3", "line 4", "line 5"]


def test_a_rejected_record_keeps_the_numbers_of_those_behind_it() -> None:
    """In a numbered batch an unusable record leaves an empty line in its place."""
    batch = parse_ndjson(b'{"message": "a"}\n{oops\n{"message": "b"}', RecordDefaults("j", first=5), NOW)
    (block,) = batch.blocks[Target("j", None)]
    assert (block.first, block.data, batch.rejected) == (5, b"a\n\nb", 1)


def test_an_offset_needs_one_stream() -> None:
    """Numbers can not be dealt out over several streams."""
    with pytest.raises(BadInput, match="offset"):
        parse_ndjson(
            ndjson({"message": "a", "rank": 0}, {"message": "b", "rank": 1}), RecordDefaults("j", first=1), NOW
        )


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (1_790_000_000, 1_790_000_000.0),
        (1_790_000_000_123, 1_790_000_000.123),
        ("1790000000000000000", 1_790_000_000.0),
        ("2026-09-21T13:33:20Z", 1_789_997_600.0),
        ("2026-09-21T13:33:20", 1_789_997_600.0),
    ],
)
def test_times_are_read_in_every_usual_unit(given: object, seconds: float) -> None:
    """Seconds, milli-, micro- and nanoseconds and ISO 8601 mean the same moment."""
    (block,) = parse_ndjson(ndjson({"message": "a", "time": given}), RecordDefaults("j"), NOW).blocks[Target("j", None)]
    assert block.times == pytest.approx((seconds,))


@pytest.mark.parametrize("given", [-5, 0, 99, 1e300, "yesterday", True, {"a": 1}])
def test_an_absurd_time_is_told_and_the_line_kept(given: object) -> None:
    """A time outside 2000..2100 costs the time, not the line."""
    batch = parse_ndjson(ndjson({"message": "a", "time": given}), RecordDefaults("j"), NOW)
    (block,) = batch.blocks[Target("j", None)]
    assert (block.data, block.times, batch.rejected) == (b"a", None, 0)
    assert "1 records carry an unusable time" in batch.errors[0]


def test_times_stay_beside_their_lines() -> None:
    """A record of several lines gives its time to each; one without gives NaN."""
    body = ndjson({"message": "a\nb", "ts": 1_790_000_000}, {"message": "c"})
    (block,) = parse_ndjson(body, RecordDefaults("j"), NOW).blocks[Target("j", None)]
    assert block.times is not None
    assert block.times[:2] == (1_790_000_000.0, 1_790_000_000.0)
    assert math.isnan(block.times[2])


def test_an_array_and_a_single_record_are_both_read() -> None:
    """`application/json` may be a list of records or one."""
    assert len(parse_array(b'["a", "b"]', RecordDefaults("j"), NOW).blocks) == 1
    assert len(parse_array(b'{"message": "a"}', RecordDefaults("j"), NOW).blocks) == 1


def test_a_body_that_is_no_json_is_refused() -> None:
    """An array that can not be read holds no good record to keep."""
    with pytest.raises(Undecodable, match="not JSON"):
        parse_array(b"[1,", RecordDefaults("j"), NOW)


def test_text_that_utf8_cannot_spell_is_rejected() -> None:
    """A lone surrogate is not JSON text; the record is told, the one behind it kept."""
    batch = parse_ndjson(b'{"message": "a\\ud800b"}\n{"message": "c"}', RecordDefaults("j"), NOW)
    assert batch.rejected == 1
    assert [block.data for block in batch.blocks[Target("j", None)]] == [b"c"]


@pytest.mark.parametrize(
    ("parse", "body", "what"),
    [
        pytest.param(parse_text, b"\n" * 2_000_001, "2000000 lines", id="lines of text"),
        pytest.param(parse_ndjson, b"\n" * 200_001, "200000 records", id="lines of JSON"),
        pytest.param(parse_array, b"[" + b"0," * 200_000 + b"0]", "200000 records", id="items of an array"),
        pytest.param(parse_array, b'"' + b"\\n" * 2_000_001 + b'"', "2000000 lines", id="line ends in one record"),
        pytest.param(parse_ndjson, b"[" * 4_000_001, "4000000 nested", id="arrays in one record"),
    ],
)
def test_many_lines_in_few_bytes_are_refused(
    parse: Callable[[bytes, RecordDefaults, float], Batch], body: bytes, what: str
) -> None:
    """What compresses to kilobytes must not cost seconds; the message says what there is too much of."""
    with pytest.raises(TooLarge, match=what):
        parse(body, RecordDefaults("j"), 0.0)


def test_a_null_is_as_good_as_an_absent_field() -> None:
    """Shippers write null for what they do not know: the query's value counts, wherever the record stands."""
    defaults = RecordDefaults("j", 2, Stream(node="gpu-1", rank=3))
    nulls = b'{"message": "b", "job": null, "attempt": null, "rank": null, "node": null, "source": null, "time": null}'
    batch = parse_ndjson(b'{"message": "a"}\n' + nulls, defaults, 100.0)
    ((target, (block,)),) = batch.blocks.items()
    assert (target.job, target.attempt, block.stream, block.data) == ("j", 2, defaults.stream, b"a\nb")


FLUENT_BIT = {
    "date": 1_790_000_000.5,
    "stream": "stderr",
    "log": "loss is nan\n",
    "kubernetes": {
        "pod_name": "llm-0-b4x2k",
        "namespace_name": "team",
        "host": "gpu-1",
        "labels": {"job-name": "llm", "batch.kubernetes.io/job-completion-index": "0"},
        "annotations": {"diagnoser.io/rank": "3"},
    },
}
VECTOR = {
    "timestamp": "2026-09-21T13:33:20Z",
    "message": "loss is nan",
    "source_type": "kubernetes_logs",
    "stream": "stderr",
    "file": "/var/log/pods/team_llm-0-b4x2k_1/main/0.log",
    "kubernetes": {
        "pod_name": "llm-0-b4x2k",
        "pod_namespace": "team",
        "pod_node_name": "gpu-1",
        "pod_labels": {"batch.kubernetes.io/job-name": "llm"},
        "pod_annotations": {"diagnoser.io/rank": "3"},
    },
}
FILEBEAT = {
    "@timestamp": "2026-09-21T13:33:20.000Z",
    "message": "loss is nan",
    "host": {"name": "gpu-1"},
    "log": {"offset": 120, "file": {"path": "/home/ann/slurm-77.err"}},
    "fields": {"cluster": "east", "rank": 3.0},
}


@pytest.mark.parametrize(
    ("record", "job", "source"),
    [
        (FLUENT_BIT, "k8s:job:team:llm", "stderr"),
        (VECTOR, "k8s:job:team:llm", "stderr"),
        (FILEBEAT, "slurm-east-77", "stderr"),
    ],
)
@pytest.mark.parametrize("parse", [parse_ndjson, parse_array])
def test_what_shippers_nest_says_where_lines_go(
    record: dict[str, object], job: str, source: str, parse: Callable[..., Batch]
) -> None:
    """Fluent Bit, Vector and Filebeat need no renaming of fields; what repeats in a request goes to the same block."""
    body = ndjson(record, record) if parse is parse_ndjson else orjson.dumps([record, record])
    batch = parse(body, RecordDefaults(), NOW)
    ((target, (block,)),) = batch.blocks.items()
    assert (target, block.stream) == (Target(job, None), Stream(source, "gpu-1", 3))
    assert block.data == b"loss is nan\nloss is nan"
    assert block.times is not None
    assert (batch.rejected, batch.errors, len(block.times)) == (0, [], 2)


def test_our_own_fields_win_over_what_is_nested() -> None:
    """A record that names its job was made for us, whatever else its shipper adds; so was the query."""
    record = {**FLUENT_BIT, "job": "mine", "node": "gpu-9", "rank": 1}
    ((target, (block,)),) = parse_ndjson(ndjson(record), RecordDefaults(), NOW).blocks.items()
    assert (target, block.stream) == (Target("mine", None), Stream("stderr", "gpu-9", 1))
    ((target, _),) = parse_ndjson(ndjson(FLUENT_BIT), RecordDefaults("asked"), NOW).blocks.items()
    assert target == Target("asked", None)


def test_a_record_of_no_job_is_rejected_and_kept_to_be_shown() -> None:
    """The receipt tells it, and the sink gets its labels and the record as it came."""
    batch = parse_ndjson(ndjson({"log": "GET /", "kubernetes": {"host": "n", "app": "web"}}), RecordDefaults(), NOW)
    ((unplaced, told),) = batch.unplaced.items()
    assert (unplaced.labels, batch.rejected, batch.unplaced_lines) == ((("kubernetes.host", "n"),), 1, 1)
    assert told == (1, '{"log":"GET /","kubernetes":{"host":"n","app":"web"}}')


def test_an_empty_line_at_the_end_is_a_line() -> None:
    """Each record keeps its own number and time, the last one too."""
    body = ndjson({"message": "a", "time": 1_790_000_000}, {"message": "", "time": 1_790_000_001})
    (block,) = parse_ndjson(body, RecordDefaults("j", first=1), NOW).blocks[Target("j", None)]
    assert (block.lines, block.times) == (2, (1_790_000_000.0, 1_790_000_001.0))
