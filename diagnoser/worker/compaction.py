"""Compresses behind the acknowledgement: the raw pieces of an attempt become a delta, many deltas become one.

All replicas do it, each with claims of its own. It changes nothing that a diagnosis sees: pieces are read merged
anyway. Where there is an archive, the lines are in it before their raw pieces go.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from diagnoser import compress
from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.compress import Compressor, Losses
from diagnoser.compress.raw_chunks import unpack
from diagnoser.compress.routine import Fold, Folding, unfolded
from diagnoser.compress.segments import Segment, segments
from diagnoser.model import AttemptKey
from diagnoser.model.errors import Unavailable
from diagnoser.model.logs import ArchivedSegment, CompactionClaim, CompactionTiming, StoredPiece
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Archive, Clock, Pause
from diagnoser.worker.repeat import repeat

log = structlog.get_logger()
PERIOD = 2.0
LEASE_SECONDS = 120.0
"""How long a claim holds; after a crash the work is done again."""
RETRY_SECONDS = 3600.0
"""After a failure."""
WINDOW_MOST = 8 << 20
"""Bytes of raw text that are compressed at once."""


@dataclass(eq=False)
class Compaction:
    """``run`` it as a task, or ``step`` it. folding: what the filters of a job family make of a delta."""

    store: LogRepository
    compressor: Callable[[], Compressor]
    clock: Clock
    metrics: Metrics
    archive: Archive | None = None
    timing: CompactionTiming = field(default_factory=CompactionTiming)
    folding: Folding = unfolded

    async def run(self, pause: Pause = asyncio.sleep) -> None:
        """Until it is cancelled. Waits while the database or the archive is down. pause: after a search that found
        nothing."""
        await repeat(self._work_off, PERIOD, "compaction_waits", pause)

    async def _work_off(self) -> None:
        while await self.step():
            pass

    async def step(self) -> bool:
        """Make the pieces of one attempt fewer; False when there is none to do. Raises Unavailable."""
        now = self.clock()
        claim = await self.store.claim_compaction(now, self.timing, now + LEASE_SECONDS)
        if claim is None:
            return False
        try:
            await self._compact(claim)
        except Unavailable:
            raise
        except Exception:  # one log that cannot be merged must not stop the others
            log.exception("compaction_failed", job=claim.attempt.job, attempt=claim.attempt.number)
            await self.store.put_off_compaction(claim.attempt, now + RETRY_SECONDS)
        return True

    async def _compact(self, claim: CompactionClaim) -> None:
        key = claim.attempt
        if claim.merges_deltas:
            replaced = await self.store.pieces(key)
        else:
            replaced = await self.store.raw_pieces(key, WINDOW_MOST)
        raw = [piece.data for piece in replaced if piece.raw]
        archived = await self._put(self.archive, key, raw) if self.archive and raw else []
        merged, losses = await asyncio.to_thread(self._merged, replaced, await self.folding(key))
        if not await self.store.compact(key, merged, replaced, archived, self.clock()):
            return
        if losses:
            self.metrics.observe_losses([losses])
        self.metrics.archived.inc(sum(segment.size for segment in archived))

    async def _put(self, archive: Archive, attempt: AttemptKey, raw: Sequence[bytes]) -> list[ArchivedSegment]:
        """Of two replicas, or after a crash, the same pieces become the same object. One that the store never hears of
        holds lines of pieces that are still there; it is swept. Its key has the day in it, so that no later try puts an
        object which is about to be swept."""
        made = await asyncio.to_thread(lambda: list(segments(block for piece in raw for block in unpack(piece))))
        data = b"".join(segment.data for segment in made)
        day = time.strftime("%Y%m%d", time.gmtime(self.clock()))
        key = f"{attempt.job}/{attempt.number}/{day}-{hashlib.sha256(data).hexdigest()[:32]}.zst"
        await archive.put(key, data)
        return _placed(key, made)

    def _merged(self, pieces: Sequence[StoredPiece], fold: Fold) -> tuple[bytes, Losses | None]:
        """losses: of what was raw; those of the deltas have been counted."""
        raw = compress.read_pieces([piece.data for piece in pieces if piece.raw], self.compressor)
        deltas = [piece.data for piece in pieces if not piece.raw]
        losses = raw.losses if raw.lines else None
        return compress.to_bytes(fold(compress.merge([raw, compress.read_together(deltas)]) if deltas else raw)), losses


def _placed(key: str, made: Sequence[Segment]) -> list[ArchivedSegment]:
    placed, start = [], 0
    for segment in made:
        placed.append(ArchivedSegment(key, start, len(segment.data), segment.streams, segment.lines))
        start += len(segment.data)
    return placed
