"""Pieces of English that several pages put together."""

from collections.abc import Iterable, Sequence

from diagnoser.wording.collapse_ranks import ranges


def joined(parts: Iterable[str], separator: str = ", ") -> str:
    """The parts that are not empty."""
    return separator.join(filter(None, parts))


def after(prefix: str, text: str) -> str:
    """``": "`` and ``"ECC error"`` -> ``": ECC error"``; "" where there is no text to introduce."""
    if not text:
        return ""
    return prefix + text


def plural(count: int, noun: str) -> str:
    """``1 error``, ``2 errors``."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def ranks_name(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 3-7``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranges(ranks)}"
