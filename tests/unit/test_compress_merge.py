"""Any split, any order, any number of replicas: the same delta and the same digest."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.compress import Compressor, Delta, FilterSet, Gate, Limits, digest, from_bytes, merge, to_bytes
from diagnoser.errors import BadInput
from diagnoser.model import Anchor, Block, Stream

TIGHT = Limits(
    shapes=12, signatures=6, extremes=3, window=4, voices=3, small=5, series=2, first=2, last=3, spread=4, latest=3, nodes=2
)
GATE = Gate(
    [Anchor("Xid", True), Anchor("lost contact")],
    [(("Xid",), (r"Xid .*: 79\b",), True), (("lost contact",), ("lost contact",), False)],
)
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


def one(stream: Stream, lines: list[bytes], first: int, limits: Limits) -> Delta:
    compressor = Compressor(GATE, limits=limits)
    compressor.feed(Block(stream, b"".join(line + b"\n" for line in lines), first))
    return compressor.take()


def pieces(lines: list[bytes], cuts: list[int], limits: Limits) -> list[Delta]:
    """Two streams, each cut into blocks at the same places."""
    places = sorted({0, len(lines), *(cut % (len(lines) + 1) for cut in cuts)})
    return [
        one(stream, lines[low:high], low + 1, limits)
        for stream in (Stream(), Stream("stderr", "n2"))
        for low, high in pairwise(places)
    ]


choice = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 9)), min_size=1, max_size=60)


@settings(max_examples=120, deadline=None)
@given(choice, st.lists(st.integers(0, 60), max_size=8), st.randoms(use_true_random=False), st.booleans())
def test_any_split_order_and_grouping_gives_the_same(
    choices: list[tuple[int, int]], cuts: list[int], rng: random.Random, tight: bool
) -> None:
    """Merging is commutative and associative down to the last byte, also when every bound is hit."""
    limits = TIGHT if tight else Limits()
    lines = written(choices)
    whole = merge(pieces(lines, [], limits), limits)
    parts = pieces(lines, cuts, limits)
    rng.shuffle(parts)
    at = rng.randrange(len(parts) + 1)
    grouped = merge([merge(parts[:at], limits), from_bytes(to_bytes(merge(parts[at:], limits)), limits)], limits)
    assert to_bytes(grouped) == to_bytes(whole)
    assert digest(grouped).evidence() == digest(whole).evidence()


@settings(max_examples=60, deadline=None)
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
    compressor = Compressor(GATE, FilterSet(progress=(r"obj (?P<loss>\S+)",)))
    compressor.feed(Block(Stream(), b"obj nan\n"))
    (point,) = digest(from_bytes(to_bytes(compressor.take()))).progress
    assert point.loss is not None and point.loss != point.loss
    assert point.tokens_per_second is None


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x01", b"\x01garbage", b"\x02" + b"x" * 9])
def test_bytes_that_are_no_delta_are_refused(data: bytes) -> None:
    """A wrong version or a broken body is an error of the input, not a crash."""
    with pytest.raises(BadInput):
        from_bytes(data)


def test_times_and_arrival_are_part_of_the_lines() -> None:
    """The record's time wins over the line's own, and the line's own over the arrival."""
    block = Block(
        Stream(), b"ValueError: a\n2026-01-01 00:00:10 ERROR b\nERROR c\n", 1, (5.0, float("nan"), float("nan")), 7.0
    )
    compressor = Compressor()
    compressor.feed(block)
    times = [line.time for line in digest(compressor.take()).lines]
    assert times == [5.0, 1767225610.0, 1767225610.0]
    compressor.feed(replace(block, data=b"plain\n", times=None))
    assert [line.time for line in digest(compressor.take()).lines] == [7.0]
