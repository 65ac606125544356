"""Lines stored as they came, and what becomes of them."""

import math
import random

import pytest

from diagnoser.compress import Compressor, Prefilter, merge, pack, read_pieces, to_bytes
from diagnoser.compress.raw_chunks import joined, unpack
from diagnoser.model import Anchor, LineBlock, Provenance, Stream
from diagnoser.model.errors import BadInput

OUT, ERR = Stream("stdout", "gpu-004", 3), Stream("stderr", "gpu-005", 4, Provenance.RUNTIME)
LINES = [
    b"step %d loss 2.5" % number if number % 97 else b"RuntimeError: CUDA error: %d" % number
    for number in range(1, 1200)
]


def block(first: int, last: int, *, end: bytes = b"\n", received: float = 0.0) -> LineBlock:
    return LineBlock(OUT, b"\n".join(LINES[first - 1 : last]) + end, first, None, received)


def test_a_raw_piece_gives_its_blocks_back() -> None:
    """Streams, numbers, times (unknown ones too), arrival, text without a last newline, and blank lines."""
    blocks = [
        LineBlock(OUT, b"a\nb", 5, (1.5, 2.5), 9.0),
        LineBlock(ERR, b"\n\n", 1, None, 9.5),
        LineBlock(OUT, b"", 7, (math.inf,), 9.5),
    ]
    stored = unpack(pack(blocks))
    assert [b.data for b in stored] == [b"a\nb", b"\n\n", b""]
    assert [(b.stream, b.first, b.received) for b in stored] == [(OUT, 5, 9.0), (ERR, 1, 9.5), (OUT, 7, 9.5)]
    (times,) = [b.times for b in unpack(pack([LineBlock(OUT, b"a\nb\n", 1, (math.nan, 2.0))]))]
    assert times and math.isnan(times[0]) and times[1] == 2.0


@pytest.mark.parametrize("data", [b"", b"\xa1", b"\xa1not zstd", bytes([0xA1]) + pack([block(1, 2)])[1:-6]])
def test_a_broken_piece_is_bad_input(data: bytes) -> None:
    """It is told, not read as an empty log."""
    with pytest.raises(BadInput):
        read_pieces([data], Compressor)


def test_the_delta_of_raw_pieces_is_that_of_their_text() -> None:
    """However small the pieces are, and in whichever order they are stored."""
    whole = Compressor()
    whole.feed(block(1, len(LINES)))
    pieces = [pack([block(first, min(first + 6, len(LINES)))]) for first in range(1, len(LINES) + 1, 7)]
    random.Random(5).shuffle(pieces)
    assert to_bytes(read_pieces(pieces, Compressor)) == to_bytes(whole.take())


def test_raw_pieces_and_deltas_merge() -> None:
    """A log that is partly compressed reads as the whole."""
    parts = []
    for low, high in ((1, 600), (601, len(LINES))):
        compressor = Compressor()
        compressor.feed(block(low, high))
        parts.append(compressor.take())
    mixed = read_pieces([to_bytes(parts[0]), pack([block(601, len(LINES))])], Compressor)
    assert to_bytes(mixed) == to_bytes(merge(parts))


def test_blocks_that_follow_each_other_are_joined() -> None:
    """Each line keeps its number and the time of its own arrival; a gap begins a new block."""
    parts = [block(1, 3, received=10.0), block(4, 5, end=b"", received=11.0), block(6, 6, received=12.0), block(9, 9)]
    whole, apart = joined(reversed(parts))
    assert (whole.data, whole.first, whole.lines) == (b"\n".join(LINES[:6]) + b"\n", 1, 6)
    assert [whole.received_at(number) for number in range(1, 7)] == [10.0, 10.0, 10.0, 11.0, 11.0, 12.0]
    assert apart.first == 9


def test_a_blank_line_at_the_end_of_a_joined_block_is_a_line() -> None:
    """An empty record counts, joined or not."""
    (whole,) = joined([block(1, 1), LineBlock(OUT, b"", 2)])
    assert whole.lines == 2


@pytest.mark.parametrize(
    ("line", "fatal"),
    [
        (b"step 7 loss 2.31", False),
        (b"WARNING: slow data loader", False),
        (b"ValueError: bad shape", True),
        (b"[rank3]: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        (b"NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus", True),
        (b"NVRM: Xid (PCI:0000:1b:00): 13, Graphics Exception", False),
    ],
)
def test_fatal_lines_are_seen_without_compressing(line: bytes, fatal: bool) -> None:
    """The quick look says of every text what its delta says, digits that a pattern asks for included."""
    watched = [(("Xid",), (r"Xid \([^)]*\): 79\b",), True)]
    compressor = Compressor(Prefilter([Anchor("CUDA out of memory", fatal=True)], watched))
    text = b"\n".join([b"step 6 loss 2.32", line, b"step 8 loss 2.30"]) + b"\n"
    assert compressor.has_fatal(text) is fatal
    compressor.feed(LineBlock(OUT, text))
    assert compressor.take().fatal is fatal
