"""Loki's push request to blocks of lines, in both of its forms."""

import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.ingest import Batch, RecordDefaults, Target
from diagnoser.ingest.batch import RECORDS_LIMIT, Unattributed
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.protocols.loki import STREAMS_LIMIT, parse_loki, parse_loki_json, read_labels
from diagnoser.ingest.protocols.protobuf_wire import encoded
from diagnoser.model import Stream
from diagnoser.model.errors import BadInput, TooLarge, Undecodable
from tests.loki_messages import PushRequest

NOW = 1_800_000_000.0
SECONDS = 1_790_000_000
JOB = '{job="j"}'

Entry = tuple[int, str, dict[str, str]]


def push(*streams: tuple[str, list[Entry]]) -> bytes:
    """Nanoseconds, line and metadata of the entries of each label set."""
    request = PushRequest()
    for labels, entries in streams:
        stream = request.streams.add(labels=labels, hash=7)
        for nanos, line, metadata in entries:
            entry = stream.entries.add(line=line)
            entry.timestamp.seconds, entry.timestamp.nanos = divmod(nanos, 10**9)
            for name, value in metadata.items():
                entry.structured_metadata.add(name=name, value=value)
    return bytes(request.SerializeToString())


def parse(body: bytes) -> Batch:
    return parse_loki(body, RecordDefaults(), NOW, DEFAULT)


def parse_json(*streams: object) -> Batch:
    return parse_loki_json(orjson.dumps({"streams": streams}), RecordDefaults(), NOW, DEFAULT)


def lines(batch: Batch) -> dict[tuple[Target, Stream], bytes]:
    return {(target, block.stream): block.data for target, blocks in batch.blocks.items() for block in blocks}


nanos = st.integers(SECONDS * 10**9, (SECONDS + 10**6) * 10**9) | st.sampled_from([0, 1, SECONDS * 10**9])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["x" * 127, "y" * 128, "z" * 17_000]
)
metadata = st.dictionaries(st.sampled_from(["rank", "trace_id"]), st.sampled_from(["", "1", "2"]))
entries = st.lists(st.tuples(nanos, texts, metadata), max_size=8)


@given(st.lists(st.tuples(st.sampled_from([JOB, '{job="j", node="n"}', '{slurm_job_id="7"}']), entries), max_size=4))
def test_both_forms_say_the_same(streams: list[tuple[str, list[Entry]]]) -> None:
    """What generated classes write is read to the same lines, times and places as the JSON of it."""
    values = [
        {
            "stream": dict(read_labels(labels.encode())),
            "values": [[str(time), line, metadata] for time, line, metadata in of_stream],
        }
        for labels, of_stream in streams
    ]
    read, told = parse(push(*streams)), parse_json(*values)
    assert lines(read) == lines(told)
    assert read.rejected == told.rejected == 0
    for target, blocks in read.blocks.items():
        for block, other in zip(blocks, told.blocks[target], strict=True):
            assert (block.times is None) == (other.times is None)
            assert block.times is None or block.times == pytest.approx(other.times, nan_ok=True, abs=1e-6)


def test_an_entry_is_a_line_with_its_time() -> None:
    """Entries of one stream are one block, in their order."""
    body = push((JOB, [(SECONDS * 10**9, "a", {}), (SECONDS * 10**9 + 250_000_000, "b", {}), (0, "c", {})]))
    (block,) = parse(body).blocks[Target("j", None)]
    assert (block.data, block.first, block.received) == (b"a\nb\nc", 0, NOW)
    assert block.times is not None
    assert block.times[:2] == (SECONDS, SECONDS + 0.25)
    assert math.isnan(block.times[2])


def test_labels_and_metadata_say_where_lines_go() -> None:
    """What the mapping reads of an entry's metadata parts lines; what it does not read parts nothing."""
    body = push(
        (
            '{slurm_job_id="7", cluster="east"}',
            [
                (0, "a", {"rank": "0", "trace_id": "1"}),
                (0, "b", {"rank": "1"}),
                (0, "c", {"trace_id": "2", "rank": "0"}),
            ],
        )
    )
    target = Target("slurm-east-7", None)
    assert lines(parse(body)) == {(target, Stream(rank=0)): b"a\nc", (target, Stream(rank=1)): b"b"}


def test_joined_lines_are_parted_again() -> None:
    """A shipper that joins the lines of a stack sends one entry; each line gets its time."""
    (block,) = parse(push((JOB, [(SECONDS * 10**9, "a\nb\n", {}), (SECONDS * 10**9, "c", {})]))).blocks[
        Target("j", None)
    ]
    assert (block.data, block.times) == (b"a\nb\nc", (SECONDS,) * 3)


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    """A line that is not UTF-8 is a line: it costs neither itself nor its neighbours."""
    entry = encoded(1, encoded(1, SECONDS)) + encoded(2, b"\xff\xfe")
    (block,) = parse(encoded(1, encoded(1, JOB.encode()) + encoded(2, entry) * 2)).blocks[Target("j", None)]
    assert (block.data, block.times) == (b"\xff\xfe\n\xff\xfe", (SECONDS, SECONDS))


