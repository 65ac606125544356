"""Messages of a queue become lines: whose they are, when they were written, and what is left out."""

import math

import orjson

from diagnoser.ingest import RecordDefaults, Target
from diagnoser.ingest.batch import Batch
from diagnoser.ingest.mapping import DEFAULT, load
from diagnoser.ingest.messages import MessageReader
from diagnoser.model import Provenance, Stream, UnplacedReason
from diagnoser.model.logs import Partition
from diagnoser.ports import Message

PARTITION = Partition("brokers", "group", "logs", 0)
TEXT = MessageReader(DEFAULT, "text", RecordDefaults())
JSON = MessageReader(DEFAULT, "json", RecordDefaults())


def message(value: bytes, key: bytes = b"llm", time: float = math.nan, **headers: str) -> Message:
    return Message(PARTITION, 0, key, value, tuple((name, text.encode()) for name, text in headers.items()), time)


def record(**fields: object) -> bytes:
    return orjson.dumps(fields)


def read(reader: MessageReader, *messages: Message) -> Batch:
    return reader.read(messages, 100.0)


def reasons(batch: Batch) -> list[tuple[UnplacedReason, int, str]]:
    return [(unplaced.reason, lines, sample) for unplaced, (lines, sample) in batch.unplaced.items()]


def test_the_key_is_the_job_and_headers_say_the_rest() -> None:
    """Messages of one key and the same headers are one block, in their order."""
    batch = read(TEXT, message(b"one\n", rank="3", node="gpu-1"), message(b"two\nthree", rank="3", node="gpu-1"))
    ((target, (block,)),) = batch.blocks.items()
    assert (target, block.stream) == (Target("llm", None), Stream("stdout", "gpu-1", 3))
    assert (block.data, block.first, block.times) == (b"one\ntwo\nthree", 0, None)


def test_lines_of_a_stream_stay_in_their_order() -> None:
    """Headers that say nothing of the place tell no streams apart, and do not put lines in another order."""
    messages = message(b"1", level="info"), message(b"2", level="error"), message(b"3", level="info")
    (block,) = read(TEXT, *messages).blocks[Target("llm", None)]
    assert block.data == b"1\n2\n3"


def test_a_line_has_the_time_of_its_message() -> None:
    """Each line of a message that holds several has it; where the queue says none, the arrival counts."""
    (block,) = read(TEXT, message(b"a\nb", time=5.0), message(b"c")).blocks[Target("llm", None)]
    assert block.times is not None
    assert block.times[:2] == (5.0, 5.0)
    assert math.isnan(block.times[2])


def test_a_record_says_more_than_its_key_and_headers() -> None:
    """JSON values name their own place; what they leave open, key and headers tell."""
    batch = read(JSON, message(record(message="a", rank=1), rank="7", node="gpu-1"), message(record(log="b"), rank="7"))
    assert {(target.job, block.stream) for target, blocks in batch.blocks.items() for block in blocks} == {
        ("llm", Stream("stdout", "gpu-1", 1)),
        ("llm", Stream("stdout", "", 7)),
    }
    assert read(JSON, message(record(message="a", job="other"))).blocks.keys() == {Target("other", None)}


def test_a_message_may_hold_many_records() -> None:
    """An array, one a line, or one over several lines."""
    rows = [record(message="a"), record(message="b")]
    values = [b"[" + b",".join(rows) + b"]", b"\n".join(rows), b'{\n "message": "c"\n}']
    (block,) = read(JSON, *map(message, values)).blocks[Target("llm", None)]
    assert block.data == b"a\nb\na\nb\nc"


def test_what_a_shipper_nests_is_read_by_the_mapping() -> None:
    """A record of Fluent Bit names its job by the labels of its pod, where the key says nothing."""
    pod = {"namespace_name": "team", "labels": {"training.kubeflow.org/job-name": "llm"}}
    keyless = MessageReader(DEFAULT, "json", RecordDefaults(), key_is_job=False)
    batch = read(keyless, message(record(log="a", kubernetes=pod), key=b"kube.var.log"))
    assert batch.blocks.keys() == {Target("k8s:pytorchjob:team:llm", None)}


def test_a_file_of_the_operator_reads_headers() -> None:
    """Headers are labels like any other."""
    site = MessageReader(load("site.yaml", "job: [experiment]\n"), "text", RecordDefaults(), key_is_job=False)
    assert read(site, message(b"a", key=b"x", experiment="run-1")).blocks.keys() == {Target("run-1", None)}


def test_a_message_without_a_place_costs_its_neighbours_nothing() -> None:
    """It is counted with its reason and a sample."""
    batch = read(TEXT, message(b"a"), message(b"b\nc", key=b""), message(b"d", key=b"team/llm", app="web"))
    assert batch.blocks.keys() == {Target("llm", None)}
    assert batch.rejected == 3
    assert reasons(batch) == [(UnplacedReason.NO_JOB, 2, "b"), (UnplacedReason.NOT_A_JOB_ID, 1, "d")]
    assert [dict(unplaced.labels) for unplaced in batch.unplaced][1] == {"app": "web", "message key": "team/llm"}


def test_a_value_that_is_no_record_costs_its_neighbours_nothing() -> None:
    """Not JSON, or JSON without a line: both are unreadable."""
    batch = read(JSON, message(record(message="a")), message(b"{broken"), message(b"7"), message(record(level="info")))
    (block,) = batch.blocks[Target("llm", None)]
    assert block.data == b"a"
    assert batch.rejected == 3
    assert reasons(batch) == [(UnplacedReason.UNREADABLE, 3, "{broken")]


def test_an_empty_line_is_a_line() -> None:
    """Also at the end: lines and their times stay side by side."""
    (block,) = read(TEXT, message(b"a", time=5.0), message(b"\n", time=6.0)).blocks[Target("llm", None)]
    assert (block.lines, block.times) == (2, (5.0, 6.0))


def test_a_tombstone_says_nothing() -> None:
    """A compacted topic marks deleted keys with empty values."""
    assert read(TEXT, message(b"")) == read(JSON, message(b"")) == Batch()


def test_bytes_that_are_no_text_are_kept() -> None:
    """The lines stay as they are; keys and headers that are no UTF-8 place nothing, and fail nothing."""
    (block,) = read(TEXT, message(b"\xff\xfe")).blocks[Target("llm", None)]
    assert block.data == b"\xff\xfe"
    assert reasons(read(TEXT, message(b"\xff", key=b"\xff")))[0][0] is UnplacedReason.NOT_A_JOB_ID


def test_only_a_topic_that_is_vouched_for_speaks_for_nodes() -> None:
    """The same message is a job's word, or the node's own."""
    own = message(b"NVRM: Xid 79", key=b"", source="kernel", node="gpu-1")
    ((target, (block,)),) = read(TEXT, own).blocks.items()
    assert (target.job, block.stream.provenance) == ("~node//gpu-1", Provenance.JOB)
    vouched = MessageReader(DEFAULT, "text", RecordDefaults(cluster="east", vouched=True))
    ((target, (block,)),) = read(vouched, own).blocks.items()
    assert (target.job, block.stream.provenance) == ("~node/east/gpu-1", Provenance.NODE)
