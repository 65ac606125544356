"""A server that speaks S3, on loopback, with one bucket."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.environments import MOTO
from tests.ports import free_port

BUCKET = "logs"
KEYS = {
    "AWS_ACCESS_KEY_ID": "for-this-test",
    "AWS_SECRET_ACCESS_KEY": "for-this-test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_START_SECONDS = 180


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Its address. Clients find ``KEYS`` in the environment. Raises AssertionError when it does not start."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [str(MOTO.python.with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **KEYS})
    try:
        until = time.monotonic() + _START_SECONDS
        while not _answers(port):
            assert process.poll() is None and time.monotonic() < until, (folder / "s3.log").read_text()
            time.sleep(0.1)
        httpx.put(f"{address}/{BUCKET}").raise_for_status()
        yield address
    finally:
        process.terminate()
        process.wait(120)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
