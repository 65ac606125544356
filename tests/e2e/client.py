"""The client as people run it: the served file, in a Python without any package, against a real service."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from diagnoser.web.api.client_archive import built

TOKENS = "agent:a-token-of-an-agent,ingest:a-token-of-a-job,read:a-token-of-a-reader"


@dataclass(frozen=True)
class Client:
    """folder: where it runs. url: of the service, "" for none."""

    folder: Path
    url: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def command(self, *words: str) -> list[str]:
        path = self.folder / "client.pyz"
        path.write_bytes(built(self.url).data)
        return [sys.executable, "-I", "-S", str(path), *words]

    @property
    def environment(self) -> dict[str, str]:
        """Of no scheduler, whatever this machine is."""
        schedulers = ("DIAGNOSER_", "SLURM", "KUBERNETES_", "TORCHELASTIC_", "OMPI_", "PMI", "RANK")
        own = {name: value for name, value in os.environ.items() if not name.startswith(schedulers)}
        return own | {"XDG_STATE_HOME": str(self.folder / "state"), **self.settings}

    def ended(self, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        """After it has ended. input: its standard input."""
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            timeout=300,
            check=False,
            **more,
        )

    @contextmanager
    def running(self, *words: str, **more: Any) -> Iterator["subprocess.Popen[bytes]"]:
        """While it runs; killed at the end if it still does."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is below a script that runs in the background
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(self.command(*words), env=self.environment, cwd=self.folder, **pipes) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)


def stored_lines(client: httpx.Client, job: str) -> int:
    """How many lines the service holds of a job's latest attempt, by its diagnosis."""
    items = client.get("/api/v1/diagnoses", params={"job": job}).raise_for_status().json()["items"]
    return int(items[0]["compression"]["lines_in"]) if items else 0


def events_of(client: httpx.Client, job: str) -> list[dict[str, Any]]:
    """Of all attempts, in order of time."""
    answer = client.get(f"/api/v1/jobs/{job}")
    if answer.status_code == 404:
        return []
    attempts = answer.raise_for_status().json()["attempts"]
    return [{**event, "attempt": attempt["number"]} for attempt in attempts for event in attempt["events"]]
