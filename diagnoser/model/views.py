"""Views of lists that people keep under a name, for everybody."""

from dataclasses import dataclass
from enum import StrEnum


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
