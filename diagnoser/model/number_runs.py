"""Numbers that follow each other, such as ranks, in short."""

from collections.abc import Iterable


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Give the first and the last of sorted numbers that follow each other: (1, 3), (7, 7) for 1, 2, 3, 7."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        first = number
        if runs and runs[-1][1] == number - 1:
            first, _ = runs.pop()
        runs.append((first, number))
    return runs


def spans(numbers: Iterable[int]) -> str:
    """Write ``1-3,7`` for 1, 2, 3, 7."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(sorted(numbers)))
