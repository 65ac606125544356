"""The line reader: whole lines of any chunks, bounded memory for any line."""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.compress import Compressor, digest
from diagnoser.compress.blocks import MOST, whole_lines
from diagnoser.compress.lines import LONGEST
from diagnoser.model import LineBlock, Stream
from tests import fuzz
from tests.thorough import examples

MB = 1 << 20
BAR = b"\r%5d%%|####      | 12/9000 [00:01<09:12, 12.11it/s]"


@settings(max_examples=examples(80))
@given(st.lists(st.binary(max_size=60)))
def test_short_lines_come_out_as_they_are(chunks: list[bytes]) -> None:
    """However a file is cut into chunks, nothing is lost, and every block but the last ends with a line."""
    blocks = list(whole_lines([chunk for chunk in chunks if chunk]))
    assert b"".join(data for data, _ in blocks) == b"".join(chunks)
    assert all(data.endswith(b"\n") for data, _ in blocks[:-1])
    assert not any(missing for _, missing in blocks)


@settings(max_examples=examples(80))
@given(st.lists(st.binary(max_size=LONGEST) | st.just(b"x" * 5000) | st.just(b"\r 5%|# |" * 700), max_size=12))
def test_nothing_of_a_long_line_goes_uncounted(chunks: list[bytes]) -> None:
    """With a bound of 10,000 bytes a line: what came out and what is said to be missing is what went in, and no line is
    much longer than the bound.
    """
    read = [chunk for chunk in chunks if chunk]
    blocks = list(whole_lines(read, most=10_000))
    assert sum(len(data) + missing for data, missing in blocks) == sum(map(len, read))
    longest = max((len(line) for data, _ in blocks for line in data.split(b"\n")), default=0)
    assert longest <= 10_000 + 2 * LONGEST


def fed(chunks: Iterator[bytes]) -> tuple[Compressor, int]:
    """A compressor that has read the chunks, and the most memory that it took, in bytes."""
    compressor, number = Compressor(), 1
    tracemalloc.start()
    for data, missing in whole_lines(chunks):
        compressor.feed(LineBlock(Stream(), data, number, missing=missing))
        number += data.count(b"\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return compressor, peak


@pytest.mark.parametrize(
    ("piece", "times", "kept"),
    [(b"x" * MB, 100, b"bytes cut"), (b"\r" * MB, 100, b""), (BAR * (MB // len(BAR)), 25, b"12/9000")],
    ids=["one line of 100 MB", "100 MB of carriage returns", "25 MB of a bar that never ends its line"],
)
def test_a_line_without_end_is_read_in_bounded_memory(piece: bytes, times: int, kept: bytes) -> None:
    """No newline for very long, then an error: a few MB of memory, every byte counted, the error kept."""

    def chunks() -> Iterator[bytes]:
        for _ in range(times):
            yield piece
        yield b"\nKeyError: 'width'\n"

    compressor, peak = fed(chunks())
    delta = compressor.take()
    first, last = digest(delta).lines
    assert last.body == "KeyError: 'width'"
    assert kept in first.text.encode()
    assert len(first.text) <= LONGEST
    assert delta.bytes == times * len(piece) + len(b"\nKeyError: 'width'\n")
    assert delta.lines == 2
    assert delta.bytes - delta.cut_bytes - delta.painted < 2 * LONGEST
    assert peak < 12 * MOST


@settings(max_examples=examples(150))
@given(st.binary(max_size=2000) | st.lists(st.sampled_from(fuzz.SEEDS), max_size=30).map(b"".join))
def test_the_fuzz_target_holds(data: bytes) -> None:
    """What the fuzzer checks for hours holds for a few hundred inputs in each run of the tests."""
    fuzz.one_input(data)
