"""Look-ups by a part of a name, for the search over everything. Each is bounded, whatever is stored."""

from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import Incident, LearnedRule


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node that is known. cluster: "" where only diagnoses name it."""

    node: str
    cluster: str = ""


class SearchStore(Protocol):
    """``text``: what a person typed, not empty. Words are compared without regard to case."""

    async def jobs_like(self, text: str, limit: int) -> list[str]:
        """Ids of jobs: those that have not ended and have the text anywhere in their id, by their last line; then any
        whose id begins with the text, in its case."""

    async def nodes_containing(self, text: str, limit: int) -> list[FoundNode]:
        """Nodes with the text anywhere in their name, in alphabetical order; a node that only diagnoses name, where
        the text is all of its name."""

    async def incidents_like(self, text: str, limit: int) -> list[Incident]:
        """Those with all the words in their node, type, line, cluster or assignee, among the newest ones."""

    async def learned_rules_like(self, text: str, limit: int) -> list[LearnedRule]:
        """Those with all the words in their id, type or text, among the newest ones; without their counts."""
