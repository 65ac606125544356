"""What keeps the database small and its lists fast."""

from typing import Protocol


class RetentionStore(Protocol):
    """Each call is one short transaction, and all replicas may make it at once."""

    async def index_earlier(self, limit: int) -> int:
        """Make diagnoses of earlier versions findable by text and facets, at most ``limit``; how many."""
