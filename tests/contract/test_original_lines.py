"""Original lines, from the request that brings them to the window that shows them: none is lost, none comes twice."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.folder_archive import FolderArchive
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import Compressor, pack
from diagnoser.compress.segments import stream_order
from diagnoser.diagnosis import original_lines
from diagnoser.diagnosis.original_lines import LINE_BYTES, LineWindow, OriginalLines
from diagnoser.model import AttemptKey, LineBlock, Provenance, Stream
from diagnoser.model.errors import Unavailable
from diagnoser.model.logs import Append, CompactionTiming, Cursor
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import ArchivedObject
from diagnoser.worker.compaction import Compaction
from diagnoser.worker.retention import DAY, SWEPT_AFTER, Retention, RetentionAges
from tests.contract.records import KEY, OUT
from tests.thorough import THOROUGH

NOW = 1_790_000_000.0
OTHER = Stream("stderr", "gpu-005", 7)
ALL = CompactionTiming(window=1)


def text(number: int) -> str:
    return f"step {number} loss 2.{number:04}"


@pytest.fixture
def archive(tmp_path: Path) -> FolderArchive:
    return FolderArchive(tmp_path / "archive")


def compaction(store: SqlStore, archive: FolderArchive | None, now: float = NOW) -> Compaction:
    return Compaction(store.logs, Compressor, lambda: now, Metrics(CollectorRegistry()), archive, ALL)


async def send(store: SqlStore, first: int, last: int, *streams: Stream, key: AttemptKey = KEY) -> None:
    """One commit of lines first..last of each stream, stored as they came."""
    lines = b"".join(text(number).encode() + b"\n" for number in range(first, last + 1))
    read = (await store.logs.cursors([key]))[key]
    blocks = [LineBlock(stream, lines, first, None, NOW) for stream in streams]
    cursors = {}
    for stream in streams:
        before = read.get(stream, Cursor())
        cursors[stream] = (before.version, (*before.covered, (first, last)))
    await store.logs.append([Append(key, pack(blocks), NOW, cursors, False, len(lines) * len(streams))])


def numbers(window: LineWindow) -> list[int]:
    return [line.number for line in window.lines]


async def test_lines_are_shown_before_and_after_they_are_compressed(store: SqlStore, archive: FolderArchive) -> None:
    """The same lines, in order, with their text, whether they are raw still, archived, or partly each."""
    lines = OriginalLines(store, archive)
    await send(store, 1, 50, OUT, OTHER)
    before = await lines.window(KEY, OUT, 11, 40)
    assert numbers(before) == list(range(11, 41))
    assert [line.text for line in before.lines] == [text(number) for number in range(11, 41)]
    assert await compaction(store, archive).step()
    assert await store.logs.raw_pieces(KEY, 1) == []
    assert await lines.window(KEY, OUT, 11, 40) == before
    await send(store, 51, 60, OUT)
    both = await lines.window(KEY, OUT, 41, 100)
    assert (numbers(both), both.last, both.end) == (list(range(41, 61)), 60, 60)
    assert (both.compressed, both.never_sent) == ((), ())


async def test_where_nothing_is_archived_it_is_said(store: SqlStore) -> None:
    """Lines of which only the compressed log is left, and numbers that never came, are told apart."""
    await send(store, 1, 5, OUT)
    await send(store, 9, 12, OUT)
    assert await compaction(store, None).step()
    await send(store, 13, 14, OUT)
    window = await OriginalLines(store).window(KEY, OUT, 2, 99)
    assert numbers(window) == [13, 14]
    assert (window.compressed, window.never_sent) == (((2, 5), (9, 12)), ((6, 8),))
    assert (window.first, window.last, window.end) == (2, 14, 14)


async def test_a_damaged_object_holds_no_lines(store: SqlStore, archive: FolderArchive) -> None:
    """The others do; what it held counts as gone."""
    await send(store, 1, 10, OUT)
    assert await compaction(store, archive).step()
    (stored,) = await listed(archive)
    await archive.put(stored.key, b"changed by somebody")
    await send(store, 11, 12, OUT)
    assert await compaction(store, archive).step()
    window = await OriginalLines(store, archive).window(KEY, OUT, 1, 12)
    assert (numbers(window), window.compressed) == ([11, 12], ((1, 10),))
    await archive.delete([stored.key])
    assert await OriginalLines(store, archive).window(KEY, OUT, 1, 12) == window


async def test_behind_the_end_and_of_a_stream_that_is_not_there(store: SqlStore) -> None:
    """An empty window, which says where the stream ends."""
    await send(store, 1, 5, OUT)
    lines = OriginalLines(store)
    assert (await lines.window(KEY, OUT, 6, 10)).end == 5
    assert (await lines.window(KEY, Stream("no"), 1, 10)).lines == ()


async def test_windows_are_bounded(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By lines and by bytes; the next one begins where the last one ended, so that all lines are met."""
    monkeypatch.setattr(original_lines, "WINDOW_LINES", 20)
    monkeypatch.setattr(original_lines, "WINDOW_BYTES", 150)
    await send(store, 1, 60, OUT)
    met: list[int] = []
    while not met or met[-1] < 60:
        window = await OriginalLines(store).window(KEY, OUT, len(met) + 1, 1 << 40)
        assert 0 < len(window.lines) <= 20 and window.last == window.lines[-1].number
        assert window.compressed == ()
        met += numbers(window)
    assert met == list(range(1, 61))


