"""Notes when the agent of a cluster asks for a plan: an agent that has fallen silent is told."""

from contextlib import suppress

from diagnoser.adapters.sql.vitals import VitalRepository
from diagnoser.model.errors import Unavailable
from diagnoser.ports import Clock

NOTED_SECONDS = 30.0
CLUSTERS = 10_000
"""Of which the last note is remembered; beyond it each request is a write."""


class AgentsSeen:
    def __init__(self, store: VitalRepository, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._noted: dict[str, float] = {}

    async def record(self, cluster: str, executor: str) -> None:
        """No claim fails for it."""
        now = self._clock()
        if 0 <= now - self._noted.get(cluster, 0.0) < NOTED_SECONDS:  # below 0: the clock was set back
            return
        if len(self._noted) < CLUSTERS:
            self._noted[cluster] = now
        with suppress(Unavailable):
            await self._store.record_agent(cluster, executor, now)
