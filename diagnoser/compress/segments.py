"""What is kept of original lines: segments that can each be read by itself, ordered by stream and line.

An object of an archive is one segment after the other, all of them zstd, so that ``zstd -dc`` prints it: before the
lines of a segment stands one line of JSON that says whose they are.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from diagnoser.compress.raw_chunks import read_blocks, write_blocks
from diagnoser.model import LineBlock, Stream

SEGMENT_BYTES = 256 << 10
"""Text of a segment, about: what has to be read for one line."""
LEVEL = 6
"""Of zstd: it costs a tenth of what compressing the log to its delta costs."""


@dataclass(frozen=True, slots=True)
class Segment:
    """streams: the first and the last of it, as ``stream_order`` puts them. lines: lowest and highest number in it."""

    data: bytes
    streams: tuple[bytes, bytes]
    lines: tuple[int, int]


class NumberedLine(NamedTuple):
    """time: when it was printed, NaN where the log does not say. received: when it arrived. Seconds since the epoch."""

    number: int
    text: bytes
    time: float
    received: float


def stream_order(stream: Stream) -> bytes:
    """Sort key of the streams of segments: the same order in every database."""
    return "\x1f".join((stream.source, stream.node, str(stream.rank), stream.provenance)).encode()


def segments(blocks: Iterable[LineBlock], size: int = SEGMENT_BYTES) -> Iterator[Segment]:
    """The same lines give the same segments, in whatever order their blocks come. Those of a stream do not overlap."""
    batch: list[LineBlock] = []
    filled = 0
    for block in sorted(blocks, key=lambda block: (stream_order(block.stream), block.first)):
        for part in _parts(block, size):
            if batch and filled + len(part.data) > size:
                yield _segment(batch)
                batch, filled = [], 0
            batch.append(part)
            filled += len(part.data)
    if batch:
        yield _segment(batch)


def read_segment(data: bytes, stream: Stream, first: int, last: int) -> Iterator[NumberedLine]:
    """Lines first..last (closed) of a stream. Raises BadInput when ``data`` is no segment."""
    return lines_of(read_blocks(data), stream, first, last)


def lines_of(blocks: Iterable[LineBlock], stream: Stream, first: int, last: int) -> Iterator[NumberedLine]:
    """The same of blocks."""
    for block in blocks:
        if block.stream != stream:
            continue
        if block.first > last:
            continue
        if block.first + block.lines <= first:
            continue
        for number, text in enumerate(block.data.removesuffix(b"\n").split(b"\n"), block.first):
            if first <= number <= last:
                yield numbered(block, number, text)


def numbered(block: LineBlock, number: int, text: bytes) -> NumberedLine:
    """A line of a block with its times."""
    time = block.times[number - block.first] if block.times else math.nan
    return NumberedLine(number, text, time, block.received_at(number))


def _segment(blocks: Sequence[LineBlock]) -> Segment:
    return Segment(
        write_blocks(blocks, LEVEL),
        (stream_order(blocks[0].stream), stream_order(blocks[-1].stream)),
        (min(map(attrgetter("first"), blocks)), max(block.first + block.lines - 1 for block in blocks)),
    )


def _parts(block: LineBlock, size: int) -> Iterator[LineBlock]:
    """Whole lines, each part about so large; a longer line is a part of its own."""
    data, start, first = block.data, 0, block.first
    if len(data) <= size:
        yield block
        return
    while start < len(data):
        end = len(data)
        if end - start > size:
            end = data.rfind(b"\n", start, start + size) + 1 or data.find(b"\n", start) + 1 or end
        part = replace(block, data=data[start:end], first=first, times=None)
        if block.times:
            part = replace(part, times=block.times[first - block.first :][: part.lines])
        yield part
        start, first = end, first + part.lines
