"""What a request and a line cost the server, compression behind the acknowledgement included, and who waits for whom.

    python -m tools.bench.ingest [--quick] [--json] [--only NAME]

The real service with default settings and SQLite; replays the healthy logs beside the checkout (generated ones without
them): each connection is a rank that prints one of them from its beginning. Cost is CPU seconds of all processes of the
server until nothing is left to compress, over those of an idle one; the client runs beside it. Diagnoses are put off:
healthy logs hold lines that look fatal.

"First sight": most shapes of lines are new to the server, as in the first minutes of the first job of a kind. "Steady":
the same bodies once more, of other jobs, as all that comes afterwards. Each request is new in both.
"""

import argparse
import asyncio
import json
import os
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles

import httpx
import orjson

from tests.e2e.service import Service, service
from tools.bench import logs

CONNECTIONS = 32
LOGS = "/api/v1/logs?"
TEXT, NDJSON = "text/plain", "application/x-ndjson"
SIGHTS = ("first sight", "steady")
STREAMS = 10_240
DRAIN_SECONDS = 180.0
PUT_OFF = {
    "DIAGNOSER_FATAL_DEBOUNCE_SECONDS": "7200",
    "DIAGNOSER_HANG_CHECK_IDLE_SECONDS": "7200",
    "DIAGNOSER_HANG_DIAGNOSIS_IDLE_SECONDS": "7200",
}
"""Streams that end look silent, too. ``tools.bench.latency`` measures diagnoses."""
IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class Row:
    """name: of the case. must: as the aim is written. measured: as printed. value: the number alone."""

    name: str
    must: str
    measured: str
    value: float


@dataclass
class Bench:
    server: Service
    logs: list[list[bytes]]
    scale: float
    idle: float = 0.0

    def rest(self) -> None:
        """Measure what a second costs when nothing comes."""
        before = self.server.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        self.idle = (self.server.cpu_seconds() - before) / IDLE_SECONDS

    def texts(self, count: int, lines: int) -> Iterator[bytes]:
        """``count`` bodies of ``lines`` lines each, for each connection in turn, of its own log."""
        sources = [cycle(self.logs[number % len(self.logs)]) for number in range(CONNECTIONS)]
        bodies = max(CONNECTIONS, int(count * self.scale))
        return (b"".join(islice(sources[number % CONNECTIONS], lines)) for number in range(bodies))

    def cost(self, bodies: Sequence[bytes], kind: str, job: str) -> tuple[float, float]:
        """As ``cost_of``, of bodies that name no job themselves."""
        return self.cost_of(spread(bodies, job), kind)

    def cost_of(self, work: Sequence[Sequence[tuple[str, bytes]]], kind: str) -> tuple[float, float]:
        """(CPU seconds of the server with all that follows, wall seconds until the last acknowledgement)."""
        before, begun = self.server.cpu_seconds(), time.monotonic()
        asyncio.run(send_all(self.server.port, work, kind))
        wall = time.monotonic() - begun
        self.drain()
        return self.server.cpu_seconds() - before - self.idle * (time.monotonic() - begun), wall

    def drain(self) -> None:
        """Until no raw lines are stored."""
        limit = time.monotonic() + DRAIN_SECONDS
        with closing(sqlite3.connect(self.server.folder / "test.db", timeout=30)) as database:
            while database.execute("SELECT sum(raw_bytes) FROM attempts").fetchone()[0]:
                if time.monotonic() > limit:
                    raise SystemExit("raw lines are left after minutes: compaction does not keep up")
                time.sleep(0.2)


def spread(bodies: Sequence[bytes], job: str, jobs: int = 8) -> list[list[tuple[str, bytes]]]:
    """(path, body) for each connection in its order: connections are ranks of a few jobs."""
    work: list[list[tuple[str, bytes]]] = [[] for _ in range(CONNECTIONS)]
    for number, body in enumerate(bodies):
        rank = number % CONNECTIONS
        work[rank].append((f"{LOGS}job={job}-{rank % jobs}&attempt=1&rank={rank}&node=gpu-{rank:03}", body))
    return work


async def send_all(port: int, work: Iterable[Sequence[tuple[str, bytes]]], kind: str) -> list[float]:
    """Seconds of each request, all connections at once."""
    times = await asyncio.gather(*(send_each(port, requests, kind) for requests in work if requests))
    return [seconds for of_connection in times for seconds in of_connection]


