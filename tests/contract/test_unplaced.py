"""Contract of the store of streams that belong to no job."""

from dataclasses import replace

import pytest

from diagnoser.adapters.sql import unplaced
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import UnplacedReason, UnplacedStream

WEB = UnplacedStream(
    labels=(("app", "web"), ("namespace", "shop")),
    reason=UnplacedReason.NO_JOB,
    detail="no job: none of app, namespace names one",
    protocol="loki",
    sample="GET /cart 200",
    lines=3,
    sender="alloy",
    cluster="east",
    received=1000.0,
)


async def test_lines_of_the_same_labels_are_one_row(store: SqlStore, second: SqlStore) -> None:
    """Counts add up over replicas; first and last arrival and the newest sample are kept."""
    await store.unplaced.record_unplaced([WEB])
    await second.unplaced.record_unplaced([replace(WEB, lines=4, received=1010.0, sample="GET /pay 200")])
    await store.unplaced.record_unplaced([replace(WEB, lines=1, received=995.0, sample="late")])
    (record,) = await store.unplaced.page(1020.0, 10)
    assert record.stream == replace(WEB, lines=8, received=1010.0, sample="GET /pay 200")
    assert record.first_seen == 995.0
    assert await store.unplaced.count(1020.0) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"labels": (("app", "web"),)},
        {"reason": UnplacedReason.NOT_A_JOB_ID},
        {"protocol": "otlp"},
        {"sender": "vector"},
        {"cluster": "west"},
    ],
)
async def test_what_differs_for_who_mends_it_is_another_row(store: SqlStore, other: dict[str, object]) -> None:
    """Labels, reason, protocol, sender and cluster tell streams apart; the newest comes first."""
    twin = replace(WEB, received=1001.0, **other)  # type: ignore[arg-type]
    await store.unplaced.record_unplaced([WEB, twin])
    assert [record.stream for record in await store.unplaced.page(1020.0, 10)] == [twin, WEB]
    assert [record.stream for record in await store.unplaced.page(1020.0, 1)] == [twin]


async def test_a_commit_may_name_a_stream_twice(store: SqlStore) -> None:
    """Both counts are added."""
    await store.unplaced.record_unplaced([WEB, WEB])
    assert [record.stream.lines for record in await store.unplaced.page(1020.0, 10)] == [6]


async def test_a_sender_whose_labels_never_repeat_fills_no_table(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest streams of each sender stay; those of the others are not touched."""
    monkeypatch.setattr(unplaced, "STREAMS_OF_A_SENDER", 5)
    other = replace(WEB, sender="vector", received=900.0)
    await store.unplaced.record_unplaced([other])
    for start in (0, 4):
        await store.unplaced.record_unplaced(
            [replace(WEB, labels=(("request", str(n)),), received=1000.0 + n) for n in range(start, start + 8)]
        )
    kept = [record.stream for record in await store.unplaced.page(1020.0, 100)]
    assert [stream.labels[0][1] for stream in kept[:-1]] == ["11", "10", "9", "8", "7"]
    assert kept[-1] == other


async def test_what_is_mended_goes_by_itself(store: SqlStore) -> None:
    """A stream without lines for a week is neither shown nor counted, and the next write removes it."""
    later = 1000.0 + unplaced.KEPT_SECONDS + 1
    await store.unplaced.record_unplaced([WEB])
    assert await store.unplaced.page(later, 10) == []
    assert await store.unplaced.count(later) == 0
    await store.unplaced.record_unplaced([replace(WEB, sender="vector", received=later)])
    assert [record.stream.sender for record in await store.unplaced.page(1020.0, 10)] == ["vector"]


async def test_nothing_to_record_is_nothing(store: SqlStore) -> None:
    """An empty write neither fails nor stores."""
    await store.unplaced.record_unplaced([])
    assert await store.unplaced.page(1020.0, 10) == []


async def test_any_text_can_be_shown(store: SqlStore) -> None:
    """What a database cannot hold, such as NUL or half a surrogate pair, does not lose the row."""
    await store.unplaced.record_unplaced([replace(WEB, labels=(("a\0", "\ud800"),), sample="\0", detail="'\0'")])
    (record,) = await store.unplaced.page(1020.0, 10)
    assert record.stream.labels == (("a\ufffd", "?"),)
    assert record.stream.sample == "\ufffd"
