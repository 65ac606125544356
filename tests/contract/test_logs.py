"""Contract of the log store."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import AttemptKey, Stream
from diagnoser.model.errors import BadInput, Conflict
from diagnoser.model.logs import Append, CompactionClaim, CompactionTiming, Cursor
from tests.contract.records import KEY, OUT, append

OTHER = AttemptKey("vision-3b", 2)


async def cursor(store: SqlStore, key: AttemptKey = KEY, stream: Stream = OUT) -> Cursor:
    return (await store.logs.cursors([key]))[key][stream]


async def data(store: SqlStore, key: AttemptKey = KEY) -> list[bytes]:
    return [delta.data for delta in await store.logs.pieces(key)]


async def test_an_unknown_attempt_has_no_cursors(store: SqlStore) -> None:
    """Asking for an attempt that nobody wrote to gives an empty answer, not an error."""
    assert await store.logs.cursors([KEY]) == {KEY: {}}
    assert await store.logs.pieces(KEY) == []
    assert await store.logs.current_attempt(KEY.job) == 1


async def test_an_append_is_there_for_every_replica(store: SqlStore, second: SqlStore) -> None:
    """What one replica committed, another one reads: delta, cursor, job and attempt."""
    await store.logs.append([append(at=100.0, delta=b"one")])
    assert await data(second) == [b"one"]
    assert await cursor(second) == Cursor(((1, 10),), 1)
    job = await second.jobs.find(KEY.job)
    assert job is not None and job.created == 100.0
    (attempt,) = await second.jobs.attempts(KEY.job)
    assert (attempt.opened, attempt.last_line, attempt.revision, attempt.fatal) == (100.0, 100.0, 1, None)


async def test_a_run_falls_silent_by_the_clock_as_it_is_now(store: SqlStore) -> None:
    """After the database's clock was set back by six hours no hang was looked for in as many; what is stored in another
    order than it came moves nothing."""
    await store.logs.append([append(at=30_000.0)])
    await store.logs.append([append(OTHER, at=30_000.0)])
    await store.logs.append([append(at=8_400.0, read=await cursor(store))])
    await store.logs.append([append(OTHER, at=29_990.0, read=await cursor(store, OTHER))])
    silent = await store.work.claim_silent(8_500.0, 60.0, 6.0, 10)
    assert [claim.attempt.key for claim in silent] == [KEY]


async def test_a_stale_cursor_is_refused_and_nothing_of_the_commit_stays(store: SqlStore) -> None:
    """One moved cursor fails the whole commit: the attempts beside it are not half counted."""
    await store.logs.append([append(delta=b"first")])
    with pytest.raises(Conflict):
        await store.logs.append([append(OTHER, delta=b"other"), append(delta=b"again")])
    assert await data(store) == [b"first"]
    assert await data(store, OTHER) == []
    assert (await store.logs.stored_size(KEY), await store.logs.stored_size(OTHER)) == (5, 0)
    assert await store.jobs.find(OTHER.job) is None
    assert (await store.jobs.attempts(KEY.job))[0].revision == 1


async def test_of_two_appends_from_one_reading_one_wins(store: SqlStore, second: SqlStore) -> None:
    """Replicas that race on one stream commit its lines once."""
    tries = [one.logs.append([append(delta=name)]) for one, name in ((store, b"a"), (second, b"b"))]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "NoneType"]
    assert len(await data(store)) == 1


async def test_streams_of_one_attempt_have_their_own_cursors(store: SqlStore) -> None:
    """Appends to different streams do not disturb each other, whoever reads first."""
    err = Stream("stderr", "gpu-004", 3)
    await store.logs.append([append()])
    await store.logs.append([append(stream=err, lines=4)])
    assert await cursor(store) == Cursor(((1, 10),), 1)
    assert await cursor(store, stream=err) == Cursor(((1, 4),), 1)


async def test_covered_ranges_come_back_as_they_were_given(store: SqlStore) -> None:
    """A hole in a stream stays a hole."""
    holes = ((1, 5), (9, 12), (40, 40))
    await store.logs.append([Append(KEY, b"d", 100.0, {OUT: (0, holes)}, False)])
    assert await cursor(store) == Cursor(holes, 1)


async def test_a_commit_names_a_stream_once(store: SqlStore) -> None:
    """A second append to it has not read what the first one leaves: all of the commit is refused."""
    with pytest.raises(Conflict):
        await store.logs.append([append(delta=b"one"), append(read=Cursor(((1, 10),), 1), delta=b"two")])
    assert await data(store) == []


async def test_only_the_cursors_asked_for_are_read(store: SqlStore) -> None:
    """Of an attempt with many streams those that a commit touches; what nobody wrote to is not among them."""
    err, other = Stream("stderr", "gpu-004", 3), Stream("stdout", "gpu-005", 4)
    await store.logs.append([append()])
    await store.logs.append([append(stream=err, lines=4)])
    await store.logs.append([append(OTHER)])
    asked = {KEY: [err, other], OTHER: [OUT, err]}
    assert await store.logs.stream_cursors(asked) == {
        KEY: {err: Cursor(((1, 4),), 1)},
        OTHER: {OUT: Cursor(((1, 10),), 1)},
    }


async def test_the_current_attempts_of_many_jobs_are_read_at_once(store: SqlStore) -> None:
    """The highest number of each; 1 for a job that nobody heard of."""
    await store.logs.append([append(AttemptKey("a", 3)), append(AttemptKey("a", 2)), append(AttemptKey("b", 7))])
    assert await store.logs.current_attempts(["a", "b", "c"]) == {"a": 3, "b": 7, "c": 1}


async def test_an_empty_commit_is_nothing(store: SqlStore) -> None:
    """A commit without appends neither fails nor stores."""
    await store.logs.append([])
    assert await store.jobs.attempts(KEY.job) == []


@pytest.mark.own_database  # so many rows are not deleted for the next test
async def test_a_commit_may_hold_more_attempts_than_a_statement_has_values(store: SqlStore) -> None:
    """A flood of job names is stored; database limits on statement size do not show."""
    keys = [AttemptKey(f"job-{number}") for number in range(17_000)]
    await store.logs.append([append(key) for key in keys])
    assert all((await store.logs.cursors(keys)).values())


async def test_a_value_that_cannot_be_stored_is_bad_input(store: SqlStore) -> None:
    """An attempt number beyond 64 bits is the caller's fault, not a reason to try again."""
    with pytest.raises(BadInput):
        await store.logs.append([append(AttemptKey("llama-70b", 2**70))])


