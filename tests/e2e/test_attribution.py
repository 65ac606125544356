"""Log files that the real server reads on request: files that have no end, and the end of the server."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import Service, service

FAILURE = b"step 1 loss 2.3\nTraceback (most recent call last):\nKeyError: 'input_ids'\n"
SPARSE_BYTES = 300 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("sparse-1.log", "sparse-2.log"):
        with (folder / name).open("wb") as log:
            log.truncate(SPARSE_BYTES)
            log.seek(0, os.SEEK_END)
            log.write(b"\n" + FAILURE)
    (folder / "honest.log").write_bytes(FAILURE)
    return folder


def asked(running: Service, path: Path) -> Any:
    answer = httpx.get(f"{running.url}/logs", params={"log_path": str(path)}, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_files_of_300_gb_do_not_keep_the_others_waiting(tmp_path: Path, root: Path) -> None:
    """Both seats are taken by sparse files: they are read from near their end, and the honest log has its turn."""
    with service(tmp_path, DIAGNOSER_FT_LAUNCHER_LOG_ROOT=str(root)) as running, ThreadPoolExecutor() as pool:
        running.start()
        answers = list(pool.map(lambda path: asked(running, path), sorted(root.iterdir(), reverse=True)))
        assert [answer["recommendation"]["action"] for answer in answers] == ["STOP"] * 3
        notes = [answer["result"]["diagnosis"]["notes"] for answer in answers]
        assert [any("last 1024 MB" in note for note in found) for found in notes] == [True, True, False]


def test_reading_does_not_delay_the_end(tmp_path: Path, root: Path) -> None:
    """A stopping server leaves the files that it is reading."""
    with service(tmp_path, DIAGNOSER_FT_LAUNCHER_LOG_ROOT=str(root)) as running:
        client = running.start()
        for path in root.glob("sparse-*"):
            body = {"log_path": str(path), "analysis_intent": "terminal"}
            assert client.post("/logs", json=body).status_code == 200
        assert running.stop() == 0
        assert "attribution_failed" not in running.log()
