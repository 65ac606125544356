"""Lines of a log store are read by their time: all of them, once, from where the last reader was."""

import random
from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest

from diagnoser.adapters.line_sources import SOURCES, tail
from diagnoser.adapters.line_sources.store_client import StoreClient
from diagnoser.adapters.line_sources.tail import SECOND, LineTail
from diagnoser.model.errors import BadInput, TooLarge, Unavailable
from diagnoser.model.logs import Partition
from diagnoser.ports import SourceLine

PLACE = Partition("http://store", "group", "query", 0)
NOW = 1_790_000_000

LOKI = b"""{"status": "success", "data": {"resultType": "streams", "result": [
{"stream": {"filename": "/log", "job": "varlogs"},
 "values": [["1569266497240578000", "foo"], ["1569266497240578001", "a \\u20ac"]]},
{"stream": {"job": "other"}, "values": [["1569266492548155000", "bar", {"trace": "7"}]]}], "stats": {}}}"""
VICTORIALOGS = b"""\
{"_msg":"foo","_stream":"{job=\\"varlogs\\"}","_time":"2019-09-23T19:21:37.240578Z","filename":"/log","job":"varlogs"}
{"_msg":"a \\u20ac","_time":"2019-09-23T19:21:37.240578001Z","filename":"/log","job":"varlogs"}
{"_msg":"bar","_stream_id":"0","_time":"2019-09-23T19:21:32.548155Z","job":"other"}
"""


class Answer:
    """A store that gives one answer to all questions."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def get(self, path: str, parameters: dict[str, str | int]) -> bytes:
        return self._body


def asked(name: str, body: bytes) -> "list[SourceLine]":
    reading: Any = SOURCES[name](cast(StoreClient, Answer(body)), "query", 0, 1, 10)
    with pytest.raises(StopIteration) as end:
        reading.send(None)
    return cast("list[SourceLine]", end.value.value)


@pytest.mark.parametrize(("name", "body"), [("loki", LOKI), ("victorialogs", VICTORIALOGS)])
def test_a_documented_answer_is_read(name: str, body: bytes) -> None:
    """Times to the nanosecond, text as it is, and what the store knows of a line as its labels."""
    file = ("filename", b"/log"), ("job", b"varlogs")
    assert asked(name, body) == [
        SourceLine(1569266497240578000, b"foo", file),
        SourceLine(1569266497240578001, "a \N{EURO SIGN}".encode(), file),
        SourceLine(1569266492548155000, b"bar", (("job", b"other"),)),
    ]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b'{"data": []}', b'{"data": {"resultType": "streams", "result": [7]}}']
)
def test_what_is_no_answer_is_asked_for_again(name: str, body: bytes) -> None:
    """A proxy may answer in the store's place for a while."""
    with pytest.raises(Unavailable):
        asked(name, body)


def test_a_query_that_counts_lines_is_refused() -> None:
    """A person must write another one."""
    with pytest.raises(BadInput, match="selects no lines"):
        asked("loki", b'{"data": {"resultType": "matrix", "result": []}}')


class Store:
    """Answers with any of the lines, where it may not give all. away: share of the questions that it does not answer.
    most: bytes beyond which an answer is too large."""

    def __init__(self, lines: list[SourceLine], seed: int = 0, away: float = 0.0, most: int = 10_000) -> None:
        self._lines = lines
        self._dice = random.Random(seed)
        self._away = away
        self._most = most

    async def read(self, query: str, start: int, end: int, limit: int) -> list[SourceLine]:
        if self._dice.random() < self._away:
            raise Unavailable("away")
        inside = [line for line in self._lines if start <= line.nanoseconds < end]
        if sum(len(line.text) for line in inside) > self._most:
            raise TooLarge("too many bytes")
        return self._dice.sample(inside, min(limit, len(inside)))

    async def close(self) -> None:
        pass


def tail_of(store: Store, since: float = 100.0, delay: float = 0.0) -> LineTail:
    return LineTail(cast(Any, store), cast(Any, Store.read), PLACE, lambda: NOW, since=since, delay=delay)


async def _nothing_stored(partitions: Collection[Partition]) -> Mapping[Partition, int]:
    return {}


@pytest.mark.parametrize("seed", range(20))
async def test_each_line_is_read_once_whatever_ends(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts, lines of one time, long ones, a store that is away, and readers that die between any two commits."""
    monkeypatch.setattr(tail, "LINES", 20)
    monkeypatch.setattr(tail, "PAUSE_SECONDS", 0.0)
    dice = random.Random(seed)
    begin = (NOW - 600) * SECOND
    burst = dice.sample(range(begin, begin + 500), 30)
    moments = burst + [begin + dice.randrange(500 * SECOND) for _ in range(30)]
    times = [moment for moment in moments for _ in range(dice.choice((1, 1, 5)))]
    lines = [SourceLine(time, b"%d" % number * dice.choice((1, 500)), ()) for number, time in enumerate(times)]
    offsets = dict[Partition, int]()
    read = list[bytes]()

    async def stored(partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return offsets

    while offsets.get(PLACE, 0) <= max(times):
        reader = tail_of(Store(lines, seed, away=0.1), since=600.0)
        await reader.subscribe(stored)
        for _ in range(200):
            messages = await reader.receive(1 << 20, 0.0)
            if dice.random() < 0.02:
                break
            read += [message.value for message in messages]
            if messages:
                offsets[PLACE] = messages[-1].offset + 1
    assert sorted(read) == sorted(line.text for line in lines)


async def test_where_only_the_first_lines_are_stored_the_others_follow() -> None:
    """A batch may be stored in parts. Those of one time are read again rather than missed."""
    second = NOW * SECOND - 50 * SECOND
    times = [second, second + 7, second + 7, second + 9]
    reader = tail_of(Store([SourceLine(time, b"x", ()) for time in times]))
    await reader.subscribe(_nothing_stored)
    messages = await reader.receive(1 << 20, 0.0)
    assert [message.offset + 1 for message in messages] == [second + 7, second + 7, second + 9, NOW * SECOND]


async def test_lines_that_cannot_be_told_apart_by_their_time_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """More lines of one nanosecond than an answer holds: what is given is taken, and reading goes on."""
    monkeypatch.setattr(tail, "LINES", 3)
    time = (NOW - 60) * SECOND
    lines = [SourceLine(time, b"%d" % number, ()) for number in range(5)] + [SourceLine(time + 1, b"next", ())]
    reader = tail_of(Store(lines), delay=10.0)
    await reader.subscribe(_nothing_stored)
    read = [message for _ in range(200) for message in await reader.receive(1 << 20, 0.0)]
    assert len(read) == 4
    assert read[-1].value == b"next"
    assert await reader.lag({}) == 0