async def test_the_current_attempt_is_the_highest(store: SqlStore) -> None:
    """Attempts may be heard of in any order."""
    await store.logs.append([append(AttemptKey("llama-70b", 3)), append(AttemptKey("llama-70b", 2))])
    assert await store.logs.current_attempt("llama-70b") == 3


async def test_compaction_puts_one_delta_in_the_place_of_many(store: SqlStore) -> None:
    """After a compaction the log is the merged delta and whatever came meanwhile."""
    await store.logs.append([append(delta=b"one")])
    await store.logs.append([append(read=await cursor(store), delta=b"two")])
    read = await store.logs.pieces(KEY)
    await store.logs.append([append(read=await cursor(store), delta=b"late")])
    assert await store.logs.compact(KEY, b"one+two", read)
    assert sorted(await data(store)) == [b"late", b"one+two"]


async def test_of_two_compactions_of_the_same_deltas_one_wins(store: SqlStore, second: SqlStore) -> None:
    """Nothing is merged twice: the loser changes nothing."""
    await store.logs.append([append(delta=b"one")])
    await store.logs.append([append(read=await cursor(store), delta=b"two")])
    read = await store.logs.pieces(KEY)
    won = await asyncio.gather(store.logs.compact(KEY, b"both", read), second.logs.compact(KEY, b"both", read))
    assert sorted(won) == [False, True]
    assert await data(store) == [b"both"]


async def test_a_compaction_that_lost_one_delta_leaves_the_others(store: SqlStore) -> None:
    """A partly stale compaction is undone as a whole, and ids of gone deltas are never used again."""
    await store.logs.append([append(delta=b"one")])
    (first,) = await store.logs.pieces(KEY)
    assert await store.logs.compact(KEY, b"ONE", [first])
    await store.logs.append([append(read=await cursor(store), delta=b"two")])
    newest = (await store.logs.pieces(KEY))[-1]
    assert not await store.logs.compact(KEY, b"bad", [first, newest])
    assert await data(store) == [b"ONE", b"two"]


async def test_attempts_with_many_pieces_are_claimed_for_compaction(store: SqlStore, second: SqlStore) -> None:
    """The count follows appends and compactions, the fullest comes first, and a claim is one replica's alone."""
    timing = CompactionTiming(crowd=1)
    for _ in range(3):
        await store.logs.append([append(read=(await store.logs.cursors([KEY]))[KEY].get(OUT), delta=b"x")])
    for _ in range(2):
        await store.logs.append([append(OTHER, read=(await store.logs.cursors([OTHER]))[OTHER].get(OUT), delta=b"x")])
    assert await store.logs.claim_compaction(200.0, timing, 260.0) == CompactionClaim(KEY, merges_deltas=True)
    assert await second.logs.claim_compaction(200.0, timing, 260.0) == CompactionClaim(OTHER, merges_deltas=True)
    assert await store.logs.claim_compaction(259.0, timing, 300.0) is None
    assert await store.logs.compact(KEY, b"xxx", await store.logs.pieces(KEY))
    assert await store.logs.claim_compaction(260.0, timing, 300.0) == CompactionClaim(OTHER, merges_deltas=True)
    await store.logs.put_off_compaction(OTHER, 900.0)
    assert await store.logs.claim_compaction(899.0, timing, 999.0) is None


