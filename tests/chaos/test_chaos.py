"""The short form of `make chaos`: kills, a full disk, a clock that is set, a replica that joins and leaves."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.chaos.rounds import Shipper, check, kill_again_and_again, shipping, wait_for_progress
from tests.e2e.service import Service, service, until


def shippers(*services: Service, count: int = 3, seed: int = 11) -> list[Shipper]:
    return [Shipper(rank, [each.url for each in services], random.Random(seed + rank), 0.05) for rank in range(count)]


def test_kills_lose_no_acknowledged_line(tmp_path: Path) -> None:
    """SQLite: killed while shippers send, the log is whole, each line once, and reads as if sent in one piece."""
    with service(tmp_path) as here:
        here.start()
        senders = shippers(here)
        with shipping(senders):
            kill_again_and_again([here], senders, 2, random.Random(5))
            wait_for_progress(senders)
        assert check(f"sqlite:///{tmp_path}/test.db", senders) > 0


@pytest.mark.xdist_group("postgresql")
def test_replicas_come_and_go(tmp_path: Path, postgresql_database: str) -> None:
    """PostgreSQL: two API processes and a worker; any is killed, one leaves for good; nothing is lost or doubled."""
    folders = [tmp_path / name for name in ("first", "second", "worker")]
    for folder in folders:
        folder.mkdir()
    settings = {"DIAGNOSER_DATABASE_URL": postgresql_database, "DIAGNOSER_CLAIM_LEASE_SECONDS": "3"}
    with (
        service(folders[0], **settings, DIAGNOSER_ROLE="api") as first,
        service(folders[1], **settings, DIAGNOSER_ROLE="api") as second,
        service(folders[2], **settings, DIAGNOSER_ROLE="worker") as worker,
    ):
        for process in (first, second, worker):
            process.start()
        assert httpx.post(f"{worker.url}/api/v1/logs?job=j", content=b"x").status_code == 404
        senders = shippers(first, second)
        with shipping(senders):
            kill_again_and_again([first, second, worker], senders, 2, random.Random(7))
            second.stop()
            wait_for_progress(senders)
        assert check(settings["DIAGNOSER_DATABASE_URL"], senders) > 0


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip(f"no small disk: mounting a tmpfs needs root ({made.stderr.decode().strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_and_forgets_nothing(tmp_path: Path) -> None:
    """What does not fit is refused and /readyz says so; with room again all goes on, nothing acknowledged is gone."""
    disk = tmp_path / "disk"
    with small_disk(disk, "256m"), service(tmp_path, DIAGNOSER_DATABASE_URL=f"sqlite:///{disk}/test.db") as here:
        filler = disk / "filler"
        filler.write_bytes(bytes(200 << 20))  # gives room for whatever the senders do while they go on
        client = here.start()
        senders = shippers(here)
        with shipping(senders):
            wait_for_progress(senders)
            with pytest.raises(OSError, match="No space"), filler.open("ab") as file:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            unready = until(lambda: client.get("/readyz").status_code == 503 and client.get("/readyz"), "/readyz fails")
            assert not unready.json()["parts"]["writes"]["ready"]
            assert "full" in unready.json()["parts"]["writes"]["detail"]
            filler.unlink()
            wait_for_progress(senders)
            until(lambda: client.get("/readyz").status_code == 200, "/readyz is well again")
        assert check(f"sqlite:///{disk}/test.db", senders) > 0
