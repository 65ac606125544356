"""What a job of many ranks costs when one of them ends it: ``python -m tools.bench.streams [STREAMS]`` (10,240).

The real service on SQLite. Each rank replays a healthy log, ten lines a request in four rounds; the last words of one
rank are a traceback of an ECC error, and the job exits with 1. Printed are the verdict and whether it is right, seconds
from the exit to it, the page three times, CPU seconds and memory of all processes of the service. Some healthy logs
hold lines that look fatal: where it takes a minute to send all, a verdict of the running job stands before the exit.
"""

import asyncio
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import httpx

from tests.e2e.service import Service, service
from tools.bench import logs
from tools.bench.ingest import CONNECTIONS, LOGS, PUT_OFF, STREAMS, TEXT, send_all

ROUNDS, LINES = 4, 10
PAUSE = 0.05
"""Between two looks for the verdict, in seconds."""
GPUS = 8
LAST_WORDS = b"""Traceback (most recent call last):
  File "/workspace/train.py", line 187, in main
    loss = train_step(model, batch)
torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
"""


def requests(streams: int) -> list[tuple[str, bytes]]:
    """(path, body), round by round. The rank that fails does so in its last round."""
    healthy = [log[: 1 << 20].splitlines(keepends=True) for log in logs.healthy().values()]
    sources = [cycle(healthy[rank % len(healthy)]) for rank in range(streams)]
    sent = []
    for number in range(ROUNDS * streams):
        rank = number % streams
        body = b"".join(islice(sources[rank], LINES))
        if number == (ROUNDS - 1) * streams + streams // 3:
            body += LAST_WORDS
        sent.append((f"{LOGS}job=huge&attempt=1&rank={rank}&node=gpu-{rank // GPUS:04}", body))
    return sent


def megabytes(server: Service) -> float:
    """The memory of all processes of the service; pages that they share count once (PSS)."""
    assert server.process
    total = 0
    for pid in (server.process.pid, *server.parts()):
        total += int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("\nPss:")[1].split()[0])
    return total / 1024


def measure(server: Service, streams: int) -> None:
    client = server.start()
    _tell(f"memory at rest: {megabytes(server):.0f} MB")
    sent = requests(streams)
    asyncio.run(send_all(server.port, [sent[first::CONNECTIONS] for first in range(CONNECTIONS)], TEXT))
    _tell(f"memory when all has arrived: {megabytes(server):.0f} MB")
    earlier = _verdicts(client)
    for verdict in earlier:
        _tell(f"while it ran: {verdict['outcome']}, {verdict['type']}")
    before, begun = server.cpu_seconds(), time.monotonic()
    client.post("/api/v1/jobs/huge/events", json={"kind": "exit", "code": 1, "attempt": 1}).raise_for_status()
    found, most = earlier, 0.0
    while found == earlier:
        time.sleep(PAUSE)
        most = max(most, megabytes(server))
        found = _verdicts(client)
    seconds = time.monotonic() - begun
    _tell(f"verdict after {seconds:.1f} s, {server.cpu_seconds() - before:.1f} CPU-seconds, memory {most:.0f} MB")
    _tell_verdict(client, found[0]["id"], streams // 3)
    for look in ("first", "second", "third"):
        begun = time.monotonic()
        client.get(f"/diagnoses/{found[0]['id']}").raise_for_status()
        _tell(f"{look} look at its page: {time.monotonic() - begun:.2f} s, memory {megabytes(server):.0f} MB")
    _wait_until_idle(server)
    _tell(f"all of it: {server.cpu_seconds() - before:.1f} CPU-seconds, memory {megabytes(server):.0f} MB")


def _verdicts(client: httpx.Client) -> list[dict[str, str]]:
    """The current verdict of the job, where there is one."""
    verdicts: list[dict[str, str]] = client.get("/api/v1/diagnoses", params={"job": "huge"}).json()["items"]
    return verdicts


def _tell_verdict(client: httpx.Client, id: str, rank: int) -> None:
    verdict = client.get(f"/api/v1/diagnoses/{id}").json()
    root = verdict["root_cause"] or {}
    is_right = (verdict["type"], root.get("rank")) == ("ecc_error", rank)
    _tell(f"{verdict['outcome']}, {verdict['type']}, rank {root.get('rank')} of {rank}: right: {is_right}")


def _wait_until_idle(server: Service) -> None:
    """Until two seconds cost less than a fifth of a core."""
    busy = 1.0
    while busy > 0.4:
        before = server.cpu_seconds()
        time.sleep(2)
        busy = server.cpu_seconds() - before


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else STREAMS
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), **PUT_OFF) as server:
        measure(server, streams)


if __name__ == "__main__":
    main()