async def raw(store: SqlStore, key: AttemptKey, data: bytes, size: int, at: float = 100.0) -> None:
    read = (await store.logs.cursors([key]))[key].get(OUT)
    await store.logs.append([replace(append(key, read=read, delta=data, at=at), raw=size)])


async def test_raw_pieces_are_claimed_by_the_window_or_when_nothing_follows(store: SqlStore) -> None:
    """A full window of raw text is due at once, less of it when the attempt has been quiet; deltas alone never are."""
    timing = CompactionTiming(window=100, idle=30.0)
    await store.logs.append([append(AttemptKey("compressed"))])
    await raw(store, KEY, b"one", 60)
    assert await store.logs.claim_compaction(129.0, timing, 200.0) is None
    assert await store.logs.claim_compaction(130.0, timing, 140.0) == CompactionClaim(KEY, merges_deltas=False)
    await raw(store, OTHER, b"two", 60, at=135.0)
    await raw(store, OTHER, b"three", 60, at=135.0)
    assert await store.logs.claim_compaction(135.0, timing, 200.0) == CompactionClaim(OTHER, merges_deltas=False)
    assert await store.logs.compact(OTHER, b"delta", await store.logs.raw_pieces(OTHER, 1000))
    assert await store.logs.claim_compaction(139.0, timing, 200.0) is None


async def test_raw_pieces_are_read_oldest_first_up_to_a_size(store: SqlStore) -> None:
    """At least one, however large; what was compressed is not among them, and the text left is counted."""
    await store.logs.append([append(delta=b"compressed")])
    for number in range(3):
        await raw(store, KEY, b"raw %d" % number, 40)
    assert [piece.data for piece in await store.logs.raw_pieces(KEY, 100)] == [b"raw 0", b"raw 1"]
    first = await store.logs.raw_pieces(KEY, 1)
    assert [(piece.data, piece.raw) for piece in first] == [(b"raw 0", 40)]
    assert await store.logs.compact(KEY, b"merged", first)
    assert await data(store) == [b"compressed", b"raw 1", b"raw 2", b"merged"]
    assert await store.logs.claim_compaction(100.0, CompactionTiming(window=81), 200.0) is None
    assert await store.logs.claim_compaction(100.0, CompactionTiming(window=80), 200.0) == CompactionClaim(
        KEY, merges_deltas=False
    )


async def test_a_change_by_anybody_can_be_told_cheaply(store: SqlStore, second: SqlStore) -> None:
    """Where the database has a mark: it is another after a write by this replica or by another one, and only then."""
    before = await store.db.change_mark()
    if before is None:
        return  # PostgreSQL
    await store.logs.cursors([KEY])
    assert await store.db.change_mark() == before
    for writer in (store, second):
        await writer.logs.append([append(stream=Stream(str(id(writer))))])
        after = await store.db.change_mark()
        assert after != before
        before = after


async def test_jobs_whose_raw_lines_pile_up_are_known(store: SqlStore) -> None:
    """Until enough of them are compressed."""
    await raw(store, KEY, b"raw", 60)
    await raw(store, KEY, b"more", 60)
    await raw(store, OTHER, b"raw", 100)
    assert await store.logs.jobs_with_raw(100) == [KEY.job]
    assert await store.logs.compact(KEY, b"merged", await store.logs.raw_pieces(KEY, 1))
    assert await store.logs.jobs_with_raw(100) == []


async def test_an_attempt_has_a_bound_on_its_streams(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that makes up ranks or sources is refused with all of its commit; its old streams go on."""
    monkeypatch.setattr("diagnoser.adapters.sql.logs.STREAMS_LIMIT", 2)
    await store.logs.append([append(stream=Stream("stdout", rank=0)), append(OTHER)])
    await store.logs.append([append(stream=Stream("stdout", rank=1))])
    with pytest.raises(BadInput, match="streams"):
        await store.logs.append(
            [append(OTHER, stream=Stream("stdout", rank=7)), append(stream=Stream("stdout", rank=2))]
        )
    assert len((await store.logs.cursors([OTHER]))[OTHER]) == 1
    first = Stream("stdout", rank=0)
    await store.logs.append([append(stream=first, read=await cursor(store, stream=first))])
