"""What the pages and the API query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import AttemptKey
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.ports.work import DiagnosisRecord


@dataclass(frozen=True, slots=True)
class DiagnosisFilter:
    """Which diagnoses; "" and 0.0 for all. since: made at that time or later. newer: made after the one of this id."""

    job: str = ""
    category: str = ""
    type: str = ""
    outcome: str = ""
    node: str = ""
    cluster: str = ""
    family: str = ""
    decided_by: str = ""
    since: float = 0.0
    newer: str = ""
    text: str = ""
    current_only: bool = True


@dataclass(frozen=True, slots=True)
class News:
    """A diagnosis that was made, without what it says."""

    id: str
    attempt: AttemptKey
    outcome: Outcome
    category: Category
    type: FailureType


@dataclass(frozen=True, slots=True)
class Facets:
    """How many diagnoses have which value, by the name of a field of ``DiagnosisFilter``, the most frequent first.

    is_complete: all diagnoses that match are counted. Else the counts are of the newest: ``limit`` were looked at.
    """

    counts: Mapping[str, Sequence[tuple[str, int]]]
    is_complete: bool
    limit: int


class ReadStore(Protocol):
    async def diagnoses(self, where: DiagnosisFilter, after: str, limit: int) -> list[DiagnosisRecord]:
        """Newest first; ``after`` is the id of the last one already seen, "" for the first page."""

    async def news(self, after: str, limit: int) -> list[News]:
        """Current diagnoses with ids above ``after``, oldest first; of more than ``limit`` the newest."""

    async def facets(self, where: DiagnosisFilter) -> Facets:
        """Of the current diagnoses that match: the values of their fields, those that are most frequent."""

    async def diagnosis(self, id: str) -> DiagnosisRecord | None: ...

    async def ping(self) -> None:
        """Raises Unavailable when the database does not answer or its schema is not the one of this code."""
