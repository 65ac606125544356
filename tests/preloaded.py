"""``diagnoser`` as a process of its own that finds its code loaded.

Loading is two thirds of what a start costs, and tests start hundreds of processes. Here each is forked from one that
has loaded the code and done nothing else; from there on it is the command, with its own arguments, environment, output.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["diagnoser.cli", "diagnoser.app", "diagnoser.agent.slurm.agent", "diagnoser.agent.kubernetes.agent"]
)


class Program(Protocol):
    """A process that was started, as `subprocess.Popen` shows it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Preloaded:
    """Starts ``diagnoser`` with these arguments. log: takes its output and its errors, at the end."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.touch()
        given = (list(arguments), dict(environment), log)
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


def _run(arguments: list[str], environment: dict[str, str], log: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["diagnoser", *arguments]
    from diagnoser.__main__ import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()
