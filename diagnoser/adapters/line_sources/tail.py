"""``ports.MessageSource`` over a log store: lines by their time, from the position that our database has.

One question at a time, for a stretch of time that begins at the position. A stretch is taken when the store gave fewer
lines than it may give, so that they are all; else a shorter one is asked for. So neither the order of an answer matters
nor lines of one time. The end of the stretch is stored with its lines as the next position.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import structlog

from diagnoser.adapters.line_sources.store_client import ReadLines, StoreClient
from diagnoser.model.errors import TooLarge, Unavailable
from diagnoser.model.logs import Partition
from diagnoser.ports import Clock, Message, SourceLine
from diagnoser.ports.messages import StoredOffsets

SECOND = 1_000_000_000
LINES = 5_000
"""Of one answer: the most that a Loki gives as it comes."""
LONGEST = 3_600 * SECOND
"""Of one stretch: what a store may have to look through for one question."""
SHORTEST_NEWS = 2 * SECOND
"""What is new must be as long as that before the store is asked: how often it is at most, once all is read."""
PAUSE_SECONDS, PAUSE_SECONDS_MOST = 1.0, 30.0


@dataclass(eq=False)
class LineTail:
    """A topic of one partition that is always ours. A second process of the same group reads the same, and what it
    stores first is ours no more. partition: its topic is the query. since: seconds before now from which on a new group
    reads. delay: seconds that a line may take into the store; what comes later than that is not read."""

    client: StoreClient
    read: ReadLines
    partition: Partition
    clock: Clock
    _: KW_ONLY
    since: float
    delay: float

    def __post_init__(self) -> None:
        self._next = 0
        self._length = LONGEST
        self._pause = PAUSE_SECONDS
        self._log = structlog.get_logger().bind(query=self.partition.topic, group=self.partition.group)

    async def subscribe(self, stored: StoredOffsets) -> None:
        self._stored = stored
        await self.rewind((self.partition,))

    async def rewind(self, partitions: Collection[Partition]) -> None:
        offsets = await self._stored(partitions)
        self._next = offsets.get(self.partition, self._ago(self.since))

    async def receive(self, size: int, wait: float) -> list[Message]:
        """The lines of one stretch, mostly fewer than ``size`` bytes."""
        newest = self._ago(self.delay)
        if newest - self._next < SHORTEST_NEWS:
            await asyncio.sleep(wait)
            return []
        start, end = self._next, min(newest, self._next + self._length)
        lines = await self._read(start, end)
        if lines is None:
            return []
        self._next = end
        return _messages(self.partition, lines, end)

    async def _read(self, start: int, end: int) -> list[SourceLine] | None:
        """All lines of the stretch in their order; None where it must be shorter, or the store is away."""
        try:
            lines = await self.read(self.client, self.partition.topic, start, end, LINES)
        except TooLarge:
            lines = None
        except Unavailable as error:
            await self._wait(error)
            return None
        self._note_answer()
        if lines is not None and len(lines) < LINES:
            self._length = _adapted(self._length, len(lines))
            return _within(lines, start, end)
        if end - start > 1:
            self._length = (end - start) // 2
            return None
        self._log.error("lines_left_out", time=start, why=f"{LINES} lines or more have this very time")
        return _within(lines or [], start, end)

    async def _wait(self, error: Unavailable) -> None:
        if self._pause == PAUSE_SECONDS:
            self._log.warning("source_away", why=str(error), what="trying again until it answers")
        pause, self._pause = self._pause, min(2 * self._pause, PAUSE_SECONDS_MOST)
        await asyncio.sleep(pause)

    def _note_answer(self) -> None:
        if self._pause > PAUSE_SECONDS:
            self._log.info("source_back")
        self._pause = PAUSE_SECONDS

    async def keep_alive(self) -> None:
        """Nobody else waits for us."""

    async def note_stored(self, offsets: Mapping[Partition, int]) -> None:
        """The store does not want to know."""

    async def lag(self, offsets: Mapping[Partition, int]) -> int:
        """A store does not tell how many lines it has: those of a full answer where it has more, else none."""
        if self._ago(self.delay) - self._next < max(self._length, SHORTEST_NEWS):
            return 0
        return LINES

    def owned(self) -> frozenset[Partition]:
        return frozenset({self.partition})

    async def close(self) -> None:
        await self.client.close()

    def _ago(self, seconds: float) -> int:
        return int((self.clock() - seconds) * SECOND)


def _adapted(length: int, lines: int) -> int:
    """How long the next stretch shall be."""
    if lines <= LINES // 4:
        return min(2 * length, LONGEST)
    return length


def _within(lines: Sequence[SourceLine], start: int, end: int) -> list[SourceLine]:
    """Lines in the order of their times. Stores have been seen to give some from outside."""
    inside = [line for line in lines if start <= line.nanoseconds < end]
    return sorted(inside, key=lambda line: line.nanoseconds)


def _messages(partition: Partition, lines: Sequence[SourceLine], end: int) -> list[Message]:
    """Behind each message stands the time of the next, and behind the last the end of the stretch: where only the first
    ones are stored, the others are read again."""
    times = [*(line.nanoseconds for line in lines), end]
    messages = []
    for line, following in zip(lines, times[1:], strict=True):
        time = line.nanoseconds / SECOND
        messages.append(Message(partition, following - 1, b"", line.text, line.labels, time))
    return messages
