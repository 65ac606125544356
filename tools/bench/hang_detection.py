"""From the last step of a run that hangs to the verdict that names its rank, on the real process with SQLite.

    python -m tools.bench.hang_detection [RUNS]

The runs make steps of 0.4 to 1.9 s beside each other and stop one by one; one more makes steps throughout. What agents
do is done here: requests for evidence are claimed every half second, and the dumps of four ranks are sent.
"""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median, quantiles

import httpx

from tests.e2e.service import service
from tests.hang_dumps import dump, entry, written

RUNS, STEPS, CULPRIT = 20, 20, 2
LIMIT_SECONDS = 180.0
_POLL_SECONDS = 0.5


@dataclass(slots=True)
class Run:
    """A training run. Times by ``time.monotonic``. stopped, named: 0.0 until it hangs, and until a verdict says so."""

    job: str
    step_seconds: float
    steps: int
    due: float
    made: int = 0
    stopped: float = 0.0
    named: float = 0.0


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as running:
        seconds, false_hangs = measure(running.start(), count)
    p95 = quantiles(seconds, n=20)[-1]
    sys.stdout.write(
        f"{count} hangs: median {median(seconds):.1f} s, p95 {p95:.1f} s, worst {max(seconds):.1f} s after the last "
        f"step; {false_hangs} of 1 healthy runs called hung\n"
    )


def measure(client: httpx.Client, count: int) -> tuple[list[float], int]:
    """Seconds of each hang, and whether the healthy run was called hung. Raises SystemExit where one is not named."""
    random, begun = Random(7), time.monotonic()
    runs = [
        Run(f"run-{number}", random.uniform(0.4, 1.9), STEPS + random.randrange(STEPS), begun + random.random())
        for number in range(count)
    ]
    healthy = Run("healthy", 1.0, 1 << 30, begun)
    asked = begun
    while not all(run.named for run in runs):
        now = time.monotonic()
        if now > begun + LIMIT_SECONDS:
            raise SystemExit(f"not named within {LIMIT_SECONDS:.0f} s: {[run.job for run in runs if not run.named]}")
        for run in (*runs, healthy):
            if not run.stopped and now >= run.due:
                _step(client, run)
        if now >= asked + _POLL_SECONDS:
            asked = now
            _collect(client)
        for run in runs:
            if run.stopped and not run.named and _verdict(client, run.job) == ("hung", CULPRIT):
                run.named = time.monotonic()
        time.sleep(0.02)
    return [run.named - run.stopped for run in runs], int(_verdict(client, healthy.job)[0] == "hung")


def _step(client: httpx.Client, run: Run) -> None:
    run.made += 1
    line = f"[rank0] step {run.made}/100000 loss {3 - run.made / 1000:.4f}\n"
    text = {"content-type": "text/plain"}
    client.post("/api/v1/logs", params={"job": run.job}, content=line, headers=text).raise_for_status()
    run.due += run.step_seconds
    if run.made >= run.steps:
        run.stopped = time.monotonic()


def _collect(client: httpx.Client) -> None:
    for asked in client.post("/api/v1/evidence-requests/claim", json={}).raise_for_status().json():
        path = f"/api/v1/jobs/{asked['job']}/attempts/{asked['attempt']}/evidence"
        for rank in range(4):
            done = [entry("0", 5, order=0, done=True)]
            waits = [] if rank == CULPRIT else [entry("0", 6, order=1)]
            query: dict[str, str | int] = {"kind": "flight-recorder", "rank": rank, "more": rank < 3}
            body = written(dump({"0": range(4)}, [*done, *waits]))
            client.post(path, params=query, content=body).raise_for_status()
        result = {"result": "4 dumps"}
        client.post(f"/api/v1/evidence-requests/{asked['id']}/result", json=result).raise_for_status()


def _verdict(client: httpx.Client, job: str) -> tuple[str, int]:
    """Outcome and rank of the newest diagnosis."""
    diagnosis = client.get(f"/api/v1/jobs/{job}").raise_for_status().json()["attempts"][0]["diagnosis"]
    root = (diagnosis or {}).get("root_cause") or {}
    return (diagnosis or {}).get("outcome", ""), root.get("rank", -1)


if __name__ == "__main__":
    main()
