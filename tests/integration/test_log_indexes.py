"""The indexes that are kept of logs: made once for many readers, made anew when lines came, given up when too many."""

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from diagnoser.compress import Compressor
from diagnoser.diagnosis import log_indexes
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.log_indexes import KEPT_SECONDS, KeptLogs, LogIndexes
from diagnoser.model import AttemptKey, LineBlock, Stream
from diagnoser.model.errors import NotFound
from tests.databases import sqlite_store
from tests.large_logs import hold_logs
from tests.serving import store_log
from tools.bench import logs

KEY, OTHER = AttemptKey("a"), AttemptKey("b")
LINE = LineBlock(Stream(), b"step 1\n")


async def test_an_index_is_made_once_and_again_when_lines_came(tmp_path: Path) -> None:
    """Readers that come together share it; the next ones see what has come since."""
    store = await sqlite_store(tmp_path / "i.db")
    indexes = LogIndexes(store, AttemptLogs(store, Compressor), lambda: 0.0)
    await store_log(store, KEY, LINE)
    first, *others = await asyncio.gather(*(indexes.load(KEY) for _ in range(5)))
    assert all(other is first for other in others)
    await store_log(store, KEY, LINE)
    grown = await indexes.load(KEY)
    assert (len(first.index), len(grown.index), grown.revision > first.revision) == (1, 2, True)
    with pytest.raises(NotFound):
        await indexes.load(AttemptKey("a", 2))
    await store.close()


async def test_the_index_that_nobody_looked_at_longest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than may be kept push out the others; the latest one stays however large it is."""
    monkeypatch.setattr(log_indexes, "BYTES_KEPT", 0)
    store = await sqlite_store(tmp_path / "i.db")
    indexes = LogIndexes(store, AttemptLogs(store, Compressor), lambda: 0.0)
    for key in (KEY, OTHER):
        await store_log(store, key, LINE)
    first = await indexes.load(KEY)
    assert await indexes.load(KEY) is first
    await indexes.load(OTHER)
    assert await indexes.load(KEY) is not first
    await store.close()


async def test_an_index_goes_some_time_after_the_last_look(tmp_path: Path) -> None:
    """Each failure that somebody has looked at once would else stay in memory; what is followed stays."""
    now = [0.0]
    store = await sqlite_store(tmp_path / "i.db")
    indexes = LogIndexes(store, AttemptLogs(store, Compressor), lambda: now[0])
    for key in (KEY, OTHER):
        await store_log(store, key, LINE)
    followed, left = await indexes.load(KEY), await indexes.load(OTHER)
    for now[0] in (KEPT_SECONDS / 2, KEPT_SECONDS + 1.0):
        assert await indexes.load(KEY) is followed
    assert await indexes.load(OTHER) is not left
    await store.close()


async def test_the_bytes_of_an_index_are_those_of_memory(tmp_path: Path) -> None:
    """About: within a factor of two, for a log whose points of series take more than its lines."""
    store = await sqlite_store(tmp_path / "i.db")
    keys = [AttemptKey(f"job-{number}") for number in range(20)]
    for key in keys:
        await store_log(store, key, LineBlock(Stream(), logs.steady(1 << 14, 1, seed=1)))
    indexes = LogIndexes(store, AttemptLogs(store, Compressor), lambda: 0.0)
    await indexes.load(keys.pop())  # what all of them share
    tracemalloc.start()
    try:
        made = [await indexes.load(key) for key in keys]
        for known in made:
            assert known.index.timeline.progress and known.index.log.evidence.lines
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held / 2 < sum(known.bytes for known in made) < held * 2
    await store.close()


async def test_whoever_reads_a_log_whole_gets_the_one_that_is_kept(tmp_path: Path) -> None:
    """It is read once, and only as far as somebody needs; an attempt that is not stored any more has no line."""
    store = await sqlite_store(tmp_path / "i.db")
    indexes = LogIndexes(store, AttemptLogs(store, Compressor), lambda: 0.0)
    kept = KeptLogs(indexes)
    await store_log(store, KEY, LineBlock(Stream(), b"step 1 loss 2.0\nstep 2 loss 1.0\n"))
    index = (await indexes.load(KEY)).index
    assert await kept.load(KEY) is index.log
    assert "placed_progress" not in vars(index.log.digest)
    assert [one.point.step for one in index.timeline.progress] == [1, 2]
    assert (await kept.load(OTHER)).evidence.lines == ()
    await store.close()


async def test_nobody_waits_for_a_large_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read once behind all that look, with its evidence; when lines came, the last index is shown until the new
    one is made; a small log is there at once."""
    may_read = hold_logs(monkeypatch)
    store = await sqlite_store(tmp_path / "i.db")
    indexes = LogIndexes(store, AttemptLogs(store, Compressor), lambda: 0.0)
    await store_log(store, KEY, LINE)
    assert [await indexes.load_or_begin(KEY) for _ in range(3)] == [None] * 3
    assert len(indexes._behind) == 1
    may_read.set()
    first = await read_behind(indexes)
    assert "evidence" in vars(first.index.log.digest)
    assert await indexes.load_or_begin(KEY) is first

    may_read.clear()
    await store_log(store, KEY, LINE)
    assert await indexes.load_or_begin(KEY) is first
    may_read.set()
    assert len((await read_behind(indexes)).index) == 2

    await store_log(store, OTHER, LINE)
    monkeypatch.setattr(log_indexes, "READ_AT_ONCE", await store.logs.stored_size(OTHER))
    assert await indexes.load_or_begin(OTHER) is not None
    with pytest.raises(NotFound):
        await indexes.load_or_begin(AttemptKey("a", 2))
    await store.close()


async def test_a_large_log_that_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is in the service's log, and the next look begins anew."""
    monkeypatch.setattr(log_indexes, "READ_AT_ONCE", -1)
    store = await sqlite_store(tmp_path / "i.db")
    indexes = LogIndexes(store, AttemptLogs(store, Compressor), lambda: 0.0)
    await store_log(store, KEY, LINE)
    with pytest.MonkeyPatch.context() as broken, capture_logs() as said:
        broken.setattr(log_indexes, "_indexed", lambda log: 1 / 0)
        assert await indexes.load_or_begin(KEY) is None
        await asyncio.wait([task for task, _ in indexes._behind.values()])
        await asyncio.sleep(0)
    assert [(entry["event"], entry["job"]) for entry in said] == [("log_not_read", "a")]
    assert await indexes.load_or_begin(KEY) is None
    assert len((await read_behind(indexes)).index) == 1
    await store.close()


async def read_behind(indexes: LogIndexes) -> log_indexes.IndexedLog:
    """The index that is being made, when it is made."""
    await asyncio.gather(*(task for task, _ in indexes._behind.values()))
    await asyncio.sleep(0)
    assert not indexes._behind
    return await indexes.load(KEY)
