"""Contract of the log store for lines that were read of a message queue: stored once, with where they were read."""

import asyncio

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model.errors import Conflict, OffsetsMoved
from diagnoser.model.logs import OffsetAdvance, Partition
from tests.contract.records import KEY, append

FIRST = Partition("brokers", "group", "logs", 0)
SECOND = FIRST._replace(number=1)


async def test_what_nobody_read_has_no_offset(store: SqlStore) -> None:
    """Asking for no partition, or for an unknown one, gives an empty answer."""
    assert await store.logs.source_offsets([]) == {}
    assert await store.logs.source_offsets([FIRST]) == {}


async def test_lines_and_where_they_were_read_are_stored_together(store: SqlStore, second: SqlStore) -> None:
    """Another replica finds both; other groups, topics and clusters of brokers have offsets of their own."""
    await store.logs.append([append(delta=b"lines")], [OffsetAdvance(FIRST, None, 10), OffsetAdvance(SECOND, None, 3)])
    others = [FIRST._replace(group="other"), FIRST._replace(topic="other"), FIRST._replace(cluster="other")]
    assert await second.logs.source_offsets([FIRST, SECOND, *others]) == {FIRST: 10, SECOND: 3}
    assert [piece.data for piece in await second.logs.pieces(KEY)] == [b"lines"]


async def test_an_offset_moves_without_lines(store: SqlStore) -> None:
    """A message that holds no usable line is not read again."""
    await store.logs.append([], [OffsetAdvance(FIRST, None, 10)])
    await store.logs.append([], [OffsetAdvance(FIRST, 10, 11)])
    assert await store.logs.source_offsets([FIRST]) == {FIRST: 11}


async def test_an_offset_may_move_back(store: SqlStore) -> None:
    """A topic that was made anew begins at 0 again."""
    await store.logs.append([], [OffsetAdvance(FIRST, None, 10)])
    await store.logs.append([], [OffsetAdvance(FIRST, 10, 4)])
    assert await store.logs.source_offsets([FIRST]) == {FIRST: 4}


@pytest.mark.parametrize("read", [None, 9, 11])
async def test_who_read_an_offset_that_is_not_stored_stores_nothing(store: SqlStore, read: int | None) -> None:
    """After a rebalance the member before cannot store messages again: none of its commit stays."""
    await store.logs.append([], [OffsetAdvance(FIRST, None, 10)])
    with pytest.raises(OffsetsMoved):
        await store.logs.append([append()], [OffsetAdvance(SECOND, None, 5), OffsetAdvance(FIRST, read, 20)])
    assert await store.logs.source_offsets([FIRST, SECOND]) == {FIRST: 10}
    assert await store.logs.pieces(KEY) == []
    assert await store.jobs.find(KEY.job) is None


async def test_an_offset_that_is_gone_is_not_gone_on_from(store: SqlStore) -> None:
    """Who expects a stored offset where there is none looks again."""
    with pytest.raises(OffsetsMoved):
        await store.logs.append([append()], [OffsetAdvance(FIRST, 10, 20)])


async def test_a_moved_stream_keeps_the_offset_where_it_was(store: SqlStore) -> None:
    """The conflict of a stream takes the offset back with the lines."""
    await store.logs.append([append()])
    with pytest.raises(Conflict) as raised:
        await store.logs.append([append()], [OffsetAdvance(FIRST, None, 10)])
    assert not isinstance(raised.value, OffsetsMoved)
    assert await store.logs.source_offsets([FIRST]) == {}


@pytest.mark.parametrize("read", [None, 10])
async def test_of_two_members_that_read_the_same_one_stores_it(
    store: SqlStore, second: SqlStore, read: int | None
) -> None:
    """Of racing commits of the same messages exactly one is stored, whichever partition each begins with."""
    if read is not None:
        await store.logs.append([], [OffsetAdvance(FIRST, None, read), OffsetAdvance(SECOND, None, read)])
    advances = [OffsetAdvance(FIRST, read, 20), OffsetAdvance(SECOND, read, 20)]
    commits = [
        store.logs.append([append(delta=b"a")], advances),
        second.logs.append([append(delta=b"b")], advances[::-1]),
    ]
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "OffsetsMoved"]
    assert await store.logs.source_offsets([FIRST, SECOND]) == {FIRST: 20, SECOND: 20}
    assert len(await store.logs.pieces(KEY)) == 1
