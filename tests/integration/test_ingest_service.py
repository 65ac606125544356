"""The group commit over a real store: acknowledged means durable, sent twice counts once."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from diagnoser import compress
from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor, Delta
from diagnoser.ingest import IngestReceipt, OffsetRanges, RecordDefaults
from diagnoser.ingest.service import IngestService
from diagnoser.model import AttemptKey, Stream
from diagnoser.model.errors import BadInput, Conflict, Overloaded, Unavailable
from diagnoser.model.logs import Append, OffsetAdvance
from diagnoser.observability.metrics import Metrics
from diagnoser.worker.compaction import Compaction
from tests import accuracy_bars, rank_split
from tests.corpus import needs_corpus
from tests.databases import sqlite_store
from tests.ingesting import accept
from tests.rank_streams import crashed_run

KEY = AttemptKey("j")
END = 2e9
"""Long after all lines arrived."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


class Counted:
    """Passes on to the logs of a store, counts the commits, raises ``faults`` first, and waits while ``stuck``."""

    def __init__(self, store: SqlStore, faults: Sequence[Exception] = (), *, stuck: bool = False) -> None:
        self._store = store
        self._faults = list(faults)
        self._stuck = stuck
        self.commits: list[int] = []
        self.committing = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.logs, name)

    async def append(self, appends: Sequence[Append], advances: Sequence[OffsetAdvance] = ()) -> None:
        self.commits.append(len(appends))
        self.committing.set()
        if self._stuck:
            await asyncio.Event().wait()
        if self._faults:
            raise self._faults.pop(0)
        await self._store.logs.append(appends, advances)


@asynccontextmanager
async def intake(store: SqlStore | Counted) -> AsyncIterator[IngestService]:
    logs = store.logs if isinstance(store, SqlStore) else cast(LogRepository, store)
    made = IngestService(logs, Compressor, Metrics(CollectorRegistry()))
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def send(
    to: IngestService, body: bytes, first: int | None = None, rank: int = -1, job: str = "j"
) -> IngestReceipt:
    return await accept(to, body, "text", RecordDefaults(job, 1, Stream(rank=rank), first), 100.0)


async def stored(store: SqlStore, key: AttemptKey = KEY) -> Delta:
    return compress.read_pieces([piece.data for piece in await store.logs.pieces(key)], Compressor)


async def covered(store: SqlStore) -> OffsetRanges:
    return (await store.logs.cursors([KEY]))[KEY][Stream()].covered


async def test_an_accepted_line_is_in_the_database(store: SqlStore) -> None:
    """When accept returns, another reader of the database finds the line."""
    async with intake(store) as made:
        assert (await send(made, b"one\ntwo\n")).lines == 2
        assert (await stored(store)).lines == 2


async def test_requests_that_arrive_together_share_a_commit(store: SqlStore) -> None:
    """Many small requests need few transactions."""
    counted = Counted(store)
    async with intake(counted) as made:
        receipts = await asyncio.gather(*(send(made, b"a line\n", rank=rank) for rank in range(50)))
    assert sum(receipt.lines for receipt in receipts) == 50
    assert len(counted.commits) < 25
    assert (await stored(store)).lines == 50


