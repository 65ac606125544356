"""`diagnoser consume --from loki` (and `victorialogs`) against a store that answers as they document it."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as numbers
from pathlib import Path
from typing import Any

import pytest

from diagnoser.adapters.line_sources import SOURCES
from diagnoser.compress import raw_chunks
from diagnoser.model import AttemptKey
from tests.databases import sqlite_store
from tests.e2e.service import DEMO_LOG, diagnosis_of, service, until
from tests.log_store import LogStore, serving
from tests.ports import free_port
from tests.preloaded import Preloaded

JOBS = 3


@contextmanager
def consuming(folder: Path, origin: str, url: str, **settings: str) -> Iterator[Preloaded]:
    """A process of `diagnoser consume`. Its log is ``consumer.log``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    environment |= {"DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/test.db", **settings}
    words = ["consume", "--from", origin, "--url", url, "--query", '{job=~".+"}', "--group", "g", "--delay", "0.5"]
    process = Preloaded(words, environment, folder / "consumer.log")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def log_of(folder: Path) -> str:
    file = folder / "consumer.log"
    return file.read_text() if file.exists() else ""


async def stored(folder: Path) -> dict[str, list[str]]:
    """The lines of each job, as they are numbered."""
    store = await sqlite_store(folder / "test.db")
    lines: dict[str, list[str]] = {}
    try:
        for job in (f"job-{number}" for number in range(JOBS)):
            pieces = await store.logs.pieces(AttemptKey(job, 1))
            blocks = [block for piece in pieces for block in raw_chunks.unpack(piece.data)]
            text = b"\n".join(block.data.removesuffix(b"\n") for block in sorted(blocks, key=lambda block: block.first))
            lines[job] = text.decode().split("\n") if text else []
    finally:
        await store.close()
    return lines


def count(folder: Path) -> int:
    return sum(map(len, asyncio.run(stored(folder)).values()))


def write(store: LogStore, serial: Iterator[int], lines: int) -> None:
    """Lines of some jobs, now: many of one time, as a logger that writes milliseconds has them."""
    now = time.time_ns() // 10**6 * 10**6
    for _ in range(lines):
        number = next(serial)
        store.entries.append((now + number // 50, f"job-{number % JOBS}", f"line {number}"))


@pytest.mark.parametrize("origin", SOURCES)
def test_a_killed_reader_loses_and_repeats_nothing(origin: str, tmp_path: Path) -> None:
    """SIGKILL while lines come, several times over; beside it a second reader of the same group."""
    store, serial = LogStore(), numbers()
    with serving(store) as url:
        for _ in range(3):
            write(store, serial, 7_000)
            before = count(tmp_path) if (tmp_path / "test.db").exists() else 0
            with consuming(tmp_path, origin, url) as process:
                until(lambda before=before: count(tmp_path) > before, "some lines are stored")
                process.send_signal(signal.SIGKILL)
                process.wait()
        with consuming(tmp_path, origin, url), consuming(tmp_path, origin, url):
            write(store, serial, 2_000)
            until(lambda: count(tmp_path) >= 23_000, "all lines are stored")
    assert asyncio.run(stored(tmp_path)) == {
        f"job-{job}": [f"line {number}" for number in range(job, 23_000, JOBS)] for job in range(JOBS)
    }


def test_a_failure_that_a_site_has_in_its_loki_is_diagnosed(tmp_path: Path) -> None:
    """Nothing is shipped twice: reader and service share a database."""
    lines = DEMO_LOG.read_text().splitlines()
    begin = time.time_ns() - 60 * 10**9
    store = LogStore([(begin + number, "j", line) for number, line in enumerate(lines)])
    with serving(store) as url, service(tmp_path) as running:
        client = running.start()
        with consuming(tmp_path, "loki", url):
            assert diagnosis_of(client, lines=len(lines))["outcome"] == "failed"
    assert store.questions < 200


def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """Before it is first there, and where it is overloaded; it is told once."""
    store, port = LogStore(), free_port()
    with consuming(tmp_path, "loki", f"http://127.0.0.1:{port}"):
        until(lambda: "source_away" in log_of(tmp_path), "the log says that the store is away")
        store.status = 503
        with serving(store, port):
            until(lambda: store.questions, "it is asked")
            store.status = 200
            write(store, numbers(), 10)
            until(lambda: count(tmp_path) == 10, "all lines are stored")
    assert log_of(tmp_path).count("source_away") == 1
    assert "source_back" in log_of(tmp_path)


@pytest.mark.parametrize(("secret", "status"), [("Bearer a-very-secret-word", 401), ("", 400)])
def test_a_store_that_refuses_us_ends_it_with_a_reason(secret: str, status: int, tmp_path: Path) -> None:
    """Exit 1, without a traceback and without the secret."""
    store = LogStore(status=status, authorization=secret and "Bearer another")
    settings: dict[str, Any] = {"DIAGNOSER_LINE_SOURCE_AUTHORIZATION": secret} if secret else {}
    with serving(store) as url, consuming(tmp_path, "loki", url, **settings) as process:
        assert process.wait(120) == 1
        assert f"diagnoser: {url} answers {status}: no such thing" in log_of(tmp_path)
    assert "a-very-secret-word" not in log_of(tmp_path)
    assert "Traceback" not in log_of(tmp_path)