async def test_a_line_longer_than_can_be_shown_is_cut(store: SqlStore) -> None:
    """And says by how much."""
    block = LineBlock(OUT, b"x" * (LINE_BYTES + 10) + b"\nnext\n", 1, (NOW, float("nan")), NOW + 1)
    await store.logs.append([Append(KEY, pack([block]), NOW, {OUT: (0, ((1, 2),))}, False, len(block.data))])
    first, second = (await OriginalLines(store).window(KEY, OUT, 1, 2)).lines
    assert (len(first.text), first.cut, first.time, first.received) == (LINE_BYTES, 10, NOW, NOW + 1)
    assert (second.text, second.cut, second.time) == ("next", 0, None)


async def test_many_streams_share_segments(store: SqlStore, archive: FolderArchive) -> None:
    """A job of many ranks costs a row a quarter of a megabyte, not a row a rank, and each rank's lines are found."""
    streams = [Stream("stdout", f"gpu-{rank // 8:03}", rank) for rank in range(200)]
    streams.append(Stream("stdout", "gpu-000", 0, Provenance.NODE))
    for part in range(4):
        await send(store, 10 * part + 1, 10 * part + 10, *streams)
        assert await compaction(store, archive).step()
    lines = OriginalLines(store, archive)
    for stream in (streams[0], streams[77], streams[-1]):
        window = await lines.window(KEY, stream, 5, 34)
        assert [line.text for line in window.lines] == [text(number) for number in range(5, 35)]
    of_rank = await store.archive.archived_segments(KEY, stream_order(streams[0]), 12, 13)
    assert len(of_rank) == 1


class Faulty(FolderArchive):
    """Fails as often as it is told: before an object is there, or after."""

    def __init__(self, folder: Path, chance: Random) -> None:
        super().__init__(folder)
        self.chance = chance
        self.put_keys: list[str] = []

    async def put(self, key: str, data: bytes) -> None:
        fate = self.chance.random()
        if fate < 0.3:
            raise Unavailable("the archive is away")
        await super().put(key, data)
        self.put_keys.append(key)
        if fate < 0.6:
            raise Unavailable("the answer got lost")


