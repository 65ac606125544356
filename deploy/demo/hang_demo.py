"""A hang in one command: four ranks train, one falls asleep, and the page names it.

Starts the service, and a real job of torch (gloo, on this machine's CPU) whose output is streamed in as a shipper does.
Nothing more is printed from its thirteenth step on. The dumps that the ranks write are sent in; once the silence is
longer than usual, the verdict names the rank, its node, and who waits for it.

make demo-hang           keeps serving, so that the page can be looked at, until Ctrl-C
make demo-hang EXIT=1    ends after printing
"""

import argparse
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from demo import serving
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from waits import console, end_on_sigterm, stop

JOB = "hang-demo"
SLEEPER = 2
NODES = {0: "gpu-011", 1: "gpu-014", 2: "gpu-017", 3: "gpu-023"}
ENVIRONMENTS = (
    Path(os.environ.get("TORCH_FOLDER", Path.home() / ".cache/diagnoser-test-torch")),
    Path.home() / ".cache/diagnoser-real-runs/torch",
)
KINDS = (("_dump_*", "flight-recorder"), ("stack_*.txt", "stacks"))
DUMPS = len(KINDS) * len(NODES)
SECONDS_MAX, RENEWED_SECONDS = 240.0, 20.0
"""How long the job may take to hang, then the verdict to come, then to be made anew."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after printing the diagnosis")
    parser.add_argument("--port", type=int, default=8321, help="port to serve on; another one if it is taken")
    args = parser.parse_args()
    end_on_sigterm()
    torch, begun = torch_python(), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="diagnoser-demo-") as folder,
        serving(folder, args.port, DIAGNOSER_HANG_CHECK_IDLE_SECONDS="5") as (url, service),
        httpx.Client(base_url=url, timeout=30) as client,
        training(torch, Path(folder)) as lines,
    ):
        console.print(f"The service runs at {url}, and {len(NODES)} ranks train.", highlight=False)
        diagnosis = follow(client, lines, Path(folder))
        show(diagnosis, url, time.monotonic() - begun)
        if not args.exit:
            console.print(f"Serving on [link={url}]{url}[/link] until Ctrl-C.")
            service.wait()


def torch_python() -> str:
    """A Python that has torch: this one, or that of the environment that the tests use."""
    probe = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"
    for python in (sys.executable, *(str(folder / "bin/python") for folder in ENVIRONMENTS)):
        if Path(python).exists() and not subprocess.run([python, "-c", probe]).returncode:
            return python
    raise SystemExit(
        "This demo runs a real job of torch, which is not installed. Install the CPU build into an environment of its\n"
        f"own, for instance: python3 -m venv {ENVIRONMENTS[0]} && {ENVIRONMENTS[0]}/bin/pip install torch"
    )


@contextmanager
def training(python: str, folder: Path) -> Iterator["queue.Queue[bytes]"]:
    """The job as its own processes; what it prints, line by line. Ended at the end."""
    command = [python, str(Path(__file__).with_name("hang_job.py")), str(folder), str(len(NODES)), str(SLEEPER)]
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "2000", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()
    try:
        yield lines
    finally:
        stop(process)


def follow(client: httpx.Client, lines: "queue.Queue[bytes]", folder: Path) -> dict[str, Any]:
    """What shipper and agent do while the job runs: send its lines, and the dumps that its ranks write."""
    job = {"id": JOB, "name": "four ranks, one asleep", "nodes": list(NODES.values()), "framework": "PyTorch"}
    client.post("/api/v1/jobs", json=job | {"rank_nodes": NODES}).raise_for_status()
    console.print(f"Waiting until a rank falls asleep, and for the diagnosis (at most {2 * SECONDS_MAX:.0f} s).")
    sent, shipped, silent = dict[Path, float](), 0, False
    deadline, diagnosis = time.monotonic() + SECONDS_MAX, None
    while time.monotonic() < deadline:
        batch = [lines.get() for _ in range(lines.qsize())]
        if batch:
            send_lines(client, batch, shipped)
            shipped += len(batch)
        dumps = [(path, kind) for pattern, kind in KINDS for path in sorted(folder.glob(pattern))]
        for path, kind in dumps if len(dumps) == DUMPS else ():
            written = path.stat().st_mtime
            if sent.get(path) != written:
                send_dump(client, kind, path)
                sent[path] = written
        if sent and not silent:
            silent, deadline = True, time.monotonic() + SECONDS_MAX
            console.print("A step takes too long: each rank has written its flight recorder and its stacks.")
        diagnosis = diagnosis_of(client) if silent else None
        if diagnosis and diagnosis["hang"]["files"] < DUMPS:  # made while they came: it is made anew
            deadline = min(deadline, time.monotonic() + RENEWED_SECONDS)
        elif diagnosis:
            return diagnosis
        time.sleep(0.25)
    if diagnosis:
        return diagnosis
    raise SystemExit(f"gave up: no diagnosis after {SECONDS_MAX:.0f} s")


def send_lines(client: httpx.Client, batch: list[bytes], first: int) -> None:
    query = {"job": JOB, "source": "stdout", "offset": first}
    text = {"Content-Type": "text/plain"}
    client.post("/api/v1/logs", params=query, content=b"".join(batch), headers=text).raise_for_status()


def send_dump(client: httpx.Client, kind: str, path: Path) -> None:
    rank = int(path.stem.rpartition("_")[2])
    query = {"kind": kind, "rank": rank, "node": NODES[rank]}
    url = f"/api/v1/jobs/{JOB}/attempts/1/evidence"
    client.post(url, params=query, content=path.read_bytes()).raise_for_status()


def diagnosis_of(client: httpx.Client) -> dict[str, Any] | None:
    """Once it rests on the dumps."""
    items = client.get("/api/v1/diagnoses", params={"job": JOB}).raise_for_status().json()["items"]
    return items[0] if items and items[0]["hang"] and items[0]["root_cause"] else None


def show(diagnosis: dict[str, Any], url: str, seconds: float) -> None:
    root, hang = diagnosis["root_cause"], diagnosis["hang"]
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column(overflow="fold")
    for name, value in (
        ("Type", f"{diagnosis['type']}  ({diagnosis['outcome']}, {diagnosis['confidence']:.0%} sure)"),
        ("Rank", root["rank"]),
        ("Node", root["node"]),
        ("Waiting", f"{hang['waiting']} ranks"),
        ("Why", root["text"]),
        ("Action", f"{diagnosis['recovery']['action']}  ({diagnosis['recovery']['reason']})"),
        ("What to do", diagnosis["mitigation"]),
        ("Decided by", diagnosis["decided_by"]),
        ("Evidence", f"{hang['files']} dumps of {len(NODES)} ranks"),
        ("Page", f"{url}/jobs/{JOB}/attempts/1/hang"),
    ):
        rows.add_row(name, Text(str(value)))
    console.print(Panel(rows, title=f"Hang of {JOB}, {seconds:.0f} s after its start", title_align="left"))


if __name__ == "__main__":
    main()