async def test_a_commit_takes_up_to_its_bound_and_one_larger_request_alone(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many requests as fit are committed at once, and one that never fits by itself."""
    monkeypatch.setattr("diagnoser.ingest.service.COMMIT_BYTES", 10)
    counted = Counted(store)
    made = IngestService(cast(LogRepository, counted), Compressor, Metrics(CollectorRegistry()))
    bodies = [b"12345", b"12345", b"1", b"a line over the bound", b"1", b"1"]
    requests = []
    for number, body in enumerate(bodies):
        requests.append(asyncio.create_task(send(made, body, job=f"job-{number}")))
        await made._arrived.wait()
        made._arrived.clear()
    for _ in range(3):
        await made.commit()
    assert counted.commits == [4, 1, 1]  # small ones first
    assert [receipt.lines for receipt in await asyncio.gather(*requests)] == [1] * len(bodies)


async def test_a_numbered_batch_counts_once(store: SqlStore) -> None:
    """The same batch again, and one that overlaps, add only what is missing."""
    async with intake(store) as made:
        assert await send(made, b"1\n2\n3\n", first=1) == IngestReceipt(lines=3)
        assert await send(made, b"1\n2\n3\n", first=1) == IngestReceipt(lines=0, duplicates=3)
        assert await send(made, b"3\n4\n", first=3) == IngestReceipt(lines=1, duplicates=1)
    assert await covered(store) == ((1, 4),)
    assert (await stored(store)).lines == 4


async def test_numbered_batches_may_come_in_any_order(store: SqlStore) -> None:
    """A hole is filled by the batch that comes late."""
    async with intake(store) as made:
        await send(made, b"5\n6\n", first=5)
        await send(made, b"1\n2\n3\n4\n5\n", first=1)
    assert await covered(store) == ((1, 6),)
    assert (await stored(store)).lines == 6


async def test_unnumbered_lines_go_behind_those_that_are_there(store: SqlStore) -> None:
    """Within one commit and over several, each line gets its own number."""
    async with intake(store) as made:
        await asyncio.gather(*(send(made, b"x\ny\n") for _ in range(5)))
        await send(made, b"z\n")
    assert await covered(store) == ((1, 11),)
    assert (await stored(store)).lines == 11


async def test_a_failed_commit_refuses_all_of_it_and_a_retry_loses_nothing(store: SqlStore) -> None:
    """Nothing is half counted: after 503 the same lines are taken whole."""
    async with intake(Counted(store, [Unavailable("locked")])) as made:
        with pytest.raises(Unavailable):
            await send(made, b"1\n2\n", first=1)
        assert await store.logs.pieces(KEY) == []
        assert (await send(made, b"1\n2\n", first=1)).lines == 2


async def test_what_one_sender_may_not_send_leaves_the_replica_ready(store: SqlStore) -> None:
    """A commit that the database cannot take makes a replica unready; a request that is wrong does not."""
    async with intake(Counted(store, [BadInput("too many streams"), Unavailable("locked")])) as made:
        with pytest.raises(BadInput):
            await send(made, b"1\n", first=1)
        made.check_commits()
        with pytest.raises(Unavailable):
            await send(made, b"1\n", first=1)
        with pytest.raises(Unavailable):
            made.check_commits()


async def test_losing_a_race_is_settled_by_looking_again(store: SqlStore) -> None:
    """When another replica wrote first, the lines are taken with what is covered by now."""
    counted = Counted(store, [Conflict("moved")])
    async with intake(counted) as made:
        assert (await send(made, b"1\n2\n", first=1)).lines == 2
    assert len(counted.commits) == 2


async def test_what_is_known_of_a_stream_is_forgotten_when_another_replica_wrote_to_it(
    tmp_path: Path, store: SqlStore
) -> None:
    """One conflict, then the cursors are read anew: the replica that wrote before takes its next lines at once."""
    other, counted = await sqlite_store(tmp_path / "test.db"), Counted(store)
    try:
        async with intake(counted) as left, intake(other) as right:
            await send(left, b"1\n", first=1)
            await send(right, b"2\n", first=2)
            assert (await send(left, b"2\n3\n", first=2)).lines == 1
    finally:
        await other.close()
    assert counted.commits == [1, 1, 1]
    assert await covered(store) == ((1, 3),)


async def test_two_replicas_that_take_the_same_batches_store_each_line_once(tmp_path: Path, store: SqlStore) -> None:
    """Two services on one database, every batch sent to both at once: no line twice, none lost."""
    other = await sqlite_store(tmp_path / "test.db")
    batches = [(first, b"".join(b"line %d\n" % n for n in range(first, first + 10))) for first in range(1, 201, 10)]
    try:
        async with intake(store) as left, intake(other) as right:
            receipts = await asyncio.gather(
                *(send(made, body, first) for first, body in batches for made in (left, right))
            )
    finally:
        await other.close()
    assert sum(receipt.lines for receipt in receipts) == 200
    assert sum(receipt.duplicates for receipt in receipts) == 200
    assert await covered(store) == ((1, 200),)
    assert (await stored(store)).lines == 200


async def test_one_request_that_cannot_be_stored_costs_itself_only(store: SqlStore) -> None:
    """The others of the group are committed."""
    counted = Counted(store, [BadInput("poison"), BadInput("poison")])
    async with intake(counted) as made:
        results = await asyncio.gather(*(send(made, b"x\n", rank=rank) for rank in range(3)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["BadInput", "IngestReceipt", "IngestReceipt"]


async def test_only_faults_of_the_store_make_a_replica_unready(store: SqlStore) -> None:
    """A request that no store would take, or one that comes twice, says nothing about this one."""
    async with intake(Counted(store, [BadInput("poison")])) as made:
        with pytest.raises(BadInput):
            await send(made, b"x\n")
        made.check_commits()
        await send(made, b"1\n", first=1)
        await send(made, b"1\n", first=1)
        made.check_commits()
    async with intake(Counted(store, [Unavailable("full")])) as made:
        with pytest.raises(Unavailable):
            await send(made, b"x\n")
        with pytest.raises(Unavailable, match="could not be stored"):
            made.check_commits()


async def test_a_job_that_is_not_compressed_in_time_is_held_back(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender gets 429 until enough of its lines are compressed; other jobs go on."""
    monkeypatch.setattr("diagnoser.ingest.backlog.FRESH_SECONDS", 0.0)
    monkeypatch.setattr("diagnoser.ingest.backlog.BACKLOG_BYTES", 10)
    async with intake(store) as made:
        await send(made, b"more than ten bytes\n")
        with pytest.raises(Overloaded, match="job j"):
            await send(made, b"x\n")
        await send(made, b"x\n", job="other")
        pieces = await store.logs.raw_pieces(KEY, 1)
        assert await store.logs.compact(KEY, compress.to_bytes(await stored(store)), pieces)
        assert (await send(made, b"x\n")).lines == 1


async def test_more_than_may_wait_is_refused(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body over the bound of waiting text gets 503 instead of filling the memory."""
    monkeypatch.setattr("diagnoser.ingest.service.PENDING_BYTES", 1000)
    async with intake(store) as made:
        with pytest.raises(Unavailable, match="wait"):
            await send(made, b"x" * 2000)


async def test_lines_without_an_attempt_go_to_the_latest(store: SqlStore) -> None:
    """A shipper that does not know attempts feeds the newest one."""
    async with intake(store) as made:
        await accept(made, b"a\n", "text", RecordDefaults("j", 3), 100.0)
        await accept(made, b"b\n", "text", RecordDefaults("j", None), 101.0)
    assert (await stored(store, AttemptKey("j", 3))).lines == 2


async def test_stopping_refuses_what_waits(store: SqlStore) -> None:
    """Requests in a commit and behind it are told when the service stops, not left hanging."""
    counted = Counted(store, stuck=True)
    async with intake(counted) as made:
        first = asyncio.create_task(send(made, b"x\n"))
        await counted.committing.wait()
        second = asyncio.create_task(send(made, b"y\n"))
        await made._arrived.wait()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable, Unavailable]


@needs_corpus
async def test_a_log_that_came_as_many_streams_is_diagnosed_as_in_process(store: SqlStore) -> None:
    """Bodies of a crashed run and of a labelled log, taken in, committed and compacted as the service does: type, root
    and rank are those of the bodies that are read without it."""
    analyzer = accuracy_bars.load()
    _, _, log = next(rank_split.logs())
    mixed = rank_split.bodies(rank_split.split(log, rank_split.SHIPPINGS[0]), rank_split.SHIPPINGS[0], random.Random(1))
    for number, blocks in enumerate((crashed_run(3).bodies(), mixed)):
        key = AttemptKey(f"run-{number}")
        async with intake(store) as made:
            for block in blocks:
                defaults = RecordDefaults(key.job, 1, block.stream, block.first)
                await accept(made, block.data, "text", defaults, block.received)
        await Compaction(store.logs, analyzer.compressor, lambda: END, Metrics(CollectorRegistry())).step()
        pieces = [piece.data for piece in await store.logs.pieces(key)]
        facts = rank_split.facts_of(blocks[-1].received, 1)
        served = analyzer.analyze(AttemptLog(compress.read_pieces(pieces, analyzer.compressor)), facts)
        alone = analyzer.analyze(rank_split.stored(analyzer, blocks, random.Random(2)), facts)
        assert (served.type, served.root_cause) == (alone.type, alone.root_cause)
        assert served.root_cause is not None
