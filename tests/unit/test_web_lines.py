"""Lines as they came, over HTTP and on the command line."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser.compress import pack
from diagnoser.model import LineBlock, Provenance, Stream
from diagnoser.model.logs import Append, Cursor
from tests.contract.records import KEY, OUT
from tests.serving import NOW, Web, serving

PLACE = f"/api/v1/jobs/{KEY.job}/attempts/1"
SECOND = Stream("stdout", "gpu-005", 4)


async def send(web: Web, stream: Stream, lines: bytes, first: int = 1) -> None:
    last = first + lines.count(b"\n") - 1
    read = (await web.store.logs.cursors([KEY]))[KEY].get(stream, Cursor())
    cursors = {stream: (read.version, (*read.covered, (first, last)))}
    block = LineBlock(stream, lines, first, (NOW,) * lines.count(b"\n"), NOW + 1)
    await web.store.logs.append([Append(KEY, pack([block]), NOW, cursors, False, len(lines))])


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        await send(made, OUT, b"".join(b"line %d\n" % number for number in range(1, 8)))
        yield made


async def test_a_window_of_lines(web: Web) -> None:
    """With their numbers and times, and where the next window begins; at the end of the stream there is none."""
    first = (await web.client.get(f"{PLACE}/lines", params={"limit": 3})).json()
    assert first["lines"][0] == {"number": 1, "text": "line 1", "time": NOW, "received": NOW + 1, "cut": 0}
    assert (first["first"], first["last"], first["end"], first["next"]) == (1, 3, 7, 4)
    rest = (await web.client.get(f"{PLACE}/lines", params={"from": first["next"]})).json()
    assert [line["number"] for line in rest["lines"]] == [4, 5, 6, 7]
    assert rest["next"] is None
    assert rest["stream"] == {"source": "stdout", "node": "gpu-004", "rank": 3, "provenance": "job"}


async def test_which_lines(web: Web) -> None:
    """Both ends belong to a window; what is behind the end of the stream is empty, and says where that is."""
    window = (await web.client.get(f"{PLACE}/lines", params={"from": 5, "to": 6})).json()
    assert [line["text"] for line in window["lines"]] == ["line 5", "line 6"]
    behind = (await web.client.get(f"{PLACE}/lines", params={"from": 50})).json()
    assert (behind["lines"], behind["end"], behind["next"]) == ([], 7, None)


async def test_what_is_gone_is_told(web: Web) -> None:
    """Lines that were compressed without an archive, and numbers that never arrived."""
    await send(web, OUT, b"late\n", 10)
    pieces = await web.store.logs.raw_pieces(KEY, 1)
    assert await web.store.logs.compact(KEY, b"a delta", pieces)
    window = (await web.client.get(f"{PLACE}/lines")).json()
    assert [line["text"] for line in window["lines"]] == ["late"]
    assert window["compressed"] == [{"first": 1, "last": 7}]
    assert window["never_sent"] == [{"first": 8, "last": 9}]


async def test_a_stream_is_named_as_far_as_needed(web: Web) -> None:
    """With one stream nothing has to be said; of several the answer tells their names."""
    await send(web, SECOND, b"other\n")
    await send(web, Stream("kernel", "gpu-005", -1, Provenance.NODE), b"NVRM\n")
    several = await web.client.get(f"{PLACE}/lines")
    assert several.status_code == 409
    assert "source=kernel node=gpu-005 rank=-1 provenance=node" in several.json()["detail"]
    for named in ({"rank": 4}, {"source": "stdout", "node": "gpu-005"}):
        window = (await web.client.get(f"{PLACE}/lines", params=named)).json()
        assert [line["text"] for line in window["lines"]] == ["other"]
    assert (await web.client.get(f"{PLACE}/lines", params={"rank": 99})).status_code == 404
    streams = (await web.client.get(f"{PLACE}/streams", params={"node": "gpu-005"})).json()
    assert [stream["source"] for stream in streams["items"]] == ["kernel", "stdout"]
    assert streams["is_complete"]
