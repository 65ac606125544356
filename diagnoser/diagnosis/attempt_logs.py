"""Reads the stored logs of attempts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from diagnoser.compress import AttemptLog, Compressor, read_pieces
from diagnoser.model import AttemptKey
from diagnoser.ports import LogStore


@dataclass(frozen=True, slots=True)
class AttemptLogs:
    store: LogStore
    compressor: Callable[[], Compressor]

    def over(self, store: LogStore) -> "AttemptLogs":
        return replace(self, store=store)

    async def load(self, key: AttemptKey) -> AttemptLog:
        """Raises Unavailable."""
        stored = await self.store.pieces(key)
        return AttemptLog(await asyncio.to_thread(read_pieces, [piece.data for piece in stored], self.compressor))
