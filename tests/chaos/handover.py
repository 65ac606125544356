"""A service in the middle of its work, and who holds what of it: for stops and kills."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

import httpx
from sqlalchemy import select

from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.tables import attempts, outbox
from tests.e2e.service import DEMO_LOG, SECRET, Service, alive, node_fault, until
from tests.receiver import Handler, Receiver, running

LINES = DEMO_LOG.read_bytes()
PAUSE = 0.05
"""Seconds between two jobs that fail."""


class _Waiting(Handler):
    server: "StuckReceiver"

    def answer(self, status: int, headers: dict[str, str]) -> None:
        self.server.released.wait()
        with suppress(OSError):  # the sender is gone
            super().answer(status, headers)


class StuckReceiver(Receiver):
    """Takes webhooks, and answers none before ``released`` is set."""

    def __init__(self) -> None:
        super().__init__(_Waiting)
        self.released = threading.Event()

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.requests]


@contextmanager
def stuck_receiver() -> Iterator[StuckReceiver]:
    found = StuckReceiver()
    with running(found):
        try:
            yield found
        finally:
            found.released.set()


def settings(hook: StuckReceiver) -> dict[str, str]:
    return {
        "DIAGNOSER_WEBHOOK_URL": hook.url,
        "DIAGNOSER_WEBHOOK_SECRET": SECRET,
        "DIAGNOSER_ALLOW_PRIVATE_TARGETS": "true",
        "DIAGNOSER_RECOVERY_MODE": "act",
    }


@dataclass
class FailingJobs:
    """One job after the other that fails. acknowledged: those whose lines and end the service has taken."""

    url: str
    acknowledged: list[str] = field(default_factory=list)

    def run(self, stopping: threading.Event) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            for number in count():
                if stopping.wait(PAUSE):
                    return
                with suppress(httpx.TransportError):
                    fail(client, job := f"job-{number}")
                    self.acknowledged.append(job)


def fail(client: httpx.Client, job: str) -> None:
    text = {"content-type": "text/plain"}
    client.post("/api/v1/logs", params={"job": job, "offset": 0}, content=LINES, headers=text).raise_for_status()
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()


@contextmanager
def busy(service: Service, url: str, hook: StuckReceiver) -> Iterator[FailingJobs]:
    """While jobs fail without a pause: an attempt is being diagnosed, and a plan's webhook is being sent."""
    client = service.start()
    client.post("/api/v1/jobs", json={"id": "planned", "nodes": ["gpu-011", "gpu-017"]}).raise_for_status()
    node_fault(client, "gpu-017")
    fail(client, "planned")
    until(lambda: hook.ids, "a webhook is being sent")
    jobs, stopping = FailingJobs(service.url), threading.Event()
    thread = threading.Thread(target=jobs.run, args=(stopping,))
    thread.start()
    try:
        until(lambda: jobs.acknowledged and any(key.startswith("job-") for key in leases(url)), "a job is claimed")
        yield jobs
    finally:
        stopping.set()
        thread.join()


def leases(url: str) -> Mapping[str, float]:
    """Job of each claimed attempt and key of each claimed message -> when the lease ends (seconds since the epoch)."""

    async def read() -> dict[str, float]:
        engine = create_engine(url)
        held_attempts = select(attempts.c.job, attempts.c.lease).where(attempts.c.token != "")
        held_messages = select(outbox.c.key, outbox.c.lease).where(outbox.c.token != "")
        try:
            async with engine.connect() as connection:
                rows = [*await connection.execute(held_attempts), *await connection.execute(held_messages)]
                return {str(key): float(lease) for key, lease in rows}
        finally:
            await engine.dispose()

    return asyncio.run(read())


def kill(service: Service) -> float:
    """SIGKILL to all its processes; the time when none was left."""
    parts = service.parts()
    service.kill()
    until(lambda: not any(map(alive, parts)), "all processes have ended")
    return time.time()
