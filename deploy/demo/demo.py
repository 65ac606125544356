"""The main job in one command: start the service, stream a failing training log in as a shipper does, read the verdict.

make demo           keeps serving, so that the page can be looked at, until Ctrl-C
make demo EXIT=1    ends after printing
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.panel import Panel
from rich.progress import track
from rich.table import Table
from rich.text import Text

LOG = Path(__file__).with_name("train.log")
JOB = "gpt-7b-pretrain"
NODES = ["gpu-011", "gpu-014", "gpu-017", "gpu-023"]
BATCH = 24
console = Console(width=110 if not sys.stdout.isatty() else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after printing the diagnosis")
    parser.add_argument("--port", type=int, default=8321, help="port to serve on; another one if it is taken")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="diagnoser-demo-") as folder, serving(folder, args.port) as (url, process):
        with httpx.Client(base_url=url, timeout=30) as client:
            stream_log(client)
            show(wait_for_diagnosis(client), url)
        if not args.exit:
            console.print(f"Serving on [link={url}]{url}[/link] until Ctrl-C.")
            process.wait()


@contextmanager
def serving(folder: str, port: int, **settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The service as its own process on SQLite in ``folder``; stopped at the end. settings: DIAGNOSER_... names."""
    port = free_port(port)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    environment |= {
        "DIAGNOSER_PORT": str(port),
        "DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/demo.db",
        "DIAGNOSER_LOG_LEVEL": "warning",
        **settings,
    }
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([Path(sys.executable).with_name("diagnoser"), "serve"], env=environment)
    try:
        wait_until_ready(url, process)
        yield url, process
    except KeyboardInterrupt:
        console.print("Stopping.")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SystemExit("no free port on 127.0.0.1")


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise SystemExit(f"the service ended with code {process.returncode}")
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the service did not become ready")


def stream_log(client: httpx.Client) -> None:
    """What a log shipper and the launcher do: register, send numbered batches while the job runs, report the exit."""
    job = {"id": JOB, "name": "GPT 7B pre-training", "nodes": NODES, "framework": "Megatron-LM"}
    client.post("/api/v1/jobs", json=job).raise_for_status()
    lines = LOG.read_bytes().splitlines(keepends=True)
    batches = range(0, len(lines), BATCH)
    for start in track(batches, description=f"Streaming {len(lines)} lines of 8 ranks", console=console):
        query = {"job": JOB, "source": "stdout", "offset": start}
        body = b"".join(lines[start : start + BATCH])
        client.post(
            "/api/v1/logs", params=query, content=body, headers={"Content-Type": "text/plain"}
        ).raise_for_status()
        time.sleep(0.05)
    client.post(f"/api/v1/jobs/{JOB}/events", json={"kind": "exit", "code": 1}).raise_for_status()


def wait_for_diagnosis(client: httpx.Client) -> dict:
    for _ in range(200):
        items = client.get("/api/v1/diagnoses", params={"job": JOB}).raise_for_status().json()["items"]
        if items:
            return client.get(f"/api/v1/diagnoses/{items[0]['id']}").raise_for_status().json()
        time.sleep(0.1)
    raise SystemExit("no diagnosis after 20 seconds")


def show(diagnosis: dict, url: str) -> None:
    root = diagnosis["root_cause"] or {}
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column(overflow="fold")
    compression = diagnosis["compression"]
    for name, value in (
        ("Type", f"{diagnosis['type']}  ({diagnosis['category']}, {diagnosis['confidence']:.0%} sure)"),
        ("Root line", f"{root.get('line')}: {root.get('text')}"),
        ("Rank", root.get("rank")),
        ("Node", ", ".join(f"{node['node']} ({node['score']:.2f})" for node in diagnosis["nodes"]) or root.get("node")),
        ("Explains", f"{len(diagnosis['symptoms'])} later symptoms"),
        ("Action", f"{diagnosis['recovery']['action']}  ({diagnosis['recovery']['reason']})"),
        ("What to do", diagnosis["mitigation"]),
        ("Decided by", diagnosis["decided_by"]),
        ("Log", f"{compression['lines_in']} lines read, {compression['lines_out']} kept"),
        ("Page", f"{url}/diagnoses/{diagnosis['id']}"),
    ):
        rows.add_row(name, Text(str(value)))
    console.print(Panel(rows, title=f"Diagnosis of {JOB}", title_align="left"))


if __name__ == "__main__":
    main()
