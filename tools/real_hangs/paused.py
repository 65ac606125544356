"""Real pauses: ``python -m tools.real_hangs.paused DIR [SEEDS [KIND...]]``: one rank of four works alone for a while.

Twelve kinds of work, of fifty seconds each, below `client.pyz run`; says of each run whether it was ever called hung.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import typer

from tests import reaper
from tests.e2e.service import Service, until
from tests.environments import TORCH
from tools.real_hangs import under_client
from tools.real_hangs.runs import TRAINER

KINDS = (
    "compiles", "evaluates", "saves", "loads", "downloads", "downloads_in_threads", "collects_garbage", "pages_in",
    "indexes_in_processes", "tokenizes_in_threads", "shuffles", "unpacks",
)  # fmt: skip
"""Functions of ``pauses``, which needs what only the trainer's environment has."""
SERVER = "SLOW_SERVER"
RANKS, AT_ONCE = 4, 4
BEGIN_SECONDS, BACK_SECONDS, BEHIND_SECONDS = 240.0, 120.0, 10.0
"""Until the pause begins, until it ends, and how long the run is watched behind it."""


class SlowAnswers(BaseHTTPRequestHandler):
    """300 kB/s, for as long as somebody reads."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(bytes(30_000))
                time.sleep(0.1)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def slow_server() -> Iterator[str]:
    """Its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowAnswers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def main(folder: Path, seeds: int, kinds: Sequence[str]) -> None:
    if TORCH.missing:
        sys.exit(TORCH.missing)
    runs = [(kind, seed) for seed in range(seeds) for kind in kinds]
    with (
        slow_server() as address,
        tempfile.TemporaryDirectory() as scratch,
        under_client.watching(Path(scratch)) as (service, archive),
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):

        def outcome(item: tuple[str, int]) -> str:
            kind, seed = item
            try:
                return watch(service, archive, folder / f"{kind}-{seed}", kind, seed, address)
            except AssertionError as error:
                return f"not shown: {error}"

        results = list(pool.map(outcome, runs))
    called = sum("hung" in result for result in results)
    shown = sum("not shown" not in result for result in results)
    typer.echo(f"{called} of {shown} pauses were called a hang")


def watch(service: Service, archive: Path, folder: Path, kind: str, seed: int, address: str) -> str:
    """One run, until some seconds behind its pause."""
    culprit, step_seconds = Random(f"{kind}-{seed}").randrange(RANKS), Random(seed).uniform(0.4, 1.2)
    folder.mkdir(parents=True)
    command = [str(TORCH.python), str(TRAINER)]
    command += [str(item) for item in (folder, kind, RANKS, culprit, seed, step_seconds)]
    with under_client.job(archive, folder, command, RANKS, {SERVER: address}):
        until((folder / "held").exists, "at its pause", BEGIN_SECONDS)
        begin, hung = time.monotonic(), ""
        behind = begin + BACK_SECONDS
        while time.monotonic() < behind and not hung:
            diagnosis = under_client.current(service, folder.name)
            if diagnosis.get("outcome") == "hung":
                hung = f"called hung after {time.monotonic() - begin:.0f} s: {diagnosis.get('root_cause')}"
            if (folder / "back").exists():
                behind = min(behind, time.monotonic() + BEHIND_SECONDS)
            time.sleep(0.5)
        assert (folder / "back").exists() or hung, "it did not come back"
    result = hung or "silent"
    typer.echo(f"{folder.name} rank {culprit}: {result}")
    return result


if __name__ == "__main__":
    reaper.watch()
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 4, sys.argv[3:] or KINDS)
