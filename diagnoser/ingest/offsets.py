"""Which line numbers of a stream are stored: a batch that is sent twice counts once."""

OffsetRanges = tuple[tuple[int, int], ...]
"""Closed ranges of line numbers: sorted, disjoint, not adjacent."""


def missing(ranges: OffsetRanges, first: int, last: int) -> list[tuple[int, int]]:
    """The parts of first..last (closed) that ``ranges`` does not hold."""
    gaps = []
    for low, high in ranges:
        if high < first:
            continue
        if low > last:
            break
        if first < low:
            gaps.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        gaps.append((first, last))
    return gaps


def covered_with(ranges: OffsetRanges, first: int, last: int) -> OffsetRanges:
    """``ranges`` with first..last (closed) added."""
    before = [pair for pair in ranges if pair[1] < first - 1]
    after = [pair for pair in ranges if pair[0] > last + 1]
    touched = ranges[len(before) : len(ranges) - len(after)]
    low, high = first, last
    for begin, end in touched:
        low, high = min(low, begin), max(high, end)
    return (*before, (low, high), *after)
