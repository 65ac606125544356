"""The links in the head of a list that sort it by a column."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from diagnoser.model.sorting import Sort

T = TypeVar("T")
_LARGEST_FIRST = frozenset({"time", "last_seen", "first_seen", "failures", "confidence", "jobs", "checked"})
"""What people first want to see the largest of."""


def filled(params: Mapping[str, T]) -> dict[str, T]:
    """The parameters that have a value."""
    return {name: value for name, value in params.items() if value}


def picked(params: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """Those of the parameters that are there, in this order."""
    return {name: params[name] for name in names if name in params}


@dataclass(frozen=True, slots=True)
class ColumnOrder:
    """How a list is sorted, and the addresses that sort it otherwise. filters: of the list, without the order.
    is_fixed: its head has no links."""

    path: str
    filters: Mapping[str, str]
    sort: Sort
    default: Sort
    is_fixed: bool = False

    @property
    def chosen(self) -> Mapping[str, str]:
        """The filters and the order, as far as it is not the one that the list has by itself."""
        return self._with(self.sort)

    def url(self, by: str) -> str:
        """Sorts by the column; the other way round where it already does."""
        is_descending = by in _LARGEST_FIRST
        if by == self.sort.by:
            is_descending = not self.sort.is_descending
        return self._url(self._with(Sort(by, is_descending)))

    def narrowed(self, **filters: str) -> str:
        """Other values of these filters, "" for none, in the same order."""
        return self._url({**self.chosen, **filters})

    def page(self, cursor: str | None) -> str:
        """The first page for "", and no address for None."""
        if cursor is None:
            return ""
        return self._url({**self.chosen, "cursor": cursor})

    def direction(self, by: str) -> str:
        """As of ``aria-sort``, "" where the list is not sorted by the column."""
        if by != self.sort.by:
            return ""
        return "descending" if self.sort.is_descending else "ascending"

    def _with(self, sort: Sort) -> dict[str, str]:
        if sort == self.default:
            return dict(self.filters)
        return {**self.filters, "sort": str(sort)}

    def _url(self, params: Mapping[str, str]) -> str:
        """Parameters without a value stand for themselves."""
        given = filled(params)
        if not given:
            return self.path
        return f"{self.path}?{urlencode(given)}"