@pytest.mark.parametrize("seed", range(8 if THOROUGH else 2))
async def test_an_archive_that_fails_now_and_then_loses_no_line(store: SqlStore, tmp_path: Path, seed: int) -> None:
    """Raw pieces stay until their lines are archived; each line is shown once, and no two objects hold it for us."""
    chance = Random(seed)
    faulty, now, sent = Faulty(tmp_path / "faulty", chance), NOW, 0
    lines = OriginalLines(store, faulty)
    for _ in range(12):
        count = chance.randint(1, 9)
        await send(store, sent + 1, sent + count, OUT)
        sent += count
        now += 1000.0  # claims of failed tries have ended
        with suppress(Unavailable):
            await compaction(store, faulty, now).step()
        window = await lines.window(KEY, OUT, 1, sent)
        assert [line.text for line in window.lines] == [text(number) for number in range(1, sent + 1)]
        assert window.compressed == ()
    order = stream_order(OUT)
    ranges = sorted(segment.lines for segment in await store.archive.archived_segments(KEY, order, 1, sent))
    assert all(one[1] < other[0] for one, other in pairwise(ranges))


async def test_a_compaction_that_lost_the_race_adds_no_lines(
    store: SqlStore, second: SqlStore, archive: FolderArchive
) -> None:
    """Two replicas put the same object; one of them tells the store of it."""
    await send(store, 1, 20, OUT)
    pieces = await store.logs.raw_pieces(KEY, 1 << 20)
    won = []
    for replica in (store, second):
        placed = await compaction(replica, archive)._put(archive, KEY, [piece.data for piece in pieces])
        won.append(await replica.logs.compact(KEY, b"merged", pieces, placed, NOW))
    assert won == [True, False]
    assert len(await archive.objects("", 10)) == 1
    assert len(await store.archive.archived_segments(KEY, stream_order(OUT), 1, 20)) == 1


async def emptied(retention: Retention) -> None:
    while await retention.drop():
        pass


async def listed(archive: FolderArchive) -> list[ArchivedObject]:
    return await archive.objects("", 100)


@pytest.mark.parametrize("ages", [RetentionAges(archive_days=10), RetentionAges(archived_bytes=1)])
async def test_archived_lines_go_by_age_and_by_size(
    store: SqlStore, archive: FolderArchive, ages: RetentionAges
) -> None:
    """The window says that they are gone, and their objects go with the next sweep; what came lately stays."""
    await send(store, 1, 10, OUT)
    assert await compaction(store, archive).step()
    (stored,) = await listed(archive)
    now = [stored.changed + 20 * DAY]
    retention = Retention(store, lambda: now[0], ages, Metrics(CollectorRegistry()), archive)
    await send(store, 11, 20, OUT)
    assert await compaction(store, archive, now[0] - DAY).step()
    await emptied(retention)
    window = await OriginalLines(store, archive).window(KEY, OUT, 1, 20)
    assert (numbers(window), window.compressed) == (list(range(11, 21)), ((1, 10),))
    assert [found.key for found in await listed(archive)] != [stored.key]
    assert await store.archive.archived_bytes() > 0


async def test_objects_that_nobody_knows_are_swept(store: SqlStore, archive: FolderArchive) -> None:
    """Those of a dropped attempt and of a crash; not one that a compaction may be about to name."""
    await send(store, 1, 10, OUT)
    assert await compaction(store, archive).step()
    await archive.put("llama-70b/1/20260101-0.zst", b"left behind")
    (known,) = [found for found in await listed(archive) if "20260101" not in found.key]
    now = [known.changed + SWEPT_AFTER - 60.0]
    retention = Retention(store, lambda: now[0], RetentionAges(), Metrics(CollectorRegistry()), archive)
    await emptied(retention)
    assert len(await listed(archive)) == 2
    now[0] += DAY
    await emptied(retention)
    assert [found.key for found in await listed(archive)] == [known.key]
    await store.retention.drop_attempts(NOW + 1.0, 10)
    now[0] += DAY
    await emptied(retention)
    assert await listed(archive) == []
