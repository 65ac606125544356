"""Bad input: bounded memory, every line accounted for, and never a failure."""

import random
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest

from diagnoser.compress import Compressor, CompressorLimits, Digest, digest, to_bytes
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.prefilter import Prefilter
from diagnoser.compress.template_cache import TemplateCache, shapes
from diagnoser.model import Cap, LineBlock, Stream


def view(data: bytes) -> Digest:
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), data))
    return digest(compressor.take())


@cache
def words(count: int, seed: int = 2) -> list[bytes]:
    """Lines that share no skeleton."""
    rng = random.Random(seed)
    return [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz /:", k=40)) for _ in range(count)]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: random.Random(1).randbytes(2_000_000), id="random bytes"),
        pytest.param(lambda: b"\n".join(words(30_000)), id="a new skeleton on every line"),
        pytest.param(lambda: b"\n".join(b"error in " + word for word in words(20_000)), id="a new error on every line"),
        pytest.param(
            lambda: b"Traceback (most recent call last):\n" + b'  File "a.py", line 3, in f\n    f()\n' * 10_000,
            id="a traceback that never ends",
        ),
        pytest.param(lambda: b"\r" * 5_000_000, id="carriage returns"),
        pytest.param(lambda: b"\n" * 100_000, id="empty lines"),
        pytest.param(lambda: b"x" * 10_000_000, id="one line of 10 MB"),
        pytest.param(lambda: b"%|" * 3_000_000, id="bars without end"),
        pytest.param(lambda: b"\x1b[" * 2_000_000, id="codes without end"),
        pytest.param(lambda: b"".join(b"%d: hello\n" % n for n in range(20_000)), id="a new label on every line"),
        pytest.param(lambda: b"".join(b"[rank%d]: error\n" % (n * 977) for n in range(10_000)), id="absurd ranks"),
        pytest.param(
            lambda: b"9999-99-99 99:99:99 ERROR x\n1e999 loss: 1e999 step: 99999999999999999999\n" * 999,
            id="absurd numbers",
        ),
    ],
)
def test_bad_input_is_bounded_and_counted(made: Callable[[], bytes]) -> None:
    """Lines in are lines counted or said to be beyond the bound, and what is kept is small."""
    data = made()
    found = view(data)
    evidence = found.evidence
    delta = found.delta
    counted = sum(stat.count for stat in delta.shapes.values())
    assert delta.lines == data.count(b"\n") + (not data.endswith(b"\n"))
    assert counted == delta.lines or (Cap.SHAPES in delta.caps and counted < delta.lines)
    assert len(delta.shapes) <= CompressorLimits().shapes
    assert len(evidence.lines) < 9000
    assert len(to_bytes(delta)) < 3_000_000
    assert len(found.render(4000)) < 20_000


def test_a_crowded_stream_is_marked() -> None:
    """A reader is told that shapes went over the bound, and how many lines that concerns."""
    found = view(b"\n".join(words(30_000)))
    assert Cap.SHAPES in found.left_out.caps
    assert "high cardinality" in found.left_out.why
    said = re.search(r"stdout prints about (\d+) shapes", found.left_out.why)
    assert said and 20_000 < int(said[1]) < 45_000


def test_a_cause_survives_a_crowd() -> None:
    """Among twenty thousand different errors the first and the last one are kept."""
    lines = [b"error in " + word for word in words(20_000)]
    numbers = {line.number for line in view(b"\n".join(lines)).lines}
    assert {1, 20_000} <= numbers


def test_the_cache_of_shapes_is_bounded() -> None:
    """The cache forgets the oldest shapes and still knows every line of the block it serves."""
    cache = TemplateCache(Prefilter(), FilterSet(), most=100)
    for start in range(0, 2000, 100):
        lines = words(100, seed=start)
        assert cache.of(lines).keys() == set(lines)
    assert len(cache.known) <= 200


def test_routine_is_looked_at_once() -> None:
    """A million lines of a few skeletons teach the cache a few shapes: no line is read twice by a pattern."""
    cache = shapes(Prefilter(), FilterSet())
    before = len(cache.known)
    view(b"".join(b"stitched seam %d of hull %d\n" % (n, n % 9) for n in range(100_000)))
    assert len(cache.known) - before <= 2


def test_clocks_that_jump_do_not_move_lines() -> None:
    """Times that run backwards, leap by decades or are no times: the lines of a stream stay in their order, all times
    are finite, and none runs backwards.
    """
    rng = random.Random(8)
    stamps = ["1970-01-01 00:00:00", "2038-01-19 03:14:08", "9999-12-31 23:59:59", "2026-13-45 99:99:99", "0000-00-00"]
    lines = [f"{rng.choice(stamps)} ERROR {word.decode()}" for word in words(400)]
    times = tuple(rng.choice([0.0, -1e18, 1e18, float("nan"), float("inf"), 1.79e9]) for _ in lines)
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "\n".join(lines).encode(), 1, times, 1.79e9))
    found = digest(compressor.take()).lines
    assert [line.number for line in found] == sorted(line.number for line in found)
    assert len(found) >= 400 - 2 * 64
    assert all(before.time <= after.time < 3e11 for before, after in pairwise(found))
