"""Syslog messages to blocks of lines: whose they are, and what stays of their heads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.dialects.prefixes import read_prefix, split_prefix
from diagnoser.ingest import Batch, RecordDefaults, Target
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.syslog import parse_syslog
from diagnoser.model import Provenance, Stream
from diagnoser.model.errors import BadInput

NOW = 1_800_000_000.0
AGENT = RecordDefaults(vouched=True)
OF_JOB = RecordDefaults("llm")
NEW = b"<11>1 2026-11-22T20:00:00.003Z gpu-1 train 4001 - - KeyError: 'x'"
OLD = b"<11>Nov 22 20:00:00 gpu-1 train[4001]: KeyError: 'x'"
KERNEL = b"<3>Nov 22 20:00:00 gpu-1 kernel: [12.3] NVRM: Xid (PCI:0000:1b:00): 79, pid=1"


def parse(body: bytes, defaults: RecordDefaults = OF_JOB) -> Batch:
    return parse_syslog(body, defaults, NOW, DEFAULT)


def lines(batch: Batch) -> dict[tuple[str, Stream], list[bytes]]:
    return {
        (target.job, block.stream): block.data.removesuffix(b"\n").split(b"\n")
        for target, blocks in batch.blocks.items()
        for block in blocks
    }


@pytest.mark.parametrize("message", [NEW, OLD, OLD.replace(b"Nov 22 20:00:00", b"2026-11-22T20:00:00.1+01:00")])
def test_the_host_is_the_node_and_the_process_stays_told(message: bytes) -> None:
    """A line of either form keeps time, severity and process where the compressor reads them, and its text."""
    ((job, stream), (line,)) = next(iter(lines(parse(message)).items()))
    prefix, text = split_prefix(line)
    assert (job, stream) == ("llm", Stream(node="gpu-1"))
    assert (text, line.startswith(b"<11>")) == (b"KeyError: 'x'", True)
    assert (read_prefix(prefix).node, read_prefix(prefix).pid) == ("gpu-1", 4001)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (b"<14>1 2026-11-22T20:00:00Z gpu-1 train - - - step 1", b"<14>2026-11-22T20:00:00Z step 1"),
        (b"<14>1 - gpu-1 train 7 - - \xef\xbb\xbfstep 1", b"<14>step 1"),
        (b"<14>Nov  2 20:00:00 gpu-1 train: step 1", b"<14>step 1"),
        (b"<14>1 2026-11-22T20:00:00Z gpu-1 my:app 7 - -", b"<14>2026-11-22T20:00:00Z gpu-1 my-app[7]: "),
    ],
)
def test_a_head_that_names_no_process_is_left_out(message: bytes, line: bytes) -> None:
    """Nothing would tell it from what the program says."""
    assert list(lines(parse(message)).values()) == [[line]]


def test_structured_data_says_job_and_rank_with_its_escapes() -> None:
    """An element of ours wins over the query, others fill its gaps; quotes and brackets in values end nothing."""
    message = rb'<14>1 2026-11-22T20:00:00Z gpu-1 train 7 - [x@1 note="a \"]\" b"][%s job="other" rank="3"] step 1'
    assert list(lines(parse(message % b"diagnoser@1"))) == [("other", Stream(node="gpu-1", rank=3))]
    assert list(lines(parse(message % b"mine@1"))) == [("llm", Stream(node="gpu-1", rank=3))]


def test_what_the_kernel_says_is_the_nodes_whoever_else_the_request_is_for() -> None:
    """The query's job and rank are of the node's programs; the credential says whether it counts as the node's word."""
    query = RecordDefaults("llm", 2, Stream(rank=4), vouched=True)
    batch = parse(KERNEL + b"\n" + OLD, query)
    of_node = Stream("syslog", "gpu-1", provenance=Provenance.NODE)
    assert list(lines(batch)) == [("~node//gpu-1", of_node), ("llm", Stream(node="gpu-1", rank=4))]
    ((_, stream),) = lines(parse(KERNEL))
    assert (stream.source, stream.provenance) == ("syslog", Provenance.JOB)


