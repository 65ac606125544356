"""Lines of a topic, as one member of a consumer group: messages -> lines -> one commit with the offsets they came from.

Each message counts once, whatever ends when: its lines and the offset behind it are one transaction, written only if
nobody has stored anything of its partition since it was read. A member that lost a partition without knowing finds the
stored offset moved, throws its batch away and goes on from what is stored.

One batch is under way at a time. While it waits for the database nothing more is fetched, and the brokers hear that
this member lives.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.ingest.batch import Batch, Unattributed
from diagnoser.ingest.messages import MessageReader, leave_out
from diagnoser.ingest.service import IngestService
from diagnoser.ingest.unattributed import UnattributedStreams
from diagnoser.model import UnplacedReason
from diagnoser.model.errors import BadInput, OffsetsMoved, Overloaded, Unavailable
from diagnoser.model.logs import OffsetAdvance, Partition
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Clock, Message, MessageSource

BATCH_BYTES = 4 << 20
WAIT_SECONDS = 1.0
"""How long a quiet topic is waited for: also how soon a stop is noticed."""
COMMIT_SECONDS = 1.0
"""A commit that takes longer lets the brokers know that this member lives."""
RETRY_SECONDS, RETRY_SECONDS_MOST = 0.5, 10.0

RefusedJobs = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Those of some jobs that the topic may not name, each with the reason."""


@dataclass(slots=True)
class _Position:
    """How far a partition is stored, as its reader knows. Each assignment and each rewind begins a new one: what was
    read before must not be stored as if it followed."""

    next: int | None


@dataclass(eq=False)
class LogConsumer:
    """``run`` it once. ingest must be running. protocol: of lines without a place. refused: jobs that it may not name,
    with the reason."""

    source: MessageSource
    protocol: str
    ingest: IngestService
    store: LogRepository
    reader: MessageReader
    unplaced: UnattributedStreams
    refused: RefusedJobs
    clock: Clock
    metrics: Metrics
    _positions: dict[Partition, _Position] = field(default_factory=dict, init=False)

    async def run(self, stopping: asyncio.Event) -> None:
        """Until ``stopping`` is set; then the batch under way is still stored. Raises BadInput when the brokers refuse
        us."""
        await self.source.subscribe(self._stored)
        while not stopping.is_set():
            if messages := await self.source.receive(BATCH_BYTES, WAIT_SECONDS):
                await self._store_all(messages)
            owned = self.source.owned()
            self.metrics.consumer_partitions.set(len(owned))
            self.metrics.consumer_lag.set(await self.source.lag({p: self._positions[p].next or 0 for p in owned}))

    async def _stored(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Waits for the database: reading must not go on from anywhere else."""
        retry = _Retry("offsets_not_read")
        while True:
            try:
                offsets = await self.store.source_offsets(partitions)
            except Unavailable as error:
                await retry.wait(error)
                continue
            self._positions |= {partition: _Position(offsets.get(partition)) for partition in partitions}
            return offsets

    async def _store_all(self, messages: Sequence[Message]) -> None:
        """Returns when they are stored, or thrown away because another member has stored them."""
        positions = {message.partition: self._positions[message.partition] for message in messages}
        storing = asyncio.create_task(self._store_some(messages, positions))
        try:
            while not (await asyncio.wait([storing], timeout=COMMIT_SECONDS))[0]:
                await self.source.keep_alive()
            await storing
        except OffsetsMoved as error:
            structlog.get_logger().warning("offsets_moved", why=str(error), what="reading on from what is stored")
            self.metrics.consumer_rewinds.inc()
            await self.source.rewind(positions.keys())
        finally:
            storing.cancel()

    async def _store_some(self, messages: Sequence[Message], positions: Mapping[Partition, _Position]) -> None:
        """What the database cannot hold is looked for by halves: one message must not take the others with it."""
        received = self.clock()
        try:
            batch = await asyncio.to_thread(self.reader.read, messages, received)
            await self._commit(batch, messages, positions, received)
        except BadInput as error:
            if len(messages) > 1:
                middle = len(messages) // 2
                await self._store_some(messages[:middle], positions)
                await self._store_some(messages[middle:], positions)
                return
            batch = self.reader.without(messages[0], UnplacedReason.NOT_STORED, str(error))
            await self._commit(batch, messages, positions, received)

    async def _commit(
        self, batch: Batch, messages: Sequence[Message], positions: Mapping[Partition, _Position], received: float
    ) -> None:
        """Tries until the database answers. If it has stored them without our hearing of it, the next try raises
        OffsetsMoved."""
        last = {message.partition: message.offset for message in messages}
        advances = [OffsetAdvance(p, positions[p].next, offset + 1) for p, offset in last.items()]
        retry = _Retry("lines_not_stored")
        while True:
            try:
                await self._drop_refused(batch)
                await self.ingest.store(batch, received, advances)
                break
            except (Unavailable, Overloaded) as error:
                await retry.wait(error)
        for advance in advances:
            positions[advance.partition].next = advance.next
        self.unplaced.note(batch, self.protocol, self.reader.defaults, received)
        self.metrics.consumed_messages.inc(len(messages))
        await self.source.note_stored({advance.partition: advance.next for advance in advances})

    async def _drop_refused(self, batch: Batch) -> None:
        reasons = batch.of_jobs(await self.refused({target.job for target in batch.blocks}))
        if not self.reader.defaults.vouched:
            reasons |= await self.ingest.ahead(batch)
        for target, reason in reasons.items():
            unplaced = Unattributed(UnplacedReason.REFUSED, reason, (("job", target.job),))
            for block in batch.blocks.pop(target):
                leave_out(batch, unplaced, block.data)


class _Retry:
    """Waits longer from try to try, and says so once, as ``event``."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._seconds = RETRY_SECONDS

    async def wait(self, error: Exception) -> None:
        if self._seconds == RETRY_SECONDS:
            structlog.get_logger().warning(self._event, why=str(error), what="trying again until it works")
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, RETRY_SECONDS_MOST)
