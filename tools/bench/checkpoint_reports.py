"""Is the newest verified checkpoint known at the end of a launch? `python -m tools.bench.checkpoint_reports [RUNS]`.

A real trainer below `client.pyz run` saves some checkpoints and fails right after the last; the service answers late,
or is away until the next launch. Says for how many runs its page of the job names the last checkpoint.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import typer

from tests.receiver import Receiver, running
from tools.real_hangs.under_client import watching

RUNS, SAVES = 6, 4
DELAYS = (0.0, 1.5, 30.0)
TRAINER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from diagnoser.client.checkpoints import Checkpointer
with Checkpointer(sys.argv[2]) as checkpointer:
    for step in range(1, int(sys.argv[3]) + 1):
        print("step", step, "loss", 1 / step, flush=True)
        save = checkpointer.save(step, lambda path: open(os.path.join(path, "model"), "wb").write(os.urandom(1 << 20)))
        save.result()
sys.exit(int(sys.argv[4]))
"""


class Late(BaseHTTPRequestHandler):
    """Passes a request on, and its answer after some seconds."""

    upstream, delay = "", 0.0

    def do_GET(self) -> None:
        self.pass_on()

    def do_POST(self) -> None:
        self.pass_on()

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        answer = httpx.request(self.command, self.upstream + self.path, content=body, headers=headers, timeout=60)
        time.sleep(self.delay)
        self.send_response(answer.status_code)
        for name in ("content-type", "retry-after"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def late(upstream: str, delay: float) -> Iterator[str]:
    """The address of a service that answers so many seconds late."""
    server = Receiver(type("LateBy", (Late,), {"upstream": upstream, "delay": delay}))
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}"


def launch(archive: Path, address: str, job: str, folder: Path, saves: int) -> None:
    client = [sys.executable, "-I", str(archive), "run", "--server", address, "--job", job, "--wait", "0", "--"]
    trainer = [sys.executable, "-c", TRAINER, str(archive), str(folder), str(saves), str(int(saves > 0))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    subprocess.run([*client, *trainer], env=environment, capture_output=True, check=False, timeout=300)


def is_known(service: str, job: str) -> bool:
    page = httpx.get(f"{service}/jobs/{job}", timeout=60, follow_redirects=True).text
    return f"Newest verified checkpoint: <b>step {SAVES}</b>" in page


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, watching(Path(scratch)) as (watcher, archive):
        with ThreadPoolExecutor(runs) as pool:
            for delay in DELAYS:
                with late(watcher.url, delay) as address:
                    jobs = [f"late-{delay:.0f}-{number}" for number in range(runs)]
                    ended = [pool.submit(launch, archive, address, job, Path(scratch) / job, SAVES) for job in jobs]
                    known = 0
                    for job, end in zip(jobs, ended, strict=True):
                        end.result()
                        known += is_known(watcher.url, job)
                typer.echo(f"answers after {delay} s: {known} of {runs} known when the command ends")
            nobody = urlsplit(watcher.url)._replace(netloc="127.0.0.1:9").geturl()
            jobs = [f"away-{number}" for number in range(runs)]
            list(pool.map(lambda job: launch(archive, nobody, job, Path(scratch) / job, SAVES), jobs))
            list(pool.map(lambda job: launch(archive, watcher.url, job, Path(scratch) / job, 0), jobs))
        known = sum(is_known(watcher.url, job) for job in jobs)
        typer.echo(f"away: {known} of {runs} known when the next launch ends")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
