"""The service as its own process, and a real receiver of webhooks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from standardwebhooks import Webhook

from tests.ports import free_port
from tests.preloaded import Preloaded, Program
from tests.receiver import Receiver, running

ROOT = Path(__file__).resolve().parents[2]
DEMO_LOG = ROOT / "deploy" / "demo" / "train.log"
LONGEST_PAUSE = 0.3
"""Between two looks at whether something has come true, in seconds."""
SECRET = "whsec_" + "c2VjcmV0LWZvci10ZXN0cy1vbmx5LW5vdC1yZWFs"


@dataclass
class Service:
    """One process of the service. ``kill`` is SIGKILL; ``start`` may be called again: the data is the same.

    code: the checkout that it runs. Tests save the time of loading this one; benchmarks start it as an operator does.
    """

    folder: Path
    port: int
    settings: dict[str, str]
    code: Path = ROOT
    process: Program | None = None
    client: httpx.Client | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> httpx.Client:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
        environment |= {
            "DIAGNOSER_PORT": str(self.port),
            "DIAGNOSER_DATABASE_URL": f"sqlite:///{self.folder}/test.db",
            "DIAGNOSER_EXIT_GRACE_SECONDS": "0.2",
            **self.settings,
        }
        if "PYTEST_VERSION" in os.environ and self.code == ROOT:
            self.process = Preloaded(["serve"], environment, self.folder / "service.log")
        else:
            command = [sys.executable, "-m", "diagnoser", "serve"]
            with (self.folder / "service.log").open("ab") as log:
                self.process = subprocess.Popen(command, cwd=self.code, env=environment, stderr=log, stdout=log)
        self.client = client = httpx.Client(base_url=self.url, timeout=120)
        until(lambda: self._ready(client), "the service is ready")
        return client

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def parts(self) -> list[int]:
        """Ids of the processes of a running service, without their parent, in the order of their starts: numbers begin
        again from the lowest now and then."""
        assert self.process is not None
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def cpu_seconds(self) -> float:
        """Of all processes of a running service, their threads included."""
        assert self.process is not None
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in (self.process.pid, *self.parts())]
        ticks = [fields.rpartition(")")[2].split()[11:13] for fields in stats]
        return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")

    def log(self) -> str:
        return (self.folder / "service.log").read_text()

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        assert self.client is not None
        self.client.close()
        self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def _ready(self, client: httpx.Client) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def service(folder: Path, **settings: str) -> Iterator[Service]:
    found = Service(folder, free_port(), settings)
    try:
        yield found
    finally:
        if found.process and found.process.poll() is None:
            found.stop()
        if found.client:
            found.client.close()


def plans_to(hook: Receiver) -> dict[str, str]:
    """Settings: plans go to a receiver of this machine."""
    return {
        "DIAGNOSER_WEBHOOK_URL": hook.url,
        "DIAGNOSER_WEBHOOK_SECRET": SECRET,
        "DIAGNOSER_ALLOW_PRIVATE_TARGETS": "true",
    }


def acting(hook: Receiver, chat: Receiver) -> dict[str, str]:
    """Settings: plans go to one receiver without approval, alerts to another."""
    return plans_to(hook) | {"DIAGNOSER_SLACK_URL": chat.url, "DIAGNOSER_RECOVERY_MODE": "act"}


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(holds: Any, what: str, seconds: float = 180) -> Any:
    """The first true answer of ``holds``; fails when none comes in time, which a busy machine must not make short."""
    deadline, pause = time.monotonic() + seconds, 0.02
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(pause)
        pause = min(pause * 1.2, LONGEST_PAUSE)  # asking is work for both sides, and what takes long can wait as long
    raise AssertionError(f"not within {seconds} s: {what}")


def send(client: httpx.Client, lines: list[bytes], start: int, stop: int, **query: Any) -> httpx.Response:
    """A numbered batch, as a shipper sends it."""
    answer = client.post(
        "/api/v1/logs",
        params={"job": "j", "offset": start, **query},
        content=b"".join(lines[start:stop]),
        headers={"Content-Type": "text/plain"},
    )
    assert answer.status_code in (200, 204), answer.text
    return answer


def node_fault(client: httpx.Client, node: str, cluster: str = "") -> None:
    """The node's own log says that a GPU has uncorrectable memory errors."""
    line = "NVRM: Xid (PCI:0000:1b:00): 95, pid=4711, name=python, Uncontained: FBHUB. RST: Yes, D-RST: No\n"
    query = {"source": "kernel", "node": node, "cluster": cluster} if cluster else {"source": "kernel", "node": node}
    answer = client.post("/api/v1/logs", params=query, content=line, headers={"content-type": "text/plain"})
    assert answer.status_code == 204, answer.text


def diagnosis_of(client: httpx.Client, job: str = "j", lines: int = 1) -> dict[str, Any]:
    """The current diagnosis once there is one that saw ``lines`` lines: a slow machine may give earlier ones before."""

    def current() -> dict[str, Any] | None:
        items = client.get("/api/v1/diagnoses", params={"job": job}).json()["items"]
        found = client.get(f"/api/v1/diagnoses/{items[0]['id']}").json() if items else None
        return found if found and found["current"] and found["compression"]["lines_in"] >= lines else None

    found: dict[str, Any] = until(current, f"diagnosis of {lines} lines of {job}")
    return found


@contextmanager
def receiver(refuse: int = 0) -> Iterator[Receiver]:
    """A receiver of webhooks whose first ``refuse`` answers are 503."""
    found = Receiver()
    found.script = [(503, {})] * refuse
    with running(found):
        yield found


def verified(found: Receiver) -> list[dict[str, Any]]:
    """Bodies whose signature holds, checked with the public library as a receiver would."""
    return [dict(Webhook(SECRET).verify(body, headers)) for headers, body in found.requests]
