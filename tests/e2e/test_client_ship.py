"""`client.pyz ship` and `send` against a real service: files as they grow, rotate and restart, each line once."""

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.client import Client, stored_lines
from tests.e2e.service import DEMO_LOG, Service, service, until

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\n"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("service"), DIAGNOSER_EXIT_GRACE_SECONDS="0.3") as found:
        found.start()
        yield found


@pytest.fixture
def http(running: Service) -> httpx.Client:
    assert running.client is not None
    return running.client


@pytest.fixture
def client(tmp_path: Path, running: Service) -> Client:
    return Client(tmp_path, running.url)


def ended_with(http: httpx.Client, job: str, lines: int) -> None:
    """The job ends, and exactly so many lines are there."""
    http.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    until(lambda: stored_lines(http, job), f"a diagnosis of {job}")
    until(lambda: stored_lines(http, job) == lines, f"{lines} lines of {job}, not {stored_lines(http, job)}", 30)


def numbered(first: int, count: int) -> str:
    return "".join(f"step {number} loss 2.{number}\n" for number in range(first, first + count))


def append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


def wait_for(process: "subprocess.Popen[bytes]", state: Path, positions: dict[str, int]) -> None:
    """Until the state says that so many lines of each file were sent."""

    def sent() -> bool:
        assert process.poll() is None
        stored = json.loads(state.read_text())["files"] if state.exists() else {}
        return all(
            any(path.endswith(name) and one["lines"] >= count for path, one in stored.items())
            for name, count in positions.items()
        )

    until(sent, f"sent {positions}")


def test_files_are_followed_through_both_rotations_and_kills(
    client: Client, http: httpx.Client, tmp_path: Path
) -> None:
    """Rename, copy and truncation, kill -9 of the client with a rotation while it is away: each line once."""
    log, state = tmp_path / "train.log", tmp_path / "state.json"
    words = ("ship", "train.log", "--job", "rotated", "--state", str(state))
    append(log, numbered(0, 100))
    with client.running(*words) as process:
        wait_for(process, state, {"train.log": 100})
        append(log, numbered(100, 50))
        log.rename(tmp_path / "train.log.1")
        append(log, numbered(150, 50))
        wait_for(process, state, {"train.log": 200})
        append(log, numbered(200, 30))
        (tmp_path / "train.log.copy").write_bytes(log.read_bytes())
        os.truncate(log, 0)
        append(log, numbered(230, 20))
        wait_for(process, state, {"train.log": 250})
        process.send_signal(signal.SIGKILL)
        process.wait()
    append(log, numbered(250, 10))
    log.rename(tmp_path / "train.log.2")
    append(log, numbered(260, 40) + "last without an end")
    with client.running(*words) as process:
        wait_for(process, state, {"train.log": 300})
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
    ended_with(http, "rotated", 301)


def test_a_lost_state_repeats_nothing(client: Client, http: httpx.Client, tmp_path: Path) -> None:
    """Lines are counted by their place in the file: what is sent again counts once."""
    append(tmp_path / "a.log", numbered(0, 500))
    for name in ("one.json", "two.json"):
        ended = client.ended("ship", "a.log", "--once", "--job", "twice", "--state", str(tmp_path / name))
        assert ended.returncode == 0, ended.stderr
    ended_with(http, "twice", 500)


def test_the_files_of_ranks_are_streams_of_ranks(client: Client, http: httpx.Client, tmp_path: Path) -> None:
    """By pattern or folder; a file that appears later is found; the root cause names the rank of its file."""
    for rank in range(3):
        append(tmp_path / f"rank{rank}.log", numbered(0, 10))
    append(
        tmp_path / "rank2.log",
        OUT_OF_MEMORY,
    )
    ended = client.ended("ship", "rank*.log", "--once", "--job", "ranks", "--node", "gpu-3")
    assert ended.returncode == 0, ended.stderr
    ended_with(http, "ranks", 31)
    item: dict[str, Any] = http.get("/api/v1/diagnoses", params={"job": "ranks"}).json()["items"][0]
    assert (item["type"], item["root_cause"]["rank"], item["root_cause"]["node"]) == ("out_of_memory_error", 2, "gpu-3")


def test_the_log_folder_of_torchrun_is_read(client: Client, http: httpx.Client, tmp_path: Path) -> None:
    """Its files lie four folders deep; on a job of one node the folder's number is the rank. What was
    written last is sent last."""
    for rank in range(2):
        folder = tmp_path / "logs" / "none_x7" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        append(folder / "stdout.log", numbered(0, 5))
        append(folder / "stderr.log", OUT_OF_MEMORY if rank else "")
    single = Client(tmp_path, client.url, {"SLURM_NNODES": "1"})
    assert single.ended("ship", "logs", "--once", "--job", "torchrun").returncode == 0
    ended_with(http, "torchrun", 11)
    item = http.get("/api/v1/diagnoses", params={"job": "torchrun"}).json()["items"][0]
    assert item["root_cause"]["rank"] == 1


def test_nothing_to_ship_is_told(client: Client, tmp_path: Path) -> None:
    """A pattern that matches nothing, and no service."""
    assert client.ended("ship", "none*.log", "--once").returncode == 2
    assert b"--server" in Client(tmp_path, "").ended("ship", "x.log").stderr


@pytest.mark.parametrize("form", ["file", "gzip", "input"])
def test_a_finished_log_is_sent_and_its_diagnosis_printed(
    client: Client, tmp_path: Path, running: Service, form: str
) -> None:
    """A file, a packed one, or standard input; the page's address comes with it."""
    data = DEMO_LOG.read_bytes()
    (tmp_path / "train.log").write_bytes(data)
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(data))
    name = {"file": "train.log", "gzip": "train.log.gz", "input": "-"}[form]
    ended = client.ended("send", name, input=data if form == "input" else None)
    told = ended.stdout.decode()
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert "Diagnosis: ecc error" in told
    assert "290 lines read" in told
    assert f"{running.url}/diagnoses/" in told


def test_what_cannot_be_sent_is_told(client: Client, tmp_path: Path) -> None:
    """No such file, an empty one, a packing that is not read, a broken one, and a service that is away."""
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "log.zst").write_bytes(b"\x28\xb5\x2f\xfdxxxx")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"line\n" * 9_999)[:-20])
    for name, told, code in (
        ("none.log", "No such file", 2),
        ("empty.log", "empty", 2),
        ("log.zst", "zstd -dc", 2),
        ("broken.gz", "to its end", 1),
    ):
        ended = client.ended("send", name)
        assert (ended.returncode, told in ended.stderr.decode()) == (code, True), ended.stderr
