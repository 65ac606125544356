"""Look-ups by a part of a name, for the search over everything. Each is bounded, whatever is stored."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node that is known. cluster: "" where only diagnoses name it."""

    node: str
    cluster: str = ""
