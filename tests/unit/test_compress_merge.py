"""Any split, any order, any number of replicas, whatever each of them saw before: the same delta and digest."""

import random
from dataclasses import replace
from itertools import pairwise

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.compress import (
    Compressor,
    CompressorLimits,
    Delta,
    FilterSet,
    Prefilter,
    compressor,
    digest,
    from_bytes,
    merge,
    read_together,
    signature,
    to_bytes,
    tokenized_chunk,
)
from diagnoser.compress.sampling import apply_limits
from diagnoser.compress.template_cache import shapes
from diagnoser.dialects.prefixes import read_prefix
from diagnoser.ingest import OffsetRanges, covered_with, missing
from diagnoser.model import Anchor, LineBlock, Stream
from diagnoser.model.errors import BadInput
from tests.thorough import examples

TIGHT = CompressorLimits(
    shapes=12,
    signatures=6,
    extremes=3,
    window=4,
    voices=3,
    small=5,
    rises=0,
    series=2,
    first=2,
    last=3,
    spread=4,
    latest=3,
    nodes=2,
)
GATE = Prefilter(
    [Anchor("Xid", True), Anchor("lost contact")],
    [(("Xid",), (r"Xid .*: 79\b",), True), (("lost contact",), ("lost contact",), False)],
)
FILTERS = FilterSet((("own/beat", r"^beat \d{2} of [\w.]+ error"),), (r"^upd (?P<step>\d+) obj (?P<loss>\S+)",))
LINES = [
    b"iteration %d: loss %d.5, grad norm 1.0",
    b"%d: ValueError: bad value %d",
    b"Traceback (most recent call last):",
    b'  File "train.py", line %d, in main',
    b"    run()",
    b"RuntimeError: exit code %d",
    b"[rank%d]: hello",
    b"%d: waiting for data",
    b"kernel: Xid (PCI:0000:0%d:00): 79, gone",
    b"kernel: Xid (PCI:0000:0%d:00): 13, fault",
    b"lost contact with peer %d",
    b"NaN in step %d",
    b"unique %x word",
    b"n%d:11:12 [0] NCCL INFO comm 0xabc rank %d nranks 8 done",
    b"",
    b"saved checkpoint /ckpt/%d",
]


def written(choices: list[tuple[int, int]]) -> list[bytes]:
    return [LINES[kind % len(LINES)].replace(b"%d", b"%d" % n).replace(b"%x", b"w%c" % (97 + n)) for kind, n in choices]


def fresh_process() -> None:
    """Forget every line that this process ever saw, as another replica never saw it."""
    shapes.cache_clear()
    for memo in (read_prefix, signature._named, compressor._code):
        memo.cache_clear()


def one(stream: Stream, lines: list[bytes], first: int, limits: CompressorLimits) -> Delta:
    made = Compressor(GATE, FILTERS, limits)
    made.feed(LineBlock(stream, b"".join(line + b"\n" for line in lines), first))
    return made.take()


def pieces(lines: list[bytes], cuts: list[int], limits: CompressorLimits) -> list[Delta]:
    """Two streams, each cut into blocks at the same places."""
    places = sorted({0, len(lines), *(cut % (len(lines) + 1) for cut in cuts)})
    return [
        one(stream, lines[low:high], low + 1, limits)
        for stream in (Stream(), Stream("stderr", "n2"))
        for low, high in pairwise(places)
    ]


choice = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 9)), min_size=1, max_size=60)


def test_the_last_line_that_places_a_rank_counts_in_any_order() -> None:
    """A job that is launched again has its ranks elsewhere: the later node of a rank stands."""
    before, after = Delta(), Delta()
    before.share(Stream()).nodes[3, 1] = (10, "gpu-001")
    after.share(Stream()).nodes[3, 1] = (900, "gpu-000")
    for first, second in ((before, after), (after, before)):
        merged = Delta()
        merged.add(first)
        merged.add(second)
        assert merged.share(Stream()).nodes == {(3, 1): (900, "gpu-000")}


@settings(max_examples=examples(120))
@given(choice, st.lists(st.integers(0, 60), max_size=8), st.randoms(use_true_random=False), st.booleans())
def test_any_split_order_and_grouping_gives_the_same(
    choices: list[tuple[int, int]], cuts: list[int], rng: random.Random, tight: bool
) -> None:
    """Merging is commutative and associative down to the last byte, also when every bound is hit."""
    limits = TIGHT if tight else CompressorLimits()
    lines = written(choices)
    whole = merge(pieces(lines, [], limits), limits)
    parts = pieces(lines, cuts, limits)
    rng.shuffle(parts)
    at = rng.randrange(len(parts) + 1)
    grouped = merge([merge(parts[:at], limits), from_bytes(to_bytes(merge(parts[at:], limits)), limits)], limits)
    assert to_bytes(grouped) == to_bytes(whole)
    assert digest(grouped).evidence == digest(whole).evidence


