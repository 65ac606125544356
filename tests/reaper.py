"""Ends whatever processes a test run leaves, and deletes its temporary files, however the run itself ended: by Ctrl-C,
SIGTERM or SIGKILL, or in order; and ends the run, where the ``make`` that it belongs to was killed.

A small process watches the run from beside it. What a test starts carries the run's mark in its environment, and what
that starts inherits it, across sessions, users and parents that are gone. Linux only: elsewhere nothing is watched.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

NAME = "TEST_RUN_MARK"
_MAKES = ("make", "gmake")
_SCANS = 3
"""Scans in a row that find nothing: a process may be started while the others are ended."""


def watch() -> None:
    """Marks this process's children, and has an end made of those that outlive it. Called once, before any is started;
    a worker of a run has been marked by the run's own process, which is the one that is watched."""
    if not hasattr(os, "pidfd_open"):
        return
    if "PYTEST_XDIST_WORKER" not in os.environ:
        mark = f"{os.getpid()}-{time.time_ns()}"
        plain = {name: value for name, value in os.environ.items() if name != NAME}
        command = [sys.executable, "-I", "-S", __file__, mark, str(os.getpid()), _folder_of_run()]
        nothing = subprocess.DEVNULL
        watcher = subprocess.Popen(
            command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, env=plain, start_new_session=True
        )
        assert watcher.stdout is not None
        with watcher.stdout as ready:
            ready.read()  # until it watches: it must also notice a `make` that is killed at once
        watcher.returncode = 0  # nobody waits for it: it ends after this process
        os.environ[NAME] = mark
    _mark_new_environments()


def _folder_of_run() -> str:
    """Make the folder of the run's temporary files, also of those that a killed process leaves. pytest keeps its own,
    which people look at after a failure, where it always has them."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="tests-")
    # Servers and jobs run as users of their own; Slurm writes into a job's output where it may not write to TMPDIR.
    Path(folder).chmod(0o1777)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    return folder


def marked(environment: dict[str, str]) -> dict[str, str]:
    """An environment for a process, with the mark of this run where there is one."""
    return {**environment, NAME: os.environ[NAME]} if NAME in os.environ else environment


def _mark_new_environments() -> None:
    """A child that gets an environment made from nothing is marked as well."""
    begin = subprocess.Popen.__init__

    def marking(self, *arguments, env=None, **more):  # type: ignore[no-untyped-def]
        begin(self, *arguments, env=None if env is None else marked(env), **more)  # type: ignore[call-overload]

    subprocess.Popen.__init__ = marking  # type: ignore[method-assign]


def _end_all(mark: str) -> None:
    quiet = 0
    while quiet < _SCANS:
        quiet += 1
        for pid in _processes_of(mark):
            with suppress(ProcessLookupError, PermissionError):  # it ended by itself, or is another user's
                os.kill(pid, signal.SIGKILL)
                quiet = 0
        time.sleep(0.1)


def _processes_of(mark: str) -> set[int]:
    """Ids of the processes that carry the mark, and of all below them: some write over their environment."""
    wanted = f"{NAME}={mark}".encode()
    parents, found = {}, set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            parents[int(entry.name)] = int(parent)
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:
            continue  # it has ended, or is another user's
    size = 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def _makes_of(pid: int) -> list[int]:
    """Handles of each ``make`` above a process."""
    handles = []
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            if name in _MAKES:
                handles.append(os.pidfd_open(pid))
        except OSError:
            break  # it has ended, or is another user's
        pid = int(rest.split()[1])
    return handles


def main(mark: str, pid: int, folder: str) -> None:
    run = os.pidfd_open(pid)
    makes = _makes_of(pid)
    if os.getppid() == pid:  # else it has ended before we looked
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # closes the pipe: the run may start processes
        ended, _, _ = select.select([run, *makes], [], [])
        if run not in ended:
            signal.pidfd_send_signal(run, signal.SIGKILL)
    _end_all(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
