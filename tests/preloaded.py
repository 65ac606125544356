"""``diagnoser`` as a process of its own that finds its code and the shipped rules loaded.

Loading is four fifths of what a start costs, and tests start hundreds of processes. Here each is forked from one that
has loaded the code and has served a few requests; from there on it is the command, with its own arguments, environment
and output.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from diagnoser.cli import DEFERRED
from tests.reaper import marked

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "diagnoser.processes",
        "diagnoser.agent.slurm.agent",
        "diagnoser.agent.kubernetes.agent",
        *(command.module for command in DEFERRED),
        "tests.shipped_rules",
        "tests.first_start",
    ]
)


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
        given = (list(arguments), marked(dict(environment)), Path.cwd(), streams)
        self._process = _context.Process(target=_run, args=given)
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


def _run(arguments: list[str], environment: dict[str, str], folder: Path, streams: tuple[Path, Path]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream, file in zip((sys.stdout, sys.stderr), streams, strict=True):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, stream.fileno())
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["diagnoser", *arguments]
    from diagnoser.__main__ import main
    from tests import shipped_rules

    shipped_rules.use()
    try:
        main()
    finally:
        atexit._run_exitfuncs()
