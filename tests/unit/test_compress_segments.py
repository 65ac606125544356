"""Original lines in segments: what goes in comes out, each segment by itself."""

import math
from random import Random

import pytest
import zstandard

from diagnoser.compress.segments import lines_of, read_segment, segments, stream_order
from diagnoser.model import LineBlock, Provenance, Stream
from diagnoser.model.errors import BadInput

STREAMS = [Stream("stdout", f"gpu-{node:03}", rank) for node in range(3) for rank in (-1, 0, 7)]
STREAMS += [Stream("stdout", "gpu-000", 0, Provenance.RUNTIME), Stream("a source\u2028", "", 0)]


def log(chance: Random, stream: Stream) -> list[LineBlock]:
    """Blocks as requests bring them: some with times, the last one without its newline, one empty line, a gap."""
    blocks, number = [], 1
    for _ in range(chance.randint(1, 8)):
        count = chance.randint(1, 40)
        text = b"".join(b"line %d %s\n" % (number + at, b"x" * chance.randint(0, 90)) for at in range(count))
        times = tuple(1e9 + at if at % 2 else math.nan for at in range(count)) if chance.random() < 0.5 else None
        blocks.append(LineBlock(stream, text, number, times, 100.0 + number))
        number += count + chance.choice((0, 0, 5))
    blocks.append(LineBlock(stream, b"\n" + b"the last one", number, None, 7.0))
    return blocks


@pytest.mark.parametrize("seed", range(5))
def test_every_line_is_in_exactly_one_segment(seed: int) -> None:
    """With its text, number and times, whatever the order of the blocks; a segment says which lines it holds."""
    chance = Random(seed)
    blocks = [block for stream in STREAMS for block in log(chance, stream)]
    made = list(segments(blocks, 500))
    chance.shuffle(blocks)
    assert list(segments(blocks, 500)) == made
    assert len(made) > 5
    for stream in STREAMS:
        sent = sorted(lines_of(blocks, stream, 1, 1 << 40))
        order = stream_order(stream)
        mine = [segment for segment in made if segment.streams[0] <= order <= segment.streams[1]]
        read = [line for segment in mine for line in read_segment(segment.data, stream, 1, 1 << 40)]
        assert list(map(repr, read)) == list(map(repr, sent))  # NaN is not equal to itself
        for segment in mine:
            numbers = [line.number for line in read_segment(segment.data, stream, 1, 1 << 40)]
            assert all(segment.lines[0] <= number <= segment.lines[1] for number in numbers)


def test_a_long_text_is_cut_between_its_lines() -> None:
    """One request of many lines becomes segments of about one size; a line that is longer is whole all the same."""
    text = b"".join(b"%04d\n" % number for number in range(1000)) + b"y" * 5000 + b"\nend"
    made = list(segments([LineBlock(STREAMS[0], text, 11)], 1000))
    assert [len(b"".join(line.text for line in read_segment(s.data, STREAMS[0], 1, 1 << 40))) for s in made] == [
        800, 800, 800, 800, 800, 5000, 3
    ]  # fmt: skip
    assert [segment.lines for segment in made] == [
        (11, 210), (211, 410), (411, 610), (611, 810), (811, 1010), (1011, 1011), (1012, 1012)
    ]  # fmt: skip


def test_only_the_lines_asked_for_are_read() -> None:
    """Both ends belong to them, and other streams' lines of the same numbers do not."""
    made = list(segments([LineBlock(stream, b"a\nb\nc\nd\n", 5) for stream in STREAMS]))
    assert len(made) == 1
    assert [(line.number, line.text) for line in read_segment(made[0].data, STREAMS[1], 6, 7)] == [(6, b"b"), (7, b"c")]
    assert list(read_segment(made[0].data, Stream("stderr"), 1, 9)) == []


def test_segments_can_be_read_without_this_program() -> None:
    """One after the other they are what zstd -dc prints: a line of JSON, then the log."""
    made = list(segments([LineBlock(STREAMS[0], b"one\ntwo\n"), LineBlock(STREAMS[1], b"three\n")], 8))
    joined = b"".join(segment.data for segment in made)
    text = zstandard.ZstdDecompressor().stream_reader(joined, read_across_frames=True).read()
    assert [line for line in text.splitlines() if not line.startswith(b"[[")] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("data", [b"", b"x", zstandard.compress(b"no head"), zstandard.compress(b"[1]\nx\n")])
def test_what_is_no_segment_is_told(data: bytes) -> None:
    """A damaged object is an error of its own kind, not a crash."""
    with pytest.raises(BadInput):
        list(read_segment(data, STREAMS[0], 1, 9))
