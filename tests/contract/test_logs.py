"""Contract of the log store."""

import asyncio

import pytest

from diagnoser.model import AttemptKey, Stream
from diagnoser.model.errors import BadInput, Conflict
from diagnoser.ports import Append, Cursor, Store
from tests.contract.records import KEY, OUT, append

OTHER = AttemptKey("vision-3b", 2)


async def cursor(store: Store, key: AttemptKey = KEY, stream: Stream = OUT) -> Cursor:
    return (await store.cursors([key]))[key][stream]


async def data(store: Store, key: AttemptKey = KEY) -> list[bytes]:
    return [delta.data for delta in await store.deltas(key)]


async def test_an_unknown_attempt_has_no_cursors(store: Store) -> None:
    """Asking for an attempt that nobody wrote to gives an empty answer, not an error."""
    assert await store.cursors([KEY]) == {KEY: {}}
    assert await store.deltas(KEY) == []
    assert await store.current_attempt(KEY.job) == 1


async def test_an_append_is_there_for_every_replica(store: Store, second: Store) -> None:
    """What one replica committed, another one reads: delta, cursor, job and attempt."""
    await store.append([append(at=100.0, delta=b"one")])
    assert await data(second) == [b"one"]
    assert await cursor(second) == Cursor(((1, 10),), 1)
    job = await second.job(KEY.job)
    assert job is not None and job.created == 100.0
    (attempt,) = await second.attempts(KEY.job)
    assert (attempt.opened, attempt.last_line, attempt.revision, attempt.fatal) == (100.0, 100.0, 1, None)


async def test_a_stale_cursor_is_refused_and_nothing_of_the_commit_stays(store: Store) -> None:
    """One moved cursor fails the whole commit: the attempts beside it are not half counted."""
    await store.append([append(delta=b"first")])
    with pytest.raises(Conflict):
        await store.append([append(OTHER, delta=b"other"), append(delta=b"again")])
    assert await data(store) == [b"first"]
    assert await data(store, OTHER) == []
    assert await store.job(OTHER.job) is None
    assert (await store.attempts(KEY.job))[0].revision == 1


async def test_of_two_appends_from_one_reading_one_wins(store: Store, second: Store) -> None:
    """Replicas that race on one stream commit its lines once."""
    tries = [one.append([append(delta=name)]) for one, name in ((store, b"a"), (second, b"b"))]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "NoneType"]
    assert len(await data(store)) == 1


async def test_streams_of_one_attempt_have_their_own_cursors(store: Store) -> None:
    """Appends to different streams do not disturb each other, whoever reads first."""
    err = Stream("stderr", "gpu-004", 3)
    await store.append([append()])
    await store.append([append(stream=err, lines=4)])
    assert await cursor(store) == Cursor(((1, 10),), 1)
    assert await cursor(store, stream=err) == Cursor(((1, 4),), 1)


async def test_covered_ranges_come_back_as_they_were_given(store: Store) -> None:
    """A hole in a stream stays a hole."""
    holes = ((1, 5), (9, 12), (40, 40))
    await store.append([Append(KEY, b"d", 100.0, {OUT: (0, holes)}, False)])
    assert await cursor(store) == Cursor(holes, 1)


async def test_a_commit_names_a_stream_once(store: Store) -> None:
    """A second append to it has not read what the first one leaves: all of the commit is refused."""
    with pytest.raises(Conflict):
        await store.append([append(delta=b"one"), append(read=Cursor(((1, 10),), 1), delta=b"two")])
    assert await data(store) == []


async def test_only_the_cursors_asked_for_are_read(store: Store) -> None:
    """Of an attempt with many streams those that a commit touches; what nobody wrote to is not among them."""
    err, other = Stream("stderr", "gpu-004", 3), Stream("stdout", "gpu-005", 4)
    await store.append([append()])
    await store.append([append(stream=err, lines=4)])
    await store.append([append(OTHER)])
    asked = {KEY: [err, other], OTHER: [OUT, err]}
    assert await store.stream_cursors(asked) == {
        KEY: {err: Cursor(((1, 4),), 1)},
        OTHER: {OUT: Cursor(((1, 10),), 1)},
    }


