"""Each message counts once, also where group, database and process change at the worst moment.

The source is scripted: real brokers do not change an assignment at a moment that a test chooses.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import Compressor, raw_chunks
from diagnoser.ingest import RecordDefaults, consumer
from diagnoser.ingest.consumer import LogConsumer
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.messages import MessageReader
from diagnoser.ingest.service import IngestService
from diagnoser.ingest.unattributed import UnattributedStreams
from diagnoser.model import AttemptKey
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.logs import Append, OffsetAdvance, Partition
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Message
from diagnoser.ports.messages import StoredOffsets
from tests.databases import sqlite_store
from tests.in_memory import RecentUnplaced

PARTITION = Partition("brokers", "group", "logs", 0)
LINES = [f"line {number}" for number in range(8)]


class Source:
    """A topic of one partition that is always ours. reassigned: how often the group takes it away and gives it back
    while a batch waits; stored_by_others: what another member stores of it meanwhile."""

    def __init__(self, jobs: Sequence[str], store: SqlStore) -> None:
        self._jobs = jobs
        self._store = store
        self._position = 0
        self.reassigned = 0
        self.stored_by_others = 0
        self.kept_alive = 0

    async def subscribe(self, stored: StoredOffsets) -> None:
        self._stored = stored
        await self._assign()

    async def _assign(self) -> None:
        self._position = (await self._stored([PARTITION])).get(PARTITION, 0)

    async def receive(self, size: int, wait: float) -> list[Message]:
        start, self._position = self._position, len(LINES)
        if start >= len(LINES):
            await asyncio.sleep(0.01)
        return [
            Message(PARTITION, number, self._jobs[number].encode(), LINES[number].encode())
            for number in range(start, len(LINES))
        ]

    async def keep_alive(self) -> None:
        self.kept_alive += 1
        if self.reassigned:
            self.reassigned -= 1
            if self.stored_by_others:
                await self._store.logs.append([], [OffsetAdvance(PARTITION, None, self.stored_by_others)])
            await self._assign()

    async def rewind(self, partitions: Collection[Partition]) -> None:
        await self._assign()

    async def note_stored(self, offsets: Mapping[Partition, int]) -> None:
        pass

    async def lag(self, offsets: Mapping[Partition, int]) -> int:
        return 0

    def owned(self) -> frozenset[Partition]:
        return frozenset({PARTITION})

    async def close(self) -> None:
        pass


class Slow:
    """Passes on to a store. slow: seconds of the first append. faults: what happens at further ones, None for nothing;
    ``forgets``: whether they are raised when the lines are stored already. poison: a job that it cannot hold."""

    def __init__(
        self,
        store: SqlStore,
        slow: float = 0.0,
        faults: Sequence[Exception | None] = (),
        *,
        forgets: bool = False,
        poison: str = "",
    ) -> None:
        self._store = store
        self._slow = slow
        self._faults = list(faults)
        self._forgets = forgets
        self._poison = poison

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.logs, name)

    async def append(self, appends: Sequence[Append], advances: Sequence[OffsetAdvance] = ()) -> None:
        slow, self._slow = self._slow, 0.0
        await asyncio.sleep(slow)
        if any(append.attempt.job == self._poison for append in appends):
            raise BadInput("this job cannot be stored")
        fault = self._faults.pop(0) if self._faults else None
        if fault and not self._forgets:
            raise fault
        await self._store.logs.append(appends, advances)
        if fault:
            raise fault


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(consumer, "RETRY_SECONDS", 0.01)


async def consume(source: Source, store: SqlStore, slow: Slow) -> list[str]:
    """The lines that are stored once all of the topic is."""
    metrics = Metrics(CollectorRegistry())
    logs = cast(LogRepository, slow)
    ingest = IngestService(logs, Compressor, metrics)
    reader = MessageReader(DEFAULT, "text", RecordDefaults())
    unplaced = UnattributedStreams(RecentUnplaced().record_unplaced, str, metrics)

    async def refused(jobs: Collection[str]) -> Mapping[str, str]:
        return {}

    running = LogConsumer(source, "kafka", ingest, logs, reader, unplaced, refused, lambda: 100.0, metrics)
    stopping = asyncio.Event()
    committing, consuming = asyncio.create_task(ingest.run()), asyncio.create_task(running.run(stopping))
    async with asyncio.timeout(60):
        while (await store.logs.source_offsets([PARTITION])).get(PARTITION) != len(LINES):  # noqa: ASYNC110 - a row
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # what would be stored again
    stopping.set()
    await consuming
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    blocks = [
        block for piece in await store.logs.pieces(AttemptKey("llm", 1)) for block in raw_chunks.unpack(piece.data)
    ]
    return [line for block in blocks for line in block.data.decode().removesuffix("\n").split("\n")]


async def test_a_partition_that_comes_back_while_its_batch_is_stored(store: SqlStore) -> None:
    """It is read again from before the batch, which lands meanwhile: what is read again is thrown away."""
    source = Source(["llm"] * 8, store)
    source.reassigned = 1
    assert await consume(source, store, Slow(store, slow=0.3)) == LINES
    assert source.kept_alive


async def test_a_batch_that_was_read_before_another_member_went_on(store: SqlStore) -> None:
    """The batch in hand is thrown away, although its partition is ours again."""
    source = Source(["llm"] * 8, store)
    source.reassigned, source.stored_by_others = 1, 5
    assert await consume(source, store, Slow(store, slow=0.3)) == LINES[5:]


async def test_a_commit_that_was_stored_without_our_hearing_of_it(store: SqlStore) -> None:
    """The connection broke behind the commit: the next try finds the offset moved."""
    faulty = Slow(store, faults=[Unavailable("connection lost")], forgets=True)
    assert await consume(Source(["llm"] * 8, store), store, faulty) == LINES


async def test_a_database_that_goes_away_between_two_halves(store: SqlStore) -> None:
    """The half that is stored is not stored again with the other one."""
    jobs = ["llm"] * 6 + ["poison", "llm"]
    faulty = Slow(store, faults=[None, Unavailable("away"), Unavailable("away")], poison="poison")
    assert await consume(Source(jobs, store), store, faulty) == [*LINES[:6], LINES[7]]
