"""Holds back jobs whose lines come faster than they are compressed: without it the store would fill with raw lines."""

import asyncio
from collections.abc import Iterable

from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.model.errors import Overloaded, Unavailable

BACKLOG_BYTES = 256 << 20
"""Raw log text of one attempt: some ten seconds of compression, and a tenth of it on disk."""
FRESH_SECONDS = 1.0
RETRY_SECONDS = 2.0


class CompressionBacklog:
    """Looks into the store once a second, and only while requests come."""

    def __init__(self, store: LogRepository) -> None:
        self._store = store
        self._jobs: frozenset[str] = frozenset()
        self._looked = -FRESH_SECONDS

    async def check(self, jobs: Iterable[str]) -> None:
        """Raises Overloaded for a job whose raw lines must become fewer first."""
        now = asyncio.get_running_loop().time()
        if now - self._looked >= FRESH_SECONDS:
            self._looked = now  # before the look: the others do not wait for it
            try:
                self._jobs = frozenset(await self._store.jobs_with_raw(BACKLOG_BYTES))
            except Unavailable:
                self._jobs = frozenset()  # the commit will tell
        for job in jobs if self._jobs else ():
            if job in self._jobs:
                raise Overloaded(f"too many lines of job {job} wait to be compressed", RETRY_SECONDS)
