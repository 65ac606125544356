"""Original lines while the process that archives them is killed again and again."""

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

from diagnoser.adapters.folder_archive import FolderArchive
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import from_bytes, pack
from diagnoser.compress.segments import stream_order
from diagnoser.diagnosis.original_lines import OriginalLines
from diagnoser.model import LineBlock, Stream
from diagnoser.model.logs import Append, Cursor
from tests.chaos import compactor
from tests.contract.records import KEY
from tests.databases import sqlite_store

KILLS = 4
STREAMS = [Stream("stdout", "gpu-001", rank) for rank in range(3)]


def text(stream: Stream, number: int) -> bytes:
    return b"[rank%d]: step %d loss 2.%03d" % (stream.rank, number, number % 997)


async def send(store: SqlStore, first: int, last: int) -> None:
    read = (await store.logs.cursors([KEY]))[KEY]
    for stream in STREAMS:
        data = b"".join(text(stream, number) + b"\n" for number in range(first, last + 1))
        block = LineBlock(stream, data, first, None, 1e9)
        cursors = {stream: (read.get(stream, Cursor()).version, ((1, last),))}
        await store.logs.append([Append(KEY, pack([block]), 1e9, cursors, False, len(data))])


async def test_kills_lose_no_original_line_and_double_none(tmp_path: Path) -> None:
    """At whatever moment the process ends: before an object is whole, before the store knows it, or after."""
    store, archive, chance = await sqlite_store(tmp_path / "test.db"), FolderArchive(tmp_path / "archive"), Random(3)
    sent = 0
    for _ in range(KILLS):
        for _ in range(15):
            await send(store, sent + 1, sent + 40)
            sent += 40
        command = [sys.executable, "-m", compactor.__name__, f"sqlite:///{tmp_path}/test.db", str(tmp_path / "archive")]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == compactor.READY
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        await process.wait()
        await check(store, archive, sent)
    await asyncio.sleep(compactor.LEASE)
    left = compactor.compactor(store, tmp_path / "archive")
    while await store.logs.raw_pieces(KEY, 1):
        await left.step()
    await check(store, archive, sent)
    assert sum(from_bytes(piece.data).lines for piece in await store.logs.pieces(KEY)) == sent * len(STREAMS)
    for stream in STREAMS:
        segments = await store.archive.archived_segments(KEY, stream_order(stream), 1, sent)
        alone = sorted(segment.lines for segment in segments if segment.streams[0] == segment.streams[1])
        assert all(before[1] < after[0] for before, after in pairwise(alone))
    await store.close()


async def check(store: SqlStore, archive: FolderArchive, sent: int) -> None:
    for stream in STREAMS:
        window = await OriginalLines(store, archive).window(KEY, stream, 1, sent)
        shown = [line.text.encode() for line in window.lines]
        assert shown == [text(stream, number) for number in range(1, sent + 1)]
