"""What waits for somebody, for the badges of the navigation: known for some seconds, so that a page costs no count."""

from diagnoser.adapters.sql.diagnoses import DiagnosisRepository
from diagnoser.model.errors import Unavailable
from diagnoser.ports import Attention, Clock

REMEMBERED_SECONDS = 3.0


class AttentionCount:
    """One a process."""

    def __init__(self, store: DiagnosisRepository, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._count = Attention()
        self._until = 0.0

    async def __call__(self) -> Attention:
        """The last one known where the store does not answer: a page must not fail for its navigation."""
        now = self._clock()
        if now >= self._until:
            self._until = now + REMEMBERED_SECONDS
            try:
                self._count = await self._store.attention(now)
            except Unavailable:
                return self._count
        return self._count

    def forget(self) -> None:
        """Somebody has just decided something: the next page shows it."""
        self._until = 0.0
