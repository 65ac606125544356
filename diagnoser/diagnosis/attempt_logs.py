"""Reads the stored logs of attempts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor, read_pieces
from diagnoser.compress.routine import Fold, Folding, unfolded
from diagnoser.diagnosis.collection_pause import collection_paused
from diagnoser.model import AttemptKey


@dataclass(frozen=True, slots=True)
class AttemptLogs:
    """folding: shortens the routine of job families, in what is not compressed yet as well."""

    store: SqlStore
    compressor: Callable[[], Compressor]
    folding: Folding = unfolded

    async def load(self, key: AttemptKey) -> AttemptLog:
        """Raises Unavailable."""
        stored, fold = await self.store.logs.pieces(key), await self.folding(key)
        return await asyncio.to_thread(self._read, [piece.data for piece in stored], fold)

    def _read(self, pieces: list[bytes], fold: Fold) -> AttemptLog:
        with collection_paused():
            return AttemptLog(fold(read_pieces(pieces, self.compressor)))
