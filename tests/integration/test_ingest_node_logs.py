"""Node logs on their way in: their own store, their own numbers, and what they set off."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser import compress
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis.node_logs import PART
from diagnoser.ingest import RecordDefaults
from diagnoser.model import AttemptKey, Stream, node_log_id
from tests.databases import sqlite_store
from tests.ingesting import accept
from tests.integration.test_ingest_service import intake

LOG = node_log_id("", "n1")
KERNEL = Stream("kernel", "n1")
FIRST = RecordDefaults(stream=KERNEL)
HOUR = 500_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def numbers(store: SqlStore, part: int) -> list[int]:
    """Line numbers that a part of the log holds."""
    deltas = [compress.from_bytes(one.data) for one in await store.logs.pieces(AttemptKey(LOG, part))]
    return sorted(number for delta in deltas for share in delta.shares.values() for number in share.rows)


async def test_an_hour_is_a_part_and_numbers_go_on(store: SqlStore) -> None:
    """Each hour of arrival is stored apart; lines without a number count on from the hour before."""
    async with intake(store) as made:
        await accept(made, b"a\nb\n", "text", FIRST, HOUR * PART + 5)
        await accept(made, b"c\n", "text", RecordDefaults(stream=Stream("syslog", "n1")), (HOUR + 1) * PART)
        await accept(made, b"d\n", "text", FIRST, (HOUR + 2) * PART)
    assert [await numbers(store, HOUR + at) for at in range(3)] == [[1, 2], [1], [3]]


async def test_a_resend_over_the_hour_counts_once(store: SqlStore) -> None:
    """Numbered lines that are sent again in the next hour are known, though they lie in another part."""
    defaults = RecordDefaults(stream=KERNEL, first=1)
    async with intake(store) as made:
        await accept(made, b"a\nb\n", "text", defaults, HOUR * PART + 5)
        again = await accept(made, b"a\nb\nc\n", "text", defaults, (HOUR + 1) * PART)
    assert (again.lines, again.duplicates) == (1, 2)
    assert await numbers(store, HOUR + 1) == [3]


async def test_a_late_clock_writes_to_the_newest_part(store: SqlStore) -> None:
    """A replica whose clock is behind does not reopen an old part: numbers stay unique."""
    async with intake(store) as made:
        await accept(made, b"a\n", "text", FIRST, (HOUR + 1) * PART)
        await accept(made, b"b\n", "text", FIRST, (HOUR + 1) * PART - 3)
    assert await numbers(store, HOUR + 1) == [1, 2]
    assert await numbers(store, HOUR) == []


async def test_a_named_job_keeps_its_kernel_lines(store: SqlStore) -> None:
    """Who names a job means it: the lines are a stream of its attempt."""
    async with intake(store) as made:
        await accept(made, b"a\n", "text", RecordDefaults(job="j", stream=KERNEL), HOUR * PART)
    assert await store.logs.pieces(AttemptKey("j", 1))
    assert await store.node_logs.parts([LOG], 1) == {}
