"""A real Redis server that keeps nothing, when its program is installed."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = "Redis absent: apt-get install redis-server"


def present() -> bool:
    return shutil.which("redis-server") is not None


@contextmanager
def redis(port: int, folder: Path) -> Iterator[None]:
    """A server that keeps nothing, ended by its process id."""
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=120)
