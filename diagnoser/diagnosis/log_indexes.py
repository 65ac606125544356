"""The indexes of the logs that people look at, kept while they do."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog
from diagnoser.compress.delta import Delta
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.collection_pause import collection_paused
from diagnoser.logview.log_index import LogIndex
from diagnoser.model import AttemptKey
from diagnoser.model.errors import NotFound, existing

BYTES_KEPT = 128 << 20
"""Of all indexes that are kept, with their logs; the latest one is kept however large it is."""
KEPT_SECONDS = 180.0
"""From the last look at a log until its index goes, with the next look at any other."""
ITEM_BYTES = 1_000
"""Of memory for each row and each point of a series, beside the text: measured."""
STALE_FACTOR = 10.0
"""For so many times as long as it took to make, an index of a log that grows is used: indexing is a tenth of a core."""
READ_AT_ONCE = 1 << 20
"""Stored bytes of a log that a page waits for: about a second of work. A larger one, such as that of thousands of
ranks, is read behind the page."""
LOOK_SECONDS = 1.0
"""Age up to which a revision counts for readers that follow a log."""
_REVISIONS_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class IndexedLog:
    """revision: of the attempt when its log was read. expires: until when it may be shown though lines came since.
    bytes: of memory, about.
    """

    index: LogIndex
    revision: int
    expires: float
    bytes: int

    def is_fresh(self, revision: int, now: float) -> bool:
        """Whether it may be shown. revision: of the attempt now."""
        if self.revision == revision:
            return True
        return now < self.expires


class LogIndexes:
    """clock: seconds that never run backwards."""

    def __init__(self, store: SqlStore, logs: AttemptLogs, clock: Callable[[], float]) -> None:
        self._store = store
        self._logs = logs
        self._clock = clock
        self._kept: OrderedDict[AttemptKey, IndexedLog] = OrderedDict()
        self._looked: dict[AttemptKey, float] = {}
        self._building: WeakValueDictionary[AttemptKey, asyncio.Lock] = WeakValueDictionary()
        self._revisions: OrderedDict[AttemptKey, tuple[float, int]] = OrderedDict()
        self._behind: dict[AttemptKey, tuple[asyncio.Task[None], IndexedLog | None]] = {}
        """Those that are made while nobody waits, each with its last index."""

    def with_store(self, store: SqlStore) -> "LogIndexes":
        """The same indexes, of which those are found whose attempts the store finds: each call looks there first."""
        other = copy(self)
        other._store, other._revisions = store, OrderedDict()
        return other

    async def load(self, key: AttemptKey) -> IndexedLog:
        """The index of an attempt's log; of readers that come together one makes it. Raises NotFound, Unavailable."""
        revision = await self._revision(key)
        lock = self._building.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._kept.get(key)
            if known is None or not known.is_fresh(revision, self._clock()):
                known = self._kept[key] = await self._index(key, revision)
            self._kept.move_to_end(key)
            self._looked[key] = self._clock()
        self._forget()
        return known

    async def load_or_begin(self, key: AttemptKey) -> IndexedLog | None:
        """The index of a log that a page need not wait for. A large one is made from now on, for a later look: until
        then its last index, or None. Raises NotFound, Unavailable."""
        revision = await self._revision(key)
        known = self._kept.get(key)
        if key not in self._behind:
            if known and known.is_fresh(revision, self._clock()):
                return await self.load(key)
            if await self._logs.store.logs.stored_size(key) <= READ_AT_ONCE:
                return await self.load(key)
        if key not in self._behind:  # nor has it been since
            task = asyncio.create_task(self._read(key))
            self._behind[key] = task, known
            task.add_done_callback(partial(self._done, key))
        return self._behind[key][1]

    async def _read(self, key: AttemptKey) -> None:
        """With the evidence, which pages ask for next."""
        log = (await self.load(key)).index.log
        await asyncio.to_thread(lambda: log.evidence)

    def _done(self, key: AttemptKey, task: "asyncio.Task[None]") -> None:
        del self._behind[key]
        error = None if task.cancelled() else task.exception()
        if error:
            structlog.get_logger().warning("log_not_read", job=key.job, attempt=key.number, error=str(error))

    async def revision(self, key: AttemptKey) -> int:
        """The attempt's revision, of about now: readers that follow one log share a look. Raises NotFound."""
        looked, revision = self._revisions.get(key, (-LOOK_SECONDS, 0))
        if self._clock() - looked >= LOOK_SECONDS:
            revision = await self._revision(key)
        return revision

    async def _revision(self, key: AttemptKey) -> int:
        attempt = existing(await self._store.jobs.attempt(key), f"job {key.job!r} has no attempt {key.number}")
        self._revisions[key] = self._clock(), attempt.revision
        return attempt.revision

    async def _index(self, key: AttemptKey, revision: int) -> IndexedLog:
        started = self._clock()
        log = await self._logs.load(key)
        index, size = await asyncio.to_thread(_indexed, log)
        now = self._clock()
        return IndexedLog(index, revision, now + STALE_FACTOR * (now - started), size)

    def _forget(self) -> None:
        """The one that was looked at longest ago goes first."""
        size, since = sum(known.bytes for known in self._kept.values()), self._clock() - KEPT_SECONDS
        while len(self._kept) > 1:
            key, oldest = next(iter(self._kept.items()))
            if size <= BYTES_KEPT and self._looked[key] >= since:
                break
            del self._kept[key], self._looked[key]
            size -= oldest.bytes
        while len(self._revisions) > _REVISIONS_KEPT:
            self._revisions.popitem(last=False)


def _indexed(log: AttemptLog) -> tuple[LogIndex, int]:
    with collection_paused():
        return LogIndex(log), _size(log)


def _size(log: AttemptLog) -> int:
    """Of its index, too, which has the text once more."""
    size = 0
    for share in log.delta.shares.values():
        size += ITEM_BYTES * (len(share.rows) + len(share.points))
        size += 2 * sum(len(row.text) for row in share.rows.ordered())
    return size


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """The logs of these indexes, for whoever reads them whole: what a page shows is read once."""

    indexes: LogIndexes

    async def load(self, key: AttemptKey) -> AttemptLog:
        """Without a line where the attempt is not stored any more. Raises Unavailable."""
        try:
            return (await self.indexes.load(key)).index.log
        except NotFound:
            return AttemptLog(Delta())