@settings(max_examples=examples(80))
@given(
    choice,
    st.lists(st.integers(0, 60), max_size=8),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.integers(1, 3),
)
def test_blocks_of_many_streams_that_are_read_together_give_the_same(
    choices: list[tuple[int, int]], cuts: list[int], rng: random.Random, tight: bool, chunks: int
) -> None:
    """Small blocks of several streams, with and without a rank, in any order and in chunks of any number, are as if
    each had been compressed by itself."""
    limits = TIGHT if tight else CompressorLimits()
    lines, streams = written(choices), [Stream("stdout", f"n{rank}", rank) for rank in (2, -1, 0)]
    places = sorted({0, len(lines), *(cut % (len(lines) + 1) for cut in cuts)})
    blocks = [
        LineBlock(stream, b"\n".join(lines[low:high]), low + 1, tuple(map(float, range(low, high))), 5.0)
        for stream in streams
        for low, high in pairwise(places)
    ]
    alone = []
    for block in blocks:
        fed = Compressor(GATE, FILTERS, limits)
        fed.feed(block)
        alone.append(fed.take())
    rng.shuffle(blocks)
    together = Compressor(GATE, FILTERS, limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressor, "_TOGETHER", sum(len(block.data) for block in blocks) // chunks)
        for block in blocks:
            together.feed(block)
        assert to_bytes(merge([together.take()], limits)) == to_bytes(merge(alone, limits))


@given(st.integers(2, 3_000), st.booleans())
def test_blank_lines_counted_at_once_are_the_same_lines(count: int, tight: bool) -> None:
    """Numbers, counts and kept lines are those of reading one line at a time, down to the last byte."""
    limits = TIGHT if tight else CompressorLimits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenized_chunk, "_blank_lines", lambda data: 0)
        slow = one(Stream(), [b""] * count, 7, limits)
    assert to_bytes(one(Stream(), [b""] * count, 7, limits)) == to_bytes(slow)
    assert slow.lines == count


TWINS = [
    ("%s: step", ["7", "12", "123456", "-", ""]),
    ("beat %s of run.%s error", ["7", "12", "345", " 12", "x"]),
    ("upd %s obj %s", ["5", "x", " 12", "-3"]),
    ("iteration %s/ %s | loss %s", ["5", " 12", "nan", "-", "inf", "x"]),
    ("%sailed: code %s, exit code %s", ["f", "5f", "-f", "xf", " f", "404"]),
    ("E%s %s:%s x.cc:%s] lost", ["1104", "03", "5", "-"]),
    ("commit %s, addr 0x%s", ["3f2a9bc1", "face", "12345678", "7f", "a1b2c3d4e5"]),
    ("node%s:%s:%s [%s] NCCL INFO x", ["1", "22", "-3", "123456789"]),
    ("%s Client Error: status=%s", ["404", "999", "5.3", "x"]),
    ("srun: error: node%s: tasks %s: Killed", ["1", "3,5", "[4-7]", "x"]),
    ("Xid (PCI:0000:0%s:00): %s, gone", ["1", "79", "13", "790", "7 9"]),
    ('[rank%s]:   File "a%s.py", line %s, in f', ["3", "12", " 4", "", "123456"]),
    ("lost %scontact with peer %s", ["", " ", "-", "5"]),
    (" %s%%|## | %s/9 [00:0%s<00:02, 3it/s]boom %s", ["5", " 12", "7", "xf"]),
]
"""Lines that have (nearly) all but numbers, signs and gaps in common, so that caches take them for each other."""


@st.composite
def twins(draw: st.DrawFn) -> bytes:
    text, values = draw(st.sampled_from(TWINS))
    return (
        (
            text.replace("%%", "\0")
            % tuple(draw(st.sampled_from(values)) for _ in range(text.replace("%%", "").count("%s")))
        )
        .replace("\0", "%")
        .encode()
    )


