"""What an attempt's log is stored as: pieces, each either a delta or lines as they came.

A commit of a few lines stores them raw: compressing them would cost more than all the rest of the request, and keep
nearly all of them for their context. Later many raw pieces become one delta, as if the lines had come in one request.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson
import zstandard

from diagnoser.compress.codec import read_together
from diagnoser.compress.compressor import Compressor
from diagnoser.compress.delta import Delta
from diagnoser.compress.lines import count_lines
from diagnoser.compress.sampling import apply_limits
from diagnoser.model import LineBlock, Provenance, Stream
from diagnoser.model.errors import BadInput

RAW = 0xA1
"""First byte of raw pieces: the version of their format, apart from the versions of deltas."""
_MOST = 64 << 20
"""Largest unpacked piece in bytes."""


def pack(blocks: Sequence[LineBlock]) -> bytes:
    """Blocks as one raw piece: one byte, then what ``write_blocks`` makes of them."""
    return bytes([RAW]) + write_blocks(blocks, level=1)


def write_blocks(blocks: Sequence[LineBlock], level: int) -> bytes:
    """Under zstd a line of JSON, which says whose they are, and the lines of all blocks."""
    heads = [
        [b.stream.source, b.stream.node, b.stream.rank, b.stream.provenance, b.first, len(b.data), b.times, b.received]
        for b in blocks
    ]
    text = b"".join((orjson.dumps(heads), b"\n", *map(attrgetter("data"), blocks)))
    return zstandard.compress(text, level=level)


def is_raw(piece: bytes) -> bool:
    return piece[:1] == bytes([RAW])


def unpack(piece: bytes) -> list[LineBlock]:
    """The blocks of a raw piece. Raises BadInput when it is none."""
    return read_blocks(piece[1:])


def read_blocks(data: bytes) -> list[LineBlock]:
    """Read what ``write_blocks`` wrote. Raises BadInput for anything else."""
    try:
        text = zstandard.decompress(data, max_output_size=_MOST)
        end = text.index(b"\n")
        heads = orjson.loads(text[:end])
        return list(_blocks(heads, text, end + 1))
    except (zstandard.ZstdError, ValueError, TypeError) as error:
        raise BadInput(f"not lines as they came: {error}") from error


def _blocks(heads: Iterable[Sequence[Any]], text: bytes, start: int) -> Iterator[LineBlock]:
    for source, node, rank, provenance, first, size, times, received in heads:
        stream = Stream(source, node, rank, Provenance(provenance))
        known = None
        if times:
            known = tuple(math.nan if time is None else time for time in times)
        yield LineBlock(stream, text[start : start + size], first, known, received)
        start += size


def read(pieces: Iterable[bytes], compressor: Callable[[], Compressor]) -> Delta:
    """The merged delta of pieces, in any order. Raises BadInput for one that cannot be read."""
    blocks: list[LineBlock] = []
    compressed: list[bytes] = []
    for piece in pieces:
        if is_raw(piece):
            blocks += unpack(piece)
        else:
            compressed.append(piece)
    delta = read_together(compressed)
    if blocks:
        fed = compressor()
        for block in joined(blocks):
            fed.feed(block)
        delta.add(fed.take())
    elif len(compressed) == 1:  # within its limits already
        return delta
    return apply_limits(delta)


def joined(blocks: Iterable[LineBlock]) -> Iterator[LineBlock]:
    """The same lines in as few blocks as possible: the compressor's price is by the block where blocks are small."""
    ordered = sorted(blocks, key=lambda block: (block.stream, block.first))
    for _, of_stream in groupby(ordered, key=lambda block: block.stream):
        run: list[LineBlock] = []
        next_first = 0
        for block in of_stream:
            if not _continues(block, run, next_first):
                yield _join(run)
                run = []
            run.append(block)
            next_first = block.first + count_lines(block.data)
        yield _join(run)


def _continues(block: LineBlock, run: Sequence[LineBlock], next_first: int) -> bool:
    """Whether a block begins a run, or goes on where it ends, with times where that has times."""
    if not run:
        return True
    if block.first != next_first:
        return False
    return (block.times is None) == (run[0].times is None)


def _join(run: Sequence[LineBlock]) -> LineBlock:
    if len(run) == 1:
        return run[0]
    first, last = run[0], run[-1]
    parts = []
    for block in run[:-1]:
        parts.append(block.data.removesuffix(b"\n") + b"\n")
    data = b"".join(parts) + (last.data or b"\n")
    times = None if first.times is None else tuple(time for block in run for time in block.times or ())
    arrivals = tuple((block.first, block.received) for block in run)
    return LineBlock(first.stream, data, first.first, times, first.received, arrivals=arrivals)
