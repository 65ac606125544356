"""Reads the stored logs of attempts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor, read_pieces
from diagnoser.diagnosis.garbage import collection_paused
from diagnoser.model import AttemptKey


@dataclass(frozen=True, slots=True)
class AttemptLogs:
    store: SqlStore
    compressor: Callable[[], Compressor]

    async def load(self, key: AttemptKey) -> AttemptLog:
        """Raises Unavailable."""
        stored = await self.store.logs.pieces(key)
        return await asyncio.to_thread(self._read, [piece.data for piece in stored])

    def _read(self, pieces: list[bytes]) -> AttemptLog:
        with collection_paused():
            return AttemptLog(read_pieces(pieces, self.compressor))
