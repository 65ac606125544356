"""What keeps the database small and its lists fast."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went with some attempts. stored: bytes of their logs and dumps."""

    attempts: int = 0
    diagnoses: int = 0
    plans: int = 0
    stored: int = 0


class RetentionStore(Protocol):
    """Each call is one short transaction, and all replicas may make it at once. ``before``: seconds since the epoch."""

    async def drop_attempts(self, before: float, limit: int) -> Dropped:
        """Drop attempts to which nothing came since ``before``, the oldest first, each with all that is stored of it;
        with the last one its job goes.

        Never those that wait for a verdict, that a worker holds, whose plan waits or is under way, or that people
        judged.
        """

    async def drop_empty_jobs(self, before: float, limit: int) -> int:
        """Drop jobs without an attempt that were registered before: nothing ever came of them."""

    async def drop_messages(self, before: float, limit: int) -> int:
        """Drop messages made before, that were sent, expired or given up."""

    async def drop_node_events(self, before: float, limit: int) -> int:
        """Drop what happened to nodes before; the last event of each node is stored apart, and stays."""

    async def drop_incidents(self, before: float, limit: int) -> int:
        """Drop incidents without a failure since, of which no attempt is stored any more."""

    async def drop_node_facts(self, before: float, limit: int) -> int:
        """Drop alerts of monitoring that were told before and have ended, and requests to give nodes back. Notes of
        people stay."""

    async def group_earlier(self, now: float, limit: int) -> int:
        """Put failures that were diagnosed before there were incidents into them, the newest first; how many were
        looked at. Incidents whose last failure is more than a week old begin as resolved."""

    async def drop_dumps(self, before: float, limit: int) -> int:
        """Drop dumps of the runtime that were received before, but for attempts that ``drop_attempts`` spares."""

    async def stored_bytes(self) -> int:
        """Of all logs and dumps, compressed as they are stored."""

    async def index_earlier(self, limit: int) -> int:
        """Make diagnoses of earlier versions findable by text and facets, at most ``limit``; how many."""
