"""Picks values out of collections."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")


def only(values: Collection[_T]) -> _T | None:
    """The value of a collection that holds one; None where it holds none, or several."""
    return next(iter(values)) if len(values) == 1 else None


def first(values: Iterable[_T]) -> _T | None:
    return next(iter(values), None)


def single(values: Mapping[_K, Collection[_T]]) -> dict[_K, _T]:
    """The values of the keys that have but one."""
    return {key: next(iter(known)) for key, known in values.items() if len(known) == 1}
