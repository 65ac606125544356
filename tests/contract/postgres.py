"""A real PostgreSQL server on a temporary directory, when its programs are installed."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

MISSING = "PostgreSQL absent: apt-get install postgresql-15 (initdb and postgres in PATH or /usr/lib/postgresql)"


def programs() -> Path | None:
    """The directory with ``initdb`` and ``postgres``; on Debian it is not in PATH."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists() and (place / "initdb").exists()), None)


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """Start a server, yield its URL without a database name, and end it by its process id."""
    home = Path(tempfile.mkdtemp(prefix="diagnoser-postgres-"))
    try:
        prefix = _as_other_user(home)
        data, port = home / "data", free_port()
        start = [*prefix, str(programs / "initdb"), "-D", str(data), "-U", "diagnoser", "--auth=trust"]
        subprocess.run([*start, "--no-sync", "-E", "UTF8", "--locale=C"], check=True, capture_output=True, cwd=home)
        with _running([*prefix, str(programs / "postgres"), "-D", str(data), *_options(port)], home, port):
            yield f"postgresql://diagnoser@127.0.0.1:{port}"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _as_other_user(home: Path) -> list[str]:
    """The server refuses to run as root. It also ends when the tests are killed."""
    if getpass.getuser() != "root" and os.geteuid() != 0:
        return []
    shutil.chown(home, "postgres", "postgres")
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=INT"]


def _options(port: int) -> list[str]:
    settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=50"]
    return ["-p", str(port), *(part for setting in settings for part in ("-c", setting))]


@contextmanager
def _running(command: list[str], home: Path, port: int) -> Iterator[None]:
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
        try:
            _wait(process, port, home / "log")
            yield
        finally:
            process.send_signal(signal.SIGINT)  # fast shutdown
            process.wait(timeout=120)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0 and b"ready to accept connections" in log.read_bytes():
                return
        time.sleep(0.1)
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}")