@settings(max_examples=examples(150))
@given(
    st.lists(twins(), min_size=1, max_size=40),
    st.lists(st.integers(0, 60), max_size=5),
    st.lists(twins(), max_size=12),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_replicas_that_saw_other_lines_before_agree(
    lines: list[bytes], cuts: list[int], seen: list[bytes], rng: random.Random, tight: bool
) -> None:
    """One process that reads everything, and replicas that each start fresh, have read other logs, and get one part
    each, in any order: the same bytes.
    """
    limits = TIGHT if tight else CompressorLimits()
    fresh_process()
    whole = to_bytes(one(Stream(), lines, 1, limits))
    places = sorted({0, len(lines), *(cut % (len(lines) + 1) for cut in cuts)})
    parts = []
    for low, high in pairwise(places):
        fresh_process()
        one(Stream("other"), rng.sample(seen, rng.randint(0, len(seen))), 1, limits)
        parts.append(to_bytes(one(Stream(), lines[low:high], low + 1, limits)))
    rng.shuffle(parts)
    merged = merge([from_bytes(part, limits) for part in parts], limits)
    assert to_bytes(merged) == to_bytes(apply_limits(read_together(parts, limits))) == whole
    assert repr(digest(merged).evidence) == repr(digest(from_bytes(whole, limits)).evidence)  # NaN is NaN


@settings(max_examples=examples(80))
@given(
    st.lists(twins(), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_batches_that_overlap_or_come_twice_count_once(
    lines: list[bytes], spans: list[tuple[int, int]], rng: random.Random, tight: bool
) -> None:
    """Numbered batches in any order, overlapping, repeated, each to another fresh replica: with the ranges that the
    store keeps, the same bytes as one process that reads the log once.
    """
    limits, last = TIGHT if tight else CompressorLimits(), len(lines)
    fresh_process()
    whole = to_bytes(one(Stream(), lines, 1, limits))
    batches = [(min(span) % last + 1, min(max(span) % last + 1, last)) for span in spans]
    batches = [(min(pair), max(pair)) for pair in batches] * 2 + [(1, last)]
    rng.shuffle(batches)
    held, parts = OffsetRanges(), []
    for low, high in batches:
        fresh_process()
        for first, end in missing(held, low, high):
            parts.append(to_bytes(one(Stream(), lines[first - 1 : end], first, limits)))
        held = covered_with(held, low, high)
    assert to_bytes(merge([from_bytes(part, limits) for part in parts], limits)) == whole


@settings(max_examples=examples(60))
@given(choice)
def test_settling_again_changes_nothing(choices: list[tuple[int, int]]) -> None:
    """A merged delta is already under its bounds: merging it alone gives itself."""
    whole = merge(pieces(written(choices), [], TIGHT), TIGHT)
    assert to_bytes(merge([whole], TIGHT)) == to_bytes(whole)


def test_one_long_block_and_many_feeds_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is cut into chunks inside a compressor leaves what one chunk would leave."""
    rng = random.Random(3)
    lines = written([(rng.randrange(16), rng.randrange(10)) for _ in range(3000)])
    whole = one(Stream(), lines, 1, TIGHT)
    monkeypatch.setattr("diagnoser.compress.compressor.CHUNK", 700)
    assert to_bytes(one(Stream(), lines, 1, TIGHT)) == to_bytes(whole)


def test_bytes_keep_nan_apart_from_not_printed() -> None:
    """A NaN loss that a site's own pattern read survives the store: JSON has no word for it."""
    made = Compressor(GATE, FilterSet(progress=(r"obj (?P<loss>\S+)",)))
    made.feed(LineBlock(Stream(), b"obj nan\n"))
    (point,) = digest(from_bytes(to_bytes(made.take()))).progress
    assert point.loss is not None and point.loss != point.loss
    assert point.tokens_per_second is None


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x01", b"\x01garbage", b"\x02" + b"x" * 9, b"\x03garbage"])
def test_bytes_that_are_no_delta_are_refused(data: bytes) -> None:
    """A wrong version or a broken body is an error of the input, not a crash."""
    with pytest.raises(BadInput):
        from_bytes(data)


def test_deltas_of_many_streams_are_read_together_in_any_order() -> None:
    """More deltas than are open at once, each of some of the streams, give the bytes of one process."""
    lines, rng = written([(number % 16, number % 10) for number in range(200)]), random.Random(5)
    whole, parts = Compressor(GATE, FILTERS), []
    for start in range(0, len(lines), 5):
        part = Compressor(GATE, FILTERS)
        for rank in rng.sample(range(9), 4):
            block = LineBlock(Stream(rank=rank), b"".join(lines[start : start + 5]), start + 1)
            whole.feed(block)
            part.feed(block)
        parts.append(to_bytes(part.take()))
    rng.shuffle(parts)
    assert to_bytes(apply_limits(read_together(parts))) == to_bytes(whole.take())


@pytest.mark.parametrize("streams", [0, 1, 3])
def test_a_delta_is_one_json_that_older_releases_read_and_write(streams: int) -> None:
    """Replicas of two releases read each other's deltas: only line ends were added."""
    parts = [one(Stream(rank=rank), written([(rank, 1)] * 9), 1, TIGHT) for rank in range(streams)]
    delta = merge(parts, TIGHT)
    stored = to_bytes(delta)
    text = zstandard.decompress(stored[1:], max_output_size=1 << 20)
    assert text.count(b"\n") == len(delta.shapes) + streams + 2
    older = stored[:1] + zstandard.compress(orjson.dumps(orjson.loads(text)))
    assert from_bytes(stored, TIGHT) == from_bytes(older, TIGHT) == delta


def test_times_and_arrival_are_part_of_the_lines() -> None:
    """The record's time wins over the line's own, and the line's own over the arrival."""
    block = LineBlock(
        Stream(), b"ValueError: a\n2026-01-01 00:00:10 ERROR b\nERROR c\n", 1, (5.0, float("nan"), float("nan")), 7.0
    )
    made = Compressor()
    made.feed(block)
    times = [line.time for line in digest(made.take()).lines]
    assert times == [5.0, 1767225610.0, 1767225610.0]
    made.feed(replace(block, data=b"plain\n", times=None))
    assert [line.time for line in digest(made.take()).lines] == [7.0]
