"""Compression behind the acknowledgement: the same log in fewer pieces."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from diagnoser import compress
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import Compressor
from diagnoser.model import LineBlock
from diagnoser.model.logs import CompactionTiming
from diagnoser.observability.metrics import Metrics
from diagnoser.worker.compaction import Compaction
from tests.contract.records import KEY, OUT, append
from tests.databases import sqlite_store

NOW = 1000.0
TEXT = b"".join(b"step %d loss 2.%03d\n" % (number, number) for number in range(1, 2001))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


def compaction(store: SqlStore, **timing: float) -> Compaction:
    made = CompactionTiming(**timing)  # type: ignore[arg-type]
    return Compaction(store.logs, Compressor, lambda: NOW, Metrics(CollectorRegistry()), timing=made)


async def store_pieces(store: SqlStore, pieces: Sequence[tuple[bytes, int]]) -> None:
    """(data, bytes of raw text) of each."""
    for data, raw in pieces:
        read = (await store.logs.cursors([KEY]))[KEY].get(OUT)
        await store.logs.append([replace(append(read=read, delta=data, at=NOW), raw=raw)])


def raw_pieces(size: int) -> list[tuple[bytes, int]]:
    """TEXT in raw pieces of ``size`` lines."""
    lines = TEXT.splitlines(keepends=True)
    texts = [(first + 1, b"".join(lines[first : first + size])) for first in range(0, len(lines), size)]
    return [(compress.pack([LineBlock(OUT, text, first, None, NOW)]), len(text)) for first, text in texts]


def compressed(data: bytes, first: int = 1) -> bytes:
    compressor = Compressor()
    compressor.feed(LineBlock(OUT, data, first, None, NOW))
    return compress.to_bytes(compressor.take())


async def test_many_raw_pieces_become_the_delta_of_their_text(store: SqlStore) -> None:
    """As if all lines had come in one request, whatever the size of the pieces."""
    await store_pieces(store, raw_pieces(10))
    assert await compaction(store, window=len(TEXT)).step()
    (piece,) = await store.logs.pieces(KEY)
    assert (piece.data, piece.raw) == (compressed(TEXT), 0)


async def test_raw_pieces_below_the_window_wait(store: SqlStore) -> None:
    """Nothing is done for an attempt that prints and has not filled a window yet."""
    await store_pieces(store, raw_pieces(500))
    assert not await compaction(store, window=len(TEXT) + 1).step()
    assert len(await store.logs.pieces(KEY)) == 4


async def test_a_window_leaves_older_deltas_as_they_are(store: SqlStore) -> None:
    """Only the raw pieces are read and replaced, as long as the deltas are few."""
    (_, size), *rest = raw_pieces(1000)
    await store_pieces(store, [(compressed(TEXT[:size]), 0), *rest])
    assert await compaction(store, window=1).step()
    pieces = await store.logs.pieces(KEY)
    assert [piece.data for piece in pieces] == [compressed(TEXT[:size]), compressed(TEXT[size:], 1001)]


async def test_a_crowd_of_pieces_becomes_one(store: SqlStore) -> None:
    """A long healthy run does not pile up: raw pieces and deltas are merged without waiting for its end."""
    (_, size), *rest = raw_pieces(400)
    await store_pieces(store, [(compressed(TEXT[:size]), 0), *rest])
    assert await compaction(store, crowd=4).step()
    (piece,) = await store.logs.pieces(KEY)
    assert compress.from_bytes(piece.data).lines == 2000


async def test_pieces_that_cannot_be_merged_are_left_alone_for_a_while(store: SqlStore) -> None:
    """A failure is told once, not at every round, and costs nothing that is stored."""
    await store_pieces(store, [(b"not a piece", 0)] * 4)
    made = compaction(store, crowd=3)
    with capture_logs() as logs:
        assert await made.step()
        assert not await made.step()
    assert [entry["event"] for entry in logs] == ["compaction_failed"]
    assert len(await store.logs.pieces(KEY)) == 4
