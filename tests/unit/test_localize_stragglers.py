"""Ranks that compute for longer than the others."""

from diagnoser.localize.stragglers import stragglers
from tests.rule_files import log


def lines(*times: float) -> list[str]:
    return [f"[Rank {rank}] iter 9 step_time 1000.0 ms (compute {time:.1f} ms)" for rank, time in enumerate(times)]


def test_the_slow_rank_is_reported_with_its_node() -> None:
    """A rank that takes eight times as long as the others is named, though all steps last equally long."""
    (found,) = stragglers(log(*lines(100, 110, 800, 90)), {2: "n5"})
    assert (found.rank, found.node, found.times) == (2, "n5", 7.6)


def test_alike_and_few_ranks_have_no_straggler() -> None:
    """Ordinary spread is none, and two or three ranks are too few to compare."""
    assert stragglers(log(*lines(100, 110, 120, 90)), {}) == ()
    assert stragglers(log(*lines(100, 900)), {}) == ()
