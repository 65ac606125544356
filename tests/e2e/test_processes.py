"""One service as several processes: what dies is started again, nothing is lost, and nothing is left behind."""

import os
import random
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.chaos.rounds import Shipper, check, shipping, wait_for_progress
from tests.e2e.service import Service, alive, diagnosis_of, send, service, until
from tests.ports import free_port

TOKEN = "0123456789abcdef0123456789abcdef"
FAILURE = [b"step 1 loss 11.2\n", b"RuntimeError: CUDA error: an illegal memory access was encountered\n"]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def worker_of(running: Service) -> int:
    """The one that no client can connect to is the last to be started."""
    return running.parts()[-1]


def test_a_worker_that_dies_is_started_again(tmp_path: Path) -> None:
    """Lines are taken meanwhile; readiness and the log tell of it; then the diagnosis comes."""
    with service(tmp_path) as running:
        client = running.start()
        assert client.get("/readyz").json()["parts"]["worker"] == {"ready": True, "detail": "runs"}
        os.kill(worker := worker_of(running), signal.SIGKILL)
        send(client, FAILURE, 0, 2)
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        assert diagnosis_of(client, lines=2)["type"] == "cuda_error"
        assert client.get("/readyz").status_code == 200
        assert worker not in running.parts()
        assert "process_died" in running.log()


def test_a_worker_alone_answers_for_itself(tmp_path: Path) -> None:
    """Beside an API with the same database, at a port of its own: health and metrics, with what only it counts, and
    nothing else. Metrics need a token of the scope read."""
    settings = {"DIAGNOSER_DATABASE_URL": f"sqlite:///{tmp_path}/shared.db", "DIAGNOSER_TOKENS": f"admin:{TOKEN}"}
    folders = tmp_path / "api", tmp_path / "worker"
    for folder in folders:
        folder.mkdir()
    with (
        service(folders[0], **settings, DIAGNOSER_ROLE="api") as api,
        service(folders[1], **settings, DIAGNOSER_ROLE="worker") as worker,
    ):
        known = {"authorization": f"Bearer {TOKEN}"}
        client, own = api.start(), worker.start()
        client.headers.update(known)
        send(client, FAILURE, 0, 2)
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        diagnosis_of(client, lines=2)
        counted = 'diagnoser_diagnoses_total{outcome="failed"} 1.0'
        until(lambda: counted in own.get("/metrics", headers=known).text, "its count")
        assert counted not in client.get("/metrics").text
        paths = ("/livez", "/readyz", "/metrics", "/", "/api/v1/jobs")
        assert [own.get(path).status_code for path in paths] == [200, 200, 401, 404, 404]
        assert worker.stop() == 0


def test_connections_wait_while_the_api_is_started_again(tmp_path: Path) -> None:
    """Its address stays open, so that a client that connects is answered late, and not refused."""
    with service(tmp_path) as running:
        running.start()
        os.kill(running.parts()[0], signal.SIGKILL)
        assert httpx.get(f"{running.url}/readyz").status_code == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_nothing_outlives_a_service_that_is_killed(tmp_path: Path, workers: str) -> None:
    """Also when it cannot say goodbye: its address is free again."""
    with service(tmp_path, DIAGNOSER_WORKERS=workers) as running:
        running.start()
        parts = running.parts()
        assert len(parts) == int(workers) + 1
        running.kill()
        until(lambda: not any(map(alive, parts)), "all processes have ended")
        until(lambda: is_free(running.port), "its address is free")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_processes_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """Also where every process gets it, as from a terminal or from systemd: once is not twice."""
    with service(tmp_path) as running:
        client = running.start()
        send(client, FAILURE, 0, 2)
        parts = running.parts()
        for pid in parts:
            os.kill(pid, number)
        assert all(map(alive, parts))
        assert running.process is not None
        running.process.send_signal(number)
        assert running.process.wait(timeout=120) == 0
        assert not any(map(alive, parts))
        assert "Traceback" not in running.log()


def test_metrics_are_those_of_all_processes(tmp_path: Path) -> None:
    """Whichever answers, and also of one that died."""
    with service(tmp_path, DIAGNOSER_WORKERS="3") as running:
        running.start().close()
        for number in range(12):
            with httpx.Client(base_url=running.url) as client:
                send(client, [b"step\n"] * 12, number, number + 1)
        apis = running.parts()[:3]
        os.kill(apis[0], signal.SIGKILL)
        until(lambda: len(running.parts()) == 4, "it is started again")
        metrics = httpx.get(f"{running.url}/metrics").text
        assert re.search(r'^diagnoser_ingested_lines_total\{result="accepted"\} 12\.0$', metrics, re.MULTILINE)
        assert re.search(r"^diagnoser_start_time_seconds 1\.[6-9]", metrics, re.MULTILINE)
        assert "diagnoser_diagnoses_total{" in metrics


def test_several_processes_take_one_log_and_one_of_them_dies(tmp_path: Path) -> None:
    """Batches that overlap and come twice, to whichever process: every acknowledged line is stored once."""
    with service(tmp_path, DIAGNOSER_WORKERS="3") as running:
        running.start()
        shippers = [Shipper(rank, [running.url], random.Random(rank), 0.05) for rank in range(4)]
        with shipping(shippers):
            for _ in range(3):
                wait_for_progress(shippers)
                os.kill(running.parts()[0], signal.SIGKILL)
            wait_for_progress(shippers)
        running.stop()
    assert check(f"sqlite:///{tmp_path}/test.db", shippers) > 0


def test_a_killed_service_leaves_no_part_at_its_address(tmp_path: Path) -> None:
    """SIGKILL to the parent alone ends its parts, even if they cannot notice it: it starts again at once."""
    with service(tmp_path) as running:
        running.start()
        for part in running.parts():
            os.kill(part, signal.SIGSTOP)
        running.kill()
        running.start()


def test_an_address_in_use_is_told(tmp_path: Path) -> None:
    """In one line, and the service ends."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for workers in ("1", "2"):
            busy = Service(tmp_path, taken.getsockname()[1], {"DIAGNOSER_WORKERS": workers})
            with pytest.raises(AssertionError, match="cannot listen on"):
                busy.start()
            assert busy.process is not None
            assert busy.process.wait() == 1
            assert "Traceback" not in busy.log()


def test_a_part_that_cannot_work_ends_the_service(tmp_path: Path) -> None:
    """It is not started again and again: what is wrong is said once."""
    wrong = Service(tmp_path, free_port(), {"DIAGNOSER_REDIS_URL": "no-such-scheme://x"})
    with pytest.raises(AssertionError):
        wrong.start()
    assert wrong.process is not None
    assert wrong.process.wait() == 1
