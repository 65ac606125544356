"""Reads the stored logs of attempts."""

import asyncio
from dataclasses import dataclass

from diagnoser.compress import AttemptLog
from diagnoser.model import AttemptKey
from diagnoser.ports import LogStore


@dataclass(frozen=True, slots=True)
class AttemptLogs:
    store: LogStore

    async def load(self, key: AttemptKey) -> AttemptLog:
        """Raises Unavailable."""
        stored = await self.store.deltas(key)
        return await asyncio.to_thread(AttemptLog.from_deltas, [delta.data for delta in stored])
