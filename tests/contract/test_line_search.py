"""A search among all lines of an attempt as they came: raw, archived, or partly each."""

from pathlib import Path

import pytest

from diagnoser.adapters.folder_archive import FolderArchive
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis import line_search
from diagnoser.diagnosis.line_search import LineSearch, SearchAnswer, StreamFilter
from diagnoser.logview.log_index import LogSearch
from diagnoser.model.errors import BadInput, NotFound
from tests.contract.records import KEY, OUT
from tests.contract.test_original_lines import OTHER, compaction, listed, send


@pytest.fixture
def archive(tmp_path: Path) -> FolderArchive:
    return FolderArchive(tmp_path / "archive")


def places(answer: SearchAnswer) -> list[tuple[int, int]]:
    """(rank, number) of the lines that were found."""
    return [(match.stream.rank, match.line.number) for match in answer.lines]


async def test_raw_and_archived_lines_are_searched_alike(store: SqlStore, archive: FolderArchive) -> None:
    """The newest line comes first, with the place of the match, whether it is archived or not."""
    search = LineSearch(store, archive)
    await send(store, 1, 50, OUT, OTHER)
    before = await search.answer(KEY, LogSearch("LOSS 2.0041"))
    assert await compaction(store, archive).step()
    await send(store, 51, 60, OUT)
    after = await search.answer(KEY, LogSearch("loss 2.0041"))
    assert sorted(places(before)) == sorted(places(after)) == [(3, 41), (7, 41)]
    assert {match.line.text[slice(*match.hits[0])] for match in after.lines} == {"loss 2.0041"}
    assert (before.searched, after.searched, after.place) == (100, 110, "")
    of_rank = await search.answer(KEY, LogSearch("^step [45]$|step 55", is_regex=True), StreamFilter(rank=3))
    assert (places(of_rank), of_rank.searched) == ([(3, 55)], 60)


async def test_a_long_search_goes_on_where_it_ended(
    store: SqlStore, archive: FolderArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers in a row find each line once, though the lines are archived between two of them."""
    monkeypatch.setattr(line_search, "ANSWER_BYTES", 1)
    monkeypatch.setattr(line_search, "_PIECES_BYTES", 1)
    search = LineSearch(store, archive)
    await send(store, 1, 10, OUT)
    assert await compaction(store, archive).step()
    for first in (11, 21):
        await send(store, first, first + 9, OUT)
    answer = await search.answer(KEY, LogSearch("step"))
    met, answers = set(places(answer)), 1
    assert await compaction(store, archive).step()
    while answer.place:
        answer, answers = await search.answer(KEY, LogSearch("step"), place=answer.place), answers + 1
        met.update(places(answer))
    assert met == {(3, number) for number in range(1, 31)}
    assert answers > 1


async def test_what_is_left_out_is_counted(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches that an answer has no room for, and lines of which only the compressed log is left."""
    monkeypatch.setattr(line_search, "ANSWER_LINES", 3)
    await send(store, 1, 5, OUT)
    assert await compaction(store, None).step()
    await send(store, 6, 14, OUT)
    search = LineSearch(store)
    monkeypatch.setattr(line_search, "WINDOW_BYTES", 20)
    assert len((await search.answer(KEY, LogSearch("step"))).lines) == 2
    monkeypatch.undo()
    monkeypatch.setattr(line_search, "ANSWER_LINES", 3)
    answer = await search.answer(KEY, LogSearch("step"))
    assert (len(answer.lines), answer.matches, answer.searched) == (3, 9, 9)
    assert await search.total(KEY) == 14
    with pytest.raises(NotFound, match="no such stream"):
        await search.total(KEY, StreamFilter(rank=99))


async def test_what_a_filter_leaves_out_is_work_too(
    store: SqlStore, archive: FolderArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer ends after so many bytes that it read, though no stream of them is searched or no object is there."""
    monkeypatch.setattr(line_search, "ANSWER_BYTES", 1)
    monkeypatch.setattr(line_search, "_READ_AT_ONCE", 1)
    for first in (1, 11):
        await send(store, first, first + 9, OUT)
        assert await compaction(store, archive).step()
    search = LineSearch(store, archive)
    assert (await search.answer(KEY, LogSearch("step"), StreamFilter(rank=99))).place == "archive:1"
    await archive.delete([stored.key for stored in await listed(archive)])
    assert (await search.answer(KEY, LogSearch("step"))).place == "archive:1"


async def test_a_damaged_object_does_not_end_the_search(store: SqlStore, archive: FolderArchive) -> None:
    """Its lines are not found; those of the others are."""
    await send(store, 1, 10, OUT)
    assert await compaction(store, archive).step()
    (stored,) = await listed(archive)
    await archive.put(stored.key, b"changed by somebody")
    await send(store, 11, 12, OUT)
    answer = await LineSearch(store, archive).answer(KEY, LogSearch("step"))
    assert (places(answer), answer.searched) == ([(3, 12), (3, 11)], 2)


@pytest.mark.parametrize("place", ["raw", "raw:-1", "archive:x", "archive:" + "9" * 40, "disk:1"])
async def test_a_place_that_no_answer_named_is_refused(store: SqlStore, place: str) -> None:
    """What comes back from a client may be anything."""
    with pytest.raises(BadInput, match="no place of a search"):
        await LineSearch(store).answer(KEY, LogSearch("step"), place=place)


@pytest.mark.parametrize("pattern", ["", "x*", "$", "^", "(a*)*b", "\\n", "(?s)."])
async def test_a_pattern_that_matches_nothing_visible_ends(store: SqlStore, pattern: str) -> None:
    """Empty matches and line ends are no trap: each line is met at most once."""
    await send(store, 1, 5, OUT)
    answer = await LineSearch(store).answer(KEY, LogSearch(pattern, is_regex=True))
    assert len(places(answer)) == len(set(places(answer))) <= 5