async def test_the_current_attempts_of_many_jobs_are_read_at_once(store: Store) -> None:
    """The highest number of each; 1 for a job that nobody heard of."""
    await store.append([append(AttemptKey("a", 3)), append(AttemptKey("a", 2)), append(AttemptKey("b", 7))])
    assert await store.current_attempts(["a", "b", "c"]) == {"a": 3, "b": 7, "c": 1}


async def test_an_empty_commit_is_nothing(store: Store) -> None:
    """A commit without appends neither fails nor stores."""
    await store.append([])
    assert await store.attempts(KEY.job) == []


async def test_a_commit_may_hold_more_attempts_than_a_statement_has_values(store: Store) -> None:
    """A flood of job names is stored; database limits on statement size do not show."""
    keys = [AttemptKey(f"job-{number}") for number in range(17_000)]
    await store.append([append(key) for key in keys])
    assert all((await store.cursors(keys)).values())


async def test_a_value_that_cannot_be_stored_is_bad_input(store: Store) -> None:
    """An attempt number beyond 64 bits is the caller's fault, not a reason to try again."""
    with pytest.raises(BadInput):
        await store.append([append(AttemptKey("llama-70b", 2**70))])


async def test_the_current_attempt_is_the_highest(store: Store) -> None:
    """Attempts may be heard of in any order."""
    await store.append([append(AttemptKey("llama-70b", 3)), append(AttemptKey("llama-70b", 2))])
    assert await store.current_attempt("llama-70b") == 3


async def test_compaction_puts_one_delta_in_the_place_of_many(store: Store) -> None:
    """After a compaction the log is the merged delta and whatever came meanwhile."""
    await store.append([append(delta=b"one")])
    await store.append([append(read=await cursor(store), delta=b"two")])
    read = [delta.id for delta in await store.deltas(KEY)]
    await store.append([append(read=await cursor(store), delta=b"late")])
    assert await store.compact(KEY, b"one+two", read)
    assert sorted(await data(store)) == [b"late", b"one+two"]


async def test_of_two_compactions_of_the_same_deltas_one_wins(store: Store, second: Store) -> None:
    """Nothing is merged twice: the loser changes nothing."""
    await store.append([append(delta=b"one")])
    await store.append([append(read=await cursor(store), delta=b"two")])
    read = [delta.id for delta in await store.deltas(KEY)]
    won = await asyncio.gather(store.compact(KEY, b"both", read), second.compact(KEY, b"both", read))
    assert sorted(won) == [False, True]
    assert await data(store) == [b"both"]


async def test_a_compaction_that_lost_one_delta_leaves_the_others(store: Store) -> None:
    """A partly stale compaction is undone as a whole, and ids of gone deltas are never used again."""
    await store.append([append(delta=b"one")])
    (first,) = [delta.id for delta in await store.deltas(KEY)]
    assert await store.compact(KEY, b"ONE", [first])
    await store.append([append(read=await cursor(store), delta=b"two")])
    newest = (await store.deltas(KEY))[-1].id
    assert not await store.compact(KEY, b"bad", [first, newest])
    assert await data(store) == [b"ONE", b"two"]


async def test_crowded_attempts_are_those_with_many_deltas(store: Store) -> None:
    """The count follows appends and compactions, and the fullest comes first."""
    for _ in range(3):
        await store.append([append(read=(await store.cursors([KEY]))[KEY].get(OUT), delta=b"x")])
    for _ in range(2):
        await store.append([append(OTHER, read=(await store.cursors([OTHER]))[OTHER].get(OUT), delta=b"x")])
    assert await store.crowded(1, 10) == [KEY, OTHER]
    assert await store.crowded(1, 1) == [KEY]
    await store.compact(KEY, b"xxx", [delta.id for delta in await store.deltas(KEY)])
    assert await store.crowded(1, 10) == [OTHER]
