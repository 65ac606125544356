"""Reads the stored logs of attempts."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor, read_pieces
from diagnoser.compress.routine import Fold, Folding, unfolded
from diagnoser.model import AttemptKey

_lock = Lock()
_paused = 0
_was_enabled = True


@contextmanager
def collection_paused() -> Iterator[None]:
    """A stored log becomes hundreds of thousands of objects that all stay, and none of them is garbage: the collector
    would walk them over and over, for half of the time that reading takes. Several threads may be within it.
    """
    global _paused, _was_enabled
    with _lock:
        if not _paused:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused += 1
    try:
        yield
    finally:
        with _lock:
            _paused -= 1
            if not _paused and _was_enabled:
                gc.enable()


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
