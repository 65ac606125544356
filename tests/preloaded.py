"""``diagnoser`` as a process of its own that finds its code and the shipped rules loaded.

Loading is four fifths of what a start costs, and tests start hundreds of processes. Here each is forked from one that
has loaded the code and has served a few requests; from there on it is the command, with its own arguments, environment
and output.
"""

import atexit
import fcntl
import json
import multiprocessing
import os
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from diagnoser.cli import DEFERRED
from tests import reaper

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "diagnoser.processes",
        "diagnoser.agent.slurm.agent",
        "diagnoser.agent.kubernetes.agent",
        *(command.module for command in DEFERRED),
        "tests.shipped_rules",
        "tests.first_start",
    ]
)


@cache
def _share() -> None:
    """Fork from the process that another worker of this run has started, if there is one: loading costs four seconds of
    CPU. It lives as long as a worker that holds the end of its pipe, which others get at through the first worker."""
    if "PYTEST_XDIST_WORKER" not in os.environ or reaper.NAME not in os.environ:
        return
    server: Any = forkserver._forkserver
    with Path(tempfile.gettempdir(), f"preloaded-{os.environ[reaper.NAME]}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        place, _, address = file.read().partition(" ")
        try:
            server._forkserver_alive_fd = os.open(place, os.O_WRONLY)
        except FileNotFoundError:  # nobody has started it, or whoever did has ended
            server.ensure_running()
            file.truncate(0)
            file.write(f"/proc/{os.getpid()}/fd/{server._forkserver_alive_fd} {server._forkserver_address}")
        else:
            server._forkserver_address = address
            server.ensure_running = resource_tracker.ensure_running


def forked(target: Callable[..., None], arguments: Sequence[object]) -> ForkServerProcess:
    """A process that finds the code loaded, not started yet."""
    _share()
    return context.Process(target=target, args=tuple(arguments))


class Program(Protocol):
    """A process that was started, as `subprocess.Popen` shows it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Preloaded:
    """Starts ``diagnoser`` with these arguments, in this process's folder. output, errors: files that take what it
    writes, at their ends; without errors both go to output."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: Path, errors: Path | None = None
    ) -> None:
        streams = (output, errors or output)
        for file in streams:
            file.touch()
        given = (list(arguments), reaper.marked(dict(environment)), Path.cwd(), streams)
        self._process = forked(_run_for_files, given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("diagnoser", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def run(arguments: Sequence[object], environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """``diagnoser`` with these arguments, once it has ended."""
    with TemporaryDirectory() as name:
        output, errors = Path(name, "output"), Path(name, "errors")
        words = [str(argument) for argument in arguments]
        code = Preloaded(words, environment, output, errors).wait()
        return subprocess.CompletedProcess(words, code, output.read_text(), errors.read_text())


@cache
def program_folder() -> Path:
    """A folder for ``PATH``: what shells start as ``diagnoser`` from there finds its code loaded, and has the folder,
    the environment and the streams of its start."""
    folder = TemporaryDirectory(prefix="preloaded-")
    atexit.register(folder.cleanup)
    path, address = Path(folder.name, "diagnoser"), Path(folder.name, "socket")
    path.write_text(_PROGRAM.format(python=sys.executable, address=str(address)))
    path.chmod(0o755)
    server = socketserver.ThreadingUnixStreamServer(str(address), _Start)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return path.parent


class _Start(socketserver.BaseRequestHandler):
    """A start of the program: its words come with its streams, and it gets a process id and then an exit code."""

    def handle(self) -> None:
        size, streams, _, _ = socket.recv_fds(self.request, 4, 3)
        with self.request.makefile("rb") as asked:
            arguments, environment, folder = json.loads(asked.read(int.from_bytes(size, "big")))
        passed = [Connection(stream) for stream in streams]
        process = forked(_run_for_streams, (arguments, environment, Path(folder), passed))
        process.start()
        for stream in passed:
            stream.close()
        self.request.sendall(f"{process.pid}\n".encode())
        process.join()
        self.request.sendall(f"{process.exitcode}\n".encode())


_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys

words = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
with socket.socket(socket.AF_UNIX) as ask:
    ask.connect({address!r})
    socket.send_fds(ask, [len(words).to_bytes(4, "big")], [0, 1, 2])
    ask.sendall(words)
    with ask.makefile() as answer:
        pid = int(answer.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: os.kill(pid, number))
        code = int(answer.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def _run_for_files(arguments: list[str], environment: dict[str, str], folder: Path, streams: tuple[Path, Path]) -> None:
    for stream, file in zip((sys.stdout, sys.stderr), streams, strict=True):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, stream.fileno())
        os.close(opened)
    _run(arguments, environment, folder)


def _run_for_streams(
    arguments: list[str], environment: dict[str, str], folder: Path, streams: Sequence["Connection[bytes, bytes]"]
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has closed it
    _run(arguments, environment, folder)


def _run(arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["diagnoser", *arguments]
    from diagnoser.__main__ import main
    from tests import shipped_rules

    shipped_rules.use()
    try:
        main()
    finally:
        atexit._run_exitfuncs()
