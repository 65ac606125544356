"""Views of lists that people keep under a name, for everybody."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ListName(StrEnum):
    """The lists that can be filtered."""

    DIAGNOSES = "diagnoses"
    INCIDENTS = "incidents"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class SavedView:
    """listed: which list. query: the filters as they stand in an address, without a place in the list. by: who saved it
    last."""

    listed: ListName
    name: str
    query: str
    by: str
    created: float


class ViewStore(Protocol):
    async def views(self, listed: ListName) -> list[SavedView]:
        """By name."""

    async def save_view(self, view: SavedView, limit: int) -> None:
        """In place of one of the same name. Raises BadInput where the list has ``limit`` others already."""

    async def delete_view(self, listed: ListName, name: str) -> bool:
        """False when there is none."""
