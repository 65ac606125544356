"""How many unplaced streams the navigation shows: known for some seconds, so that a page costs no count."""

from diagnoser.adapters.sql.unplaced import UnplacedRepository
from diagnoser.model.errors import Unavailable
from diagnoser.ports import Clock

REMEMBERED_SECONDS = 10.0


class UnplacedCount:
    def __init__(self, store: UnplacedRepository, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._count = 0
        self._until = 0.0

    async def __call__(self) -> int:
        """The last one known where the store does not answer: a page must not fail for its navigation."""
        now = self._clock()
        if now >= self._until:
            self._until = now + REMEMBERED_SECONDS
            try:
                self._count = await self._store.count(now)
            except Unavailable:
                return self._count
        return self._count
