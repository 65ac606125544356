"""What the pages and the API query."""

from dataclasses import dataclass
from typing import Protocol

from diagnoser.ports.work import DiagnosisRecord


@dataclass(frozen=True, slots=True)
class DiagnosisFilter:
    job: str = ""
    category: str = ""
    type: str = ""
    outcome: str = ""
    node: str = ""
    since: float = 0.0
    text: str = ""
    current_only: bool = True


class ReadStore(Protocol):
    async def diagnoses(self, where: DiagnosisFilter, after: str, limit: int) -> list[DiagnosisRecord]:
        """Newest first; ``after`` is the id of the last one already seen, "" for the first page."""

    async def diagnosis(self, id: str) -> DiagnosisRecord | None: ...

    async def ping(self) -> None:
        """Raises Unavailable when the database does not answer or its schema is not the one of this code."""
