"""New diagnoses for all open pages of a process, which share one look at the database."""

import asyncio
from collections import deque

from diagnoser.adapters.sql.diagnoses import DiagnosisRepository
from diagnoser.model.errors import Unavailable
from diagnoser.model.ids import first_id
from diagnoser.model.queries import News
from diagnoser.ports import Clock

LOOK_SECONDS = 1.0
"""Age up to which what the last look saw is used."""
OVERLAP_SECONDS = 60.0  # replicas' clocks differ, and a row is seen only after its commit
NEWS_LIMIT = 500
KEPT = 2_000


class NewsFeed:
    """Looks only when a page asks. The cost of a look is that of what is new, not of what is stored."""

    def __init__(self, store: DiagnosisRepository, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._news: deque[News] = deque(maxlen=KEPT)
        self._count = 0  # of all news ever, also those that are not kept any more
        self._known: frozenset[str] | None = None  # ids of the overlap; None before the first look
        self._seen = 0.0  # time of the last look that was answered
        self._looked = -LOOK_SECONDS
        self._looking = asyncio.Lock()

    async def position(self) -> int:
        """Where a reader begins who wants what comes from now on."""
        await self._look()
        return self._count

    async def since(self, position: int) -> tuple[int, list[News]]:
        """The next position, and what came since this one, oldest first. Nothing while the database is away."""
        await self._look()
        new = min(self._count - position, len(self._news))
        return self._count, list(self._news)[len(self._news) - new :]

    async def _look(self) -> None:
        """The pace is that of a clock which nobody sets; a clock that is set back makes the look reach further."""
        async with self._looking:
            if asyncio.get_running_loop().time() - self._looked < LOOK_SECONDS:
                return
            now = self._clock()
            since = min(self._seen, now) if self._known is not None else now
            try:
                seen = await self._store.news(first_id(since - OVERLAP_SECONDS), NEWS_LIMIT)
            except Unavailable:
                return
            finally:
                self._looked = asyncio.get_running_loop().time()
            known, self._known = self._known, frozenset(news.id for news in seen)
            self._seen = now
            for news in seen:
                if known is not None and news.id not in known:
                    self._news.append(news)
                    self._count += 1
