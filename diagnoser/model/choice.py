"""Picks values out of collections."""

from collections.abc import Collection, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def only(values: Collection[_T]) -> _T | None:
    """The value of a collection that holds one; None where it holds none, or several."""
    return next(iter(values)) if len(values) == 1 else None


def first(values: Iterable[_T]) -> _T | None:
    return next(iter(values), None)
