"""The live stream: what is new is told once, and the stream ends with the service."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diagnoser.model.access import ANONYMOUS
from diagnoser.web.api import sse
from diagnoser.web.live import diagnosis_feed
from tests.serving import ECC, NOW, OOM, Looks, Web, save, serving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(diagnosis_feed, "LOOK_SECONDS", 0.005)


def live(web: Web, **more: str) -> AsyncIterator[Any]:
    scope = web.services.scopes.whole
    return sse.live(scope.core, scope.live, web.services.people, ANONYMOUS, **more)


async def events(web: Web) -> AsyncIterator[Any]:
    stream = live(web)
    assert (await anext(stream)).comment == "listening"
    async for event in stream:
        yield event


async def test_only_what_is_new_is_told(tmp_path: Path) -> None:
    """Diagnoses from before the connection are no news; one made after it comes once, with its address."""
    async with serving(tmp_path, base_url="https://diagnoser.example") as web:
        await save(web.store, "old", OOM, created=NOW - 50)
        looks = Looks(web.store)
        stream = events(web)
        waiting = asyncio.ensure_future(anext(stream))
        await looks.two()
        assert not waiting.done()
        record = await save(web.store, "new", ECC)
        event = await waiting
        web.services.core.stopping.set()
        rest = [one async for one in stream]
    assert (event.event, event.id) == ("diagnosis", record.id)
    assert (event.data.job, event.data.type) == ("new", "ecc_error")
    assert event.data.url == f"https://diagnoser.example/diagnoses/{record.id}"
    assert rest == []


async def test_open_pages_share_their_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty streams cost the database as much as one, and each tells all diagnosis_feed."""
    monkeypatch.setattr(diagnosis_feed, "LOOK_SECONDS", 3600.0)
    async with serving(tmp_path) as web:
        looks = Looks(web.store)
        streams = [asyncio.ensure_future(anext(events(web))) for _ in range(20)]
        await asyncio.sleep(0.2)
        assert looks.count == 1
        monkeypatch.setattr(diagnosis_feed, "LOOK_SECONDS", 0.0)
        record = await save(web.store, "new", ECC)
        assert {(await stream).id for stream in streams} == {record.id}


async def test_a_reader_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """It says which event was its last, and gets what came since, each once."""
    async with serving(tmp_path) as web:
        first = await save(web.store, "first", ECC, created=NOW - 50)
        second = await save(web.store, "second", ECC, created=NOW - 40)
        stream = live(web, last_event_id=first.id)
        assert (await anext(stream)).comment == "listening"
        missed = await anext(stream)
        third = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        record = await save(web.store, "third", ECC)
        assert [missed.id, (await third).id] == [second.id, record.id]


async def test_the_stream_outlives_a_database_that_is_away(tmp_path: Path) -> None:
    """While the database does not answer nothing is told; afterwards the news come."""
    async with serving(tmp_path) as web:
        looks = Looks(web.store)
        waiting = asyncio.ensure_future(anext(events(web)))
        await looks.two()
        looks.away = True
        record = await save(web.store, "new", ECC)
        await looks.two()
        assert not waiting.done()
        looks.away = False
        assert (await waiting).id == record.id


async def test_the_stream_ends_with_the_service(tmp_path: Path) -> None:
    """A stop closes the stream over HTTP as well, so that the server does not wait for open pages."""
    async with serving(tmp_path) as web:
        looks = Looks(web.store)
        request = asyncio.create_task(web.client.get("/api/v1/live"))
        await looks.two()
        assert not request.done()
        web.services.core.stopping.set()
        answer = await request
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith(": listening")


async def test_a_page_that_was_just_drawn_gets_what_came_since(tmp_path: Path) -> None:
    """It says from which id on; what it shows already is not told again."""
    async with serving(tmp_path) as web:
        first = await save(web.store, "first", ECC, created=NOW - 50)
        second = await save(web.store, "second", ECC, created=NOW - 40)
        stream = live(web, since=first.id)
        assert (await anext(stream)).comment == "listening"
        assert (await anext(stream)).id == second.id
