"""From the last failing line to the stored plan, on the real process with default settings and SQLite.

    python -m tools.bench.latency [RUNS]

Each run streams the log of a failing 8-rank job, sends its last lines and the exit event as a launcher does, and asks
for the plan every few milliseconds. The clock starts before the request with the last failing line is sent.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import httpx

from tests.e2e.service import DEMO_LOG, send, service

RUNS = 60
LAST = 20
"""Lines of the log in its last batch; the failing one is among them."""
LOOK_SECONDS = 0.005
LIMIT_SECONDS = 30.0


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder), DIAGNOSER_EXIT_GRACE_SECONDS="1.0", DIAGNOSER_RECOVERY_MODE="act") as found,
    ):
        client = found.start()
        lines = DEMO_LOG.read_bytes().splitlines(keepends=True)
        measure(client, "warm-up", lines)
        seconds = sorted(measure(client, f"run-{number}", lines) for number in range(runs))
    p95 = quantiles(seconds, n=20)[-1]
    print(f"{runs} runs: median {median(seconds):.2f} s, p95 {p95:.2f} s, worst {seconds[-1]:.2f} s")  # noqa: T201


def measure(client: httpx.Client, job: str, lines: list[bytes]) -> float:
    """Seconds of one run."""
    nodes = {str(rank): f"gpu-{rank:03}" for rank in range(8)}
    body = {"id": job, "cluster": job, "nodes": list(nodes.values()), "rank_nodes": nodes}
    client.post("/api/v1/jobs", json=body).raise_for_status()
    cut = len(lines) - LAST
    send(client, lines, 0, cut, job=job)
    begun = time.monotonic()
    send(client, lines, cut, len(lines), job=job)
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    while time.monotonic() < begun + LIMIT_SECONDS:
        if client.get("/api/v1/plans", params={"job": job}).json()["items"]:
            return time.monotonic() - begun
        time.sleep(LOOK_SECONDS)
    raise SystemExit(f"no plan for {job} within {LIMIT_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
