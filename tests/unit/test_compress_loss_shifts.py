"""What is kept of a long series of losses: a rise that stays is not stepped over, however the log was cut."""

import random
from itertools import pairwise

import pytest

from diagnoser.compress import AttemptLog, Compressor, merge
from diagnoser.compress.loss_shifts import BEFORE, rises
from diagnoser.model import LineBlock, Stream
from tests.rule_files import ANALYZER

RISE = 1201


def lines(kind: str) -> list[bytes]:
    """A step in every fourth line; the loss rises at step 1,201."""
    rng, printed = random.Random(4), []
    for step in range(1, 4001):
        loss = f"{2.2 + rng.random() / 10:.4f}"
        if step >= RISE:
            loss = {"high": f"{9000 + rng.random():.2f}", "nan": "nan"}[kind]
        printed += [b"step %d loss %s\n" % (step, loss.encode()), *[b"rank %d is well\n" % step] * 3]
    return printed


@pytest.mark.parametrize("kind", ["high", "nan"])
@pytest.mark.parametrize("cuts", [(), (7,), (4700, 4803, 4850), tuple(range(400, 16000, 400))])
def test_the_points_around_a_rise_stay(kind: str, cuts: tuple[int, ...]) -> None:
    """With the line of the first one, so that a verdict can cite it."""
    printed, deltas = lines(kind), []
    for low, high in pairwise((0, *cuts, len(printed))):
        compressor = ANALYZER.compressor()
        compressor.feed(LineBlock(Stream(), b"".join(printed[low:high]), low + 1))
        deltas.append(compressor.take())
    evidence = AttemptLog(merge(deltas)).evidence
    steps = {point.step for point in evidence.progress}
    assert set(range(RISE - BEFORE, RISE + 4)) <= steps and len(steps) < 400
    assert any(line.text.startswith(f"step {RISE} ") for line in evidence.lines)


def test_a_series_of_few_rises_keeps_the_steepest() -> None:
    """A single high value is none, nor is a fall; a climb of some steps is one."""
    flat = [2.0] * 20
    assert rises([*flat, 9.0, *flat], 4) == []
    assert rises([*[9.0] * 20, *flat], 4) == []
    assert rises([*flat, *[4.0] * 9, *flat, *[9.0] * 9, *flat, *[6.0] * 9], 2) == [49, 78]
    assert rises([*flat, 2.2, 2.7, 3.4, *[4.0] * 9], 4) == [21]


def test_small_logs_are_kept_as_they_are() -> None:
    """Nothing is looked for in a series that is kept whole."""
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), b"".join(lines("high")[:200])))
    assert len(AttemptLog(compressor.take()).evidence.progress) == 50
