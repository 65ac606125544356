"""Values of documents that others wrote: each is asked for with its type, and anything else counts as absent."""

from collections.abc import Mapping, Sequence
from typing import Any

LISTS = (list, tuple)
"""Types that the readers of dumps make for a list; they make no classes derived from these."""


def listed(value: Any) -> Sequence[Any]:
    return value if type(value) in LISTS else ()


def mapping(value: Any) -> Mapping[Any, Any]:
    return value if type(value) is dict else {}


def mappings(value: Any, most: int | None = None) -> list[Mapping[Any, Any]]:
    """List the objects among the first ``most`` values of a list."""
    return [row for row in listed(value)[:most] if type(row) is dict]


def text(value: Any, most: int = 300) -> str:
    return value[:most] if type(value) is str else ""