async def send_each(port: int, requests: Sequence[tuple[str, bytes]], kind: str, pause: float = 0.0) -> list[float]:
    """One connection, one request after the other. An HTTP client would cost more than the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    try:
        for path, body in requests:
            begun = time.perf_counter()
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            if receipt := re.search(rb"content-length: (\d+)", answer):  # of lines over the line limit
                await reader.readexactly(int(receipt[1]))
            if answer.split(b" ", 2)[1] not in (b"204", b"200"):
                raise SystemExit(f"the server answered {answer.decode()}")
            times.append(time.perf_counter() - begun)
            if pause:
                await asyncio.sleep(pause)
    finally:
        writer.close()
    return times


def records(text: bytes) -> bytes:
    return b"\n".join(
        orjson.dumps({"message": line.decode("utf-8", "replace"), "time": 1_790_000_000 + number})
        for number, line in enumerate(text.splitlines())
    )


def small_requests(bench: Bench) -> Iterator[Row]:
    for lines, must in ((10, 1000), (100, 900)):
        bodies = list(bench.texts(6000, lines))
        for sight in SIGHTS:
            cpu, _ = bench.cost(bodies, TEXT, f"small-{lines}-{sight[:5]}")
            rate = len(bodies) / cpu
            yield Row(f"requests of {lines} lines per CPU-second, {sight}", f"{must:,}", f"{rate:,.0f}", rate)


def large_requests(bench: Bench) -> Iterator[Row]:
    mean = sum(len(line) for log in bench.logs for line in log) / sum(map(len, bench.logs))
    for name, size, count in (("64 kB", 64 << 10, 1200), ("1 MB", 1 << 20, 150)):
        bodies = list(bench.texts(count, int(size / mean)))
        for kind, must, convert in ((TEXT, 300_000, bytes), (NDJSON, 120_000, records)):
            sent = [convert(body) for body in bodies]
            total = sum(body.count(b"\n") for body in bodies)
            what = "NDJSON" if kind == NDJSON else "text"
            for sight in SIGHTS if kind == TEXT else SIGHTS[1:]:
                cpu, _ = bench.cost(sent, kind, f"large-{size}-{kind[-4:]}-{sight[:5]}")
                rate = total / cpu
                yield Row(f"{what} {name}, lines per CPU-second, {sight}", f"{must:,}", f"{rate:,.0f}", rate)


def idle(bench: Bench) -> Iterator[Row]:
    """What it costs that nothing happens."""
    yield Row("idle, share of a core", "1 %", f"{100 * bench.idle:.2f} %", bench.idle)


def half_load(bench: Bench) -> Iterator[Row]:
    """Closed loops with pauses, so that the server is busy for about half of the time."""
    bodies = list(bench.texts(2000, 100))
    _, wall = bench.cost(bodies, TEXT, "full")
    pause = CONNECTIONS * wall / len(bodies)

    async def paced() -> list[float]:
        work = spread(bodies, "half")
        times = await asyncio.gather(*(send_each(bench.server.port, own, TEXT, pause) for own in work))
        return [seconds for of_connection in times for seconds in of_connection]

    p99 = 1000 * quantiles(asyncio.run(paced()), n=100)[-1]
    yield Row("acknowledgement at half load, p99", "100 ms", f"{p99:.0f} ms", p99)


def quiet_job(bench: Bench) -> Iterator[Row]:
    """A small request now and then beside 40 connections that send 256 kB bodies without a pause: each of a job of its
    own, then each of a rank of one job."""
    quiet = [(f"{LOGS}job=quiet&attempt=1&rank=0", body) for body in bench.texts(400, 10)]
    body = next(iter(bench.texts(1, 2600)))
    alone = quantiles(asyncio.run(send_each(bench.server.port, quiet, TEXT, 0.02)), n=100)[-1]
    for name, place in (("40 noisy jobs", "job=noisy-{}&attempt=1"), ("a noisy job of 40 ranks", "job=huge&rank={}")):
        noisy = [(LOGS + place.format(number), body) for number in range(40)]
        p99 = quantiles(asyncio.run(_send_beside(bench.server.port, quiet, noisy)), n=100)[-1]
        measured = f"{p99 / alone:.1f} x ({1000 * alone:.0f} -> {1000 * p99:.0f} ms)"
        yield Row(f"quiet job beside {name}, p99", "4 x", measured, p99 / alone)
        bench.drain()


async def _send_beside(
    port: int, quiet: Sequence[tuple[str, bytes]], noisy: Iterable[tuple[str, bytes]]
) -> list[float]:
    """Seconds of the quiet requests, while a connection for each noisy one sends it again and again."""
    tasks = [asyncio.create_task(send_each(port, [request] * 10_000, TEXT)) for request in noisy]
    await asyncio.sleep(2)
    times = await send_each(port, quiet, TEXT, 0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return times


def many_streams(bench: Bench) -> Iterator[Row]:
    """Every rank of a job of 10,240 sends ten lines, in four rounds."""
    count = int(STREAMS * bench.scale)
    bodies = list(islice(bench.texts(int(4 * STREAMS / bench.scale), 10), 4 * count))
    requests = [
        (f"{LOGS}job=huge&attempt=1&rank={number % count}&node=gpu-{number % count // 8:04}", body)
        for number, body in enumerate(bodies)
    ]
    rates = []
    for start in range(0, len(requests), count):
        part = requests[start : start + count]
        begun = time.monotonic()
        asyncio.run(send_all(bench.server.port, [part[first::CONNECTIONS] for first in range(CONNECTIONS)], TEXT))
        rates.append(len(part) / (time.monotonic() - begun))
    ratio = rates[-1] / rates[0]
    measured = f"{ratio:.2f} ({rates[0]:,.0f} -> {rates[-1]:,.0f} requests/s)"
    yield Row(f"{count:,} streams in one job: last round over first", "0.9", measured, ratio)
    with httpx.Client(base_url=bench.server.url, timeout=120) as client:
        begun = time.monotonic()
        client.post("/api/v1/jobs/huge/events", json={"kind": "exit", "code": 1, "attempt": 1}).raise_for_status()
        while not client.get("/api/v1/diagnoses", params={"job": "huge"}).json()["items"]:
            time.sleep(0.05)
        seconds = time.monotonic() - begun
        yield Row("its diagnosis", "3 s", f"{seconds:.1f} s", seconds)
        page = client.get("/api/v1/diagnoses", params={"job": "huge"}).json()["items"][0]["id"]
        client.get(f"/diagnoses/{page}").raise_for_status()
        begun = time.monotonic()
        client.get(f"/diagnoses/{page}").raise_for_status()
        seconds = time.monotonic() - begun
        yield Row("its page", "0.5 s", f"{seconds:.2f} s", seconds)


def database_size(bench: Bench) -> Iterator[Row]:
    """Of the whole database after everything else, by what was sent in all; at least small requests."""
    bench.cost(list(bench.texts(12_000, 100)), TEXT, "size")
    path = bench.server.folder / "test.db"
    with closing(sqlite3.connect(path, timeout=30)) as database:
        stored = database.execute("SELECT sum(length(data)) FROM deltas").fetchone()[0]
        used = database.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()").fetchone()
    with httpx.Client(base_url=bench.server.url) as client:
        metrics = client.get("/metrics").text
    sent = re.search(r"(?m)^diagnoser_ingested_bytes_total (\S+)", metrics)
    assert sent
    share, whole = 1000 * stored / float(sent[1]), 1000 * used[0] / float(sent[1])
    yield Row("stored per GB of log", "20 MB", f"{share:.1f} MB, {whole:.1f} MB with the whole database", share)


_CASES = (idle, small_requests, large_requests, half_load, quiet_job, many_streams, database_size)
CASES: dict[str, Callable[[Bench], Iterator[Row]]] = {case.__name__: case for case in _CASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    parser.add_argument("--only", choices=CASES, help="one case")
    options = parser.parse_args()
    healthy = [log[: 4 << 20].splitlines(keepends=True) for log in logs.healthy().values()]
    replayed = healthy[:: max(1, len(healthy) // CONNECTIONS)][:CONNECTIONS]
    if not options.json:
        _say(
            f"{os.cpu_count()} cores, {len(replayed)} logs replayed\n\n| what | must | measured |\n| --- | --- | --- |"
        )
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), **PUT_OFF) as server:
        server.start()
        bench = Bench(server, replayed, 0.1 if options.quick else 1.0)
        bench.rest()
        for name, case in CASES.items():
            for row in case(bench) if options.only in (None, name) else ():
                _say(json.dumps(vars(row)) if options.json else f"| {row.name} | {row.must} | {row.measured} |")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