def test_a_kernel_log_is_what_the_shipper_reads_as_one() -> None:
    """The query says that the records are the kernel's own: a message of another facility or program is not among
    them, whichever of both it forges."""
    query = RecordDefaults(stream=Stream("kernel"), vouched=True)
    forged = (KERNEL.replace(b"<3>", b"<11>"), KERNEL.replace(b" kernel:", b" logger:"), OLD)
    batch = parse(b"\n".join((KERNEL, *forged)), query)
    of_node, others = (Stream(source, "gpu-1", provenance=Provenance.NODE) for source in ("kernel", "syslog"))
    assert {stream: len(texts) for (_, stream), texts in lines(batch).items()} == {of_node: 1, others: 3}


def test_what_belongs_to_no_job_is_the_nodes_syslog() -> None:
    """A message without a host as well, where the query names the node; else it is counted, with a sample."""
    batch = parse(b"<30>Nov 22 20:00:00 gpu-1 sshd[9]: hello\n<30>Nov 22 20:00:00 cron[9]: hello", AGENT)
    assert list(batch.blocks) == [Target("~node//gpu-1", None)]
    assert [count for count, _ in batch.unplaced.values()] == [1]
    named = parse(b"<30>Nov 22 20:00:00 cron[9]: hello", RecordDefaults(stream=Stream(node="n2"), vouched=True))
    assert list(named.blocks) == [Target("~node//n2", None)]


@pytest.mark.parametrize(
    "message",
    [
        b'<14>1 2026-11-22T20:00:00Z gpu-1 train 7 - [d@1 source="kernel"] NVRM: Xid',
        b'<14>1 2026-11-22T20:00:00Z gpu-1 train 7 - [d@1 diagnoser.source="scheduler"] NVRM: Xid',
        b"<14>Nov 22 20:00:00 gpu-1 kernel: NVRM: Xid",
    ],
)
def test_no_program_speaks_as_the_kernel_or_the_scheduler(message: bytes) -> None:
    """By its name or its structured data: any process can write those."""
    for defaults in (AGENT, RecordDefaults("llm", vouched=True)):
        ((_, stream),) = lines(parse(message, defaults))
        assert stream.source in ("syslog", "stdout")


def test_lines_without_a_head_go_on_with_the_message_before() -> None:
    """A traceback in one message stays with its program; text in front of all belongs where the query says."""
    batch = parse(b"text\n" + OLD + b"\n  File x\n<999>\n" + KERNEL, RecordDefaults("llm"))
    assert [texts[-1] for texts in lines(batch).values()] == [b"text", b"<999>", KERNEL]
    assert batch.rejected == 0


def test_counted_messages_may_hold_newlines() -> None:
    """RFC 6587: a length in front of each; one that ends nowhere costs its own message at most."""
    messages = [b"<11>Nov 22 20:00:00 gpu-1 train[1]: Traceback\n  File x", OLD]
    counted = b"".join(b"%d %s" % (len(message), message) for message in messages)
    (texts,) = lines(parse(counted)).values()
    assert texts == [*messages[0].split(b"\n"), OLD]
    wrong = b"999 " + OLD + b"\n" + b"%d %s" % (len(OLD), OLD)
    assert list(lines(parse(wrong)).values()) == [[OLD, OLD]]


def test_an_offset_is_refused() -> None:
    """Messages of many streams have no numbers in one."""
    with pytest.raises(BadInput, match="offset"):
        parse(OLD, RecordDefaults("llm", first=1))


PARTS = st.sampled_from(
    [NEW, OLD, KERNEL, b"\n", b"12 <", b"<", b">1 ", b"[", b'"', b"\\", b"]", b" - ", b"\xff", b"0"]
)


@given(st.lists(PARTS, max_size=30).map(b"".join))
def test_no_line_is_lost(body: bytes) -> None:
    """Whatever the body: the query names a job and a node, so every line is placed."""
    batch = parse(body, RecordDefaults("llm", stream=Stream(node="n1")))
    assert batch.rejected == 0
    placed = sum(block.lines for blocks in batch.blocks.values() for block in blocks)
    assert placed >= len(body.removesuffix(b"\n").split(b"\n")) - body.count(b"12 <")
