"""Covered ranges of line numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from diagnoser.ingest import OffsetRanges, covered_with, missing

spans = st.tuples(st.integers(1, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def build(pairs: list[tuple[int, int]]) -> OffsetRanges:
    ranges: OffsetRanges = ()
    for first, last in pairs:
        ranges = covered_with(ranges, first, last)
    return ranges


def numbers(pairs: list[tuple[int, int]] | OffsetRanges) -> set[int]:
    return {number for first, last in pairs for number in range(first, last + 1)}


@given(st.lists(spans, max_size=12))
def test_ranges_hold_exactly_what_was_added(pairs: list[tuple[int, int]]) -> None:
    """However spans overlap, the ranges hold their union, sorted, disjoint and not adjacent."""
    ranges = build(pairs)
    assert numbers(ranges) == numbers(pairs)
    assert all(left[1] + 1 < right[0] for left, right in pairwise(ranges))


@given(st.lists(spans, max_size=12), st.randoms())
def test_order_does_not_matter(pairs: list[tuple[int, int]], random: object) -> None:
    """The same spans in another order give the same ranges."""
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert build(pairs) == build(shuffled)


@given(st.lists(spans, max_size=12), spans)
def test_missing_is_what_the_ranges_lack(pairs: list[tuple[int, int]], span: tuple[int, int]) -> None:
    """The gaps of a span are its numbers less those already held."""
    assert numbers(missing(build(pairs), *span)) == numbers([span]) - numbers(pairs)