def test_a_broken_entry_costs_itself_only() -> None:
    """Inside of an entry nothing leads out of it; it is counted and told."""
    good = encoded(1, encoded(1, SECONDS)) + encoded(2, b"good")
    broken = (b"\x0a\x7f\x01", b"\x12\x05x", b"\x0a", b"\x0a\x02\x08\x01\x12\xff\xff", b"\xff" * 12)
    for bad in broken:
        batch = parse(encoded(1, encoded(1, JOB.encode()) + encoded(2, good) + encoded(2, bad) + encoded(2, good)))
        assert [block.data for block in batch.blocks[Target("j", None)]] == [b"good\ngood"], bad
        assert (batch.rejected, batch.errors[0][:18]) == (1, "stream 1, entry 2:")


def test_unknown_fields_and_other_orders_are_read() -> None:
    """A newer client may add fields, and the format leaves their order open."""
    entry = encoded(9, 4) + encoded(2, b"x" * 200) + encoded(1, encoded(2, 5) + encoded(1, SECONDS))
    body = encoded(7, b"new") + encoded(1, encoded(2, entry) + encoded(5, 1) + encoded(1, JOB.encode()))
    (block,) = parse(body).blocks[Target("j", None)]
    assert block.data == b"x" * 200
    assert block.times == pytest.approx((SECONDS,))


def test_faulty_labels_cost_their_stream() -> None:
    """Its entries are counted, those of the others kept."""
    batch = parse(push(("{job=", [(0, "a", {}), (0, "b", {})]), (JOB, [(0, "c", {})])))
    assert [block.data for block in batch.blocks[Target("j", None)]] == [b"c"]
    assert (batch.rejected, batch.errors) == (2, ["stream 1: not a label set: '{job='"])
    batch = parse_json({"stream": {"job": 1}, "values": [["0", "a"]]}, {"stream": {}}, 7)
    assert (batch.rejected, len(batch.errors)) == (3, 3)


@pytest.mark.parametrize("entry", [["x", "a"], ["1"], ["1", 2], {}, None, "12", [None, "a"], ["9" * 5000, "a"]])
def test_a_faulty_entry_of_json_costs_itself_only(entry: Any) -> None:
    """It is counted and told, with its number."""
    batch = parse_json({"stream": {"job": "j"}, "values": [["0", "a"], entry, ["0", "b"]]})
    assert [block.data for block in batch.blocks[Target("j", None)]] == [b"a\nb"]
    assert (batch.rejected, batch.errors[0][:18]) == (1, "stream 1, entry 2:")


def test_what_belongs_to_no_job_is_kept_apart() -> None:
    """It is no fault of an entry: its labels, the reason and a sample are there to be shown."""
    batch = parse(push(('{app="web", env="prod"}', [(0, "GET /", {}), (0, "GET /a", {})])))
    ((unplaced, told),) = batch.unplaced.items()
    assert isinstance(unplaced, Unattributed)
    assert unplaced.labels == (("app", "web"), ("env", "prod"))
    assert (told, batch.rejected, batch.blocks) == ((2, "GET /"), 0, {})


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{}", ()),
        ('{a="b"}', (("a", "b"),)),
        (' { a = "b" , c="d,}" , } ', (("a", "b"), ("c", "d,}"))),
        (r'{a="q\"\\\n\t\u00e9\x41"}', (("a", 'q"\\\n\té' + "A"),)),
        ("{a=`raw\\n`}", (("a", "raw\\n"),)),
    ],
)
def test_label_sets_are_read_as_prometheus_writes_them(text: str, labels: tuple[tuple[str, str], ...]) -> None:
    """With escapes, spaces and a last comma."""
    assert read_labels(text.encode()) == labels


@pytest.mark.parametrize("text", ["", "a", "{a}", '{a="b" c="d"}', '{a="b}', '{="b"}', '{1a="b"}'])
def test_what_is_no_label_set_is_told(text: str) -> None:
    """Nothing is guessed from it."""
    with pytest.raises(ValueError, match="not a label set"):
        read_labels(text.encode())


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05", b"\x0b", push((JOB, [(0, "abc", {})]))[:-1]])
def test_a_body_that_is_cut_off_is_refused(body: bytes) -> None:
    """What it would have held is not known: the shipper sends it again, or a person looks at it."""
    with pytest.raises(Undecodable):
        parse(body)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'{"streams": 1}'])
def test_json_of_another_shape_is_refused(body: bytes) -> None:
    """With a sentence that says so."""
    with pytest.raises(Undecodable):
        parse_loki_json(body, RecordDefaults(), NOW, DEFAULT)


def test_small_bodies_of_many_records_are_bounded() -> None:
    """Two bytes can be an entry, and one byte a line."""
    with pytest.raises(TooLarge, match="records"):
        parse(encoded(1, encoded(1, JOB.encode()) + encoded(2, b"") * (RECORDS_LIMIT + 1)))
    with pytest.raises(TooLarge, match="streams"):
        parse(encoded(1, b"") * (STREAMS_LIMIT + 1))
    with pytest.raises(TooLarge, match="lines"):
        parse(encoded(1, encoded(1, JOB.encode()) + encoded(2, encoded(2, b"\n" * 2_000_002))))


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 30))
def test_no_body_breaks_the_parser(noise: bytes, at: int, cut: int) -> None:
    """Any bytes are read or refused as a bad request."""
    body = push((JOB, [(SECONDS * 10**9, "x" * 150, {"rank": "1"}), (0, "y", {})]), ('{app="a"}', [(0, "z", {})]))
    for data in (noise, body[:at] + noise + body[at + cut :]):
        try:
            batch = parse(data)
        except BadInput:
            continue
        assert all(block.lines == len(block.times or range(block.lines)) for b in batch.blocks.values() for block in b)
