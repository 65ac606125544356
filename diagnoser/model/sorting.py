"""The orders in which lists can be asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sort:
    """by: what the rows are sorted by. What is equal is ordered by its identity, the same way round."""

    by: str
    is_descending: bool = False

    @classmethod
    def parse(cls, text: str) -> "Sort":
        """``failures``, or ``-failures`` for the largest first."""
        return cls(text.removeprefix("-"), text.startswith("-"))

    def __str__(self) -> str:
        return f"{'-' if self.is_descending else ''}{self.by}"


NEWEST = Sort("time", is_descending=True)
LAST_SEEN = Sort("last_seen", is_descending=True)
BY_COST = Sort("cost", is_descending=True)
WORST_FIRST = Sort("state")
BY_CLUSTER = Sort("cluster")

DIAGNOSIS_SORTS = ("time", "category", "type", "job", "decided_by", "confidence")
INCIDENT_SORTS = ("last_seen", "first_seen", "failures", "category")
ATTEMPT_SORTS = ("time", "job")
NODE_SORTS = ("cluster", "node", "state", "time")
FLEET_SORTS = (*NODE_SORTS, "failures", "jobs", "checked")
