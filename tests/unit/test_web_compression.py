"""What readers get compressed, and what is left alone."""

import asyncio
import gzip
from pathlib import Path

import pytest

from diagnoser.web.http.compression import LEAST_BYTES
from diagnoser.web.pages.rendering import STATIC
from tests.serving import Web, fill, serving

GZIP = {"accept-encoding": "gzip, deflate, br"}


async def size(web: Web, path: str, **headers: str) -> int:
    """Bytes of an answer on the wire."""
    async with web.client.stream("GET", path, headers=GZIP | headers) as answer:
        assert answer.status_code == 200
        return sum([len(part) async for part in answer.aiter_raw()])


@pytest.mark.parametrize("path", ["/diagnoses", "/", "/docs", "/api/v1/diagnoses", "/openapi.json", "/metrics"])
async def test_pages_and_json_are_compressed(tmp_path: Path, path: str) -> None:
    """To less than half, as far as the browser takes it; caches learn that this makes a difference."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        answer = await web.client.get(path, headers=GZIP)
        assert answer.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in answer.headers["vary"]
        plain = await web.client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert 2 * await size(web, path) < len(plain.content)


async def test_a_small_answer_is_not_compressed(tmp_path: Path) -> None:
    """It would hardly become smaller."""
    async with serving(tmp_path) as web:
        answer = await web.client.get("/livez", headers=GZIP)
        assert len(answer.content) < LEAST_BYTES and "content-encoding" not in answer.headers


async def test_nothing_is_compressed_for_a_page_of_another_site(tmp_path: Path) -> None:
    """The size of an answer would tell whether a guess of that site stands in it."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        answer = await web.client.get("/diagnoses?q=guess", headers=GZIP | {"sec-fetch-site": "cross-site"})
        assert answer.status_code == 200 and "content-encoding" not in answer.headers


async def test_answers_to_what_is_sent_in_and_live_streams_are_left_alone(tmp_path: Path) -> None:
    """A shipper pays nothing for it, and an event is sent when it happens."""
    stopping = asyncio.Event()
    stopping.set()
    async with serving(tmp_path, stopping=stopping) as web:
        sent = await web.client.post(
            "/api/v1/logs?job=a", content=b"line\n", headers=GZIP | {"content-type": "text/plain"}
        )
        assert sent.status_code in (200, 204) and "content-encoding" not in sent.headers
        live = await web.client.get("/api/v1/live", headers=GZIP)
        assert "text/event-stream" in live.headers["content-type"] and "content-encoding" not in live.headers


@pytest.mark.parametrize("file", sorted(file.name for file in STATIC.iterdir() if file.is_file()))
async def test_static_files_come_compressed_and_are_kept(tmp_path: Path, file: str) -> None:
    """For a year where the address says which content it is; else the browser asks, and learns that nothing changed."""
    body = (STATIC / file).read_bytes()
    async with serving(tmp_path) as web:
        kept = await web.client.get(f"/static/{file}?v=0123456789ab", headers=GZIP)
        assert kept.content == body
        assert kept.headers.get("content-encoding") == ("gzip" if len(body) >= LEAST_BYTES else None)
        assert "immutable" in kept.headers["cache-control"]
        assert await size(web, f"/static/{file}") <= 1.1 * len(gzip.compress(body, 9)) or len(body) < LEAST_BYTES
        plain = await web.client.get(f"/static/{file}", headers={"accept-encoding": "identity"})
        assert plain.content == body and plain.headers["cache-control"] == "no-cache"
        again = await web.client.get(f"/static/{file}", headers=GZIP | {"if-none-match": plain.headers["etag"]})
        assert again.status_code == 304
