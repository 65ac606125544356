"""Runs the parts of the service as separate processes on one machine: starts them, restarts what dies, and
stops them all.

The parent loads code and rules, then forks: a part costs little memory of its own, and starts again at once. The parent
itself has neither threads nor an event loop, so that it can fork at any time.
"""

import ctypes
import math
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import structlog

from diagnoser.model.errors import BadInput, DiagnoserError, RuleFaults

STOP = signal.SIGUSR1
"""What the parent tells its parts: once to finish what they have begun, twice not to wait. A part ignores SIGTERM and
SIGINT: a terminal sends these to all processes, and so does systemd, while the parent passes them on as well."""

_ENDING = {signal.SIGTERM, signal.SIGINT}
_WAITED = {*_ENDING, signal.SIGCHLD}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
STOP_SECONDS = 4.5
"""Parts that have not ended by then are killed. Nothing is lost: what they held is taken over when its lease ends."""
_PR_SET_PDEATHSIG = 1
"""An option of Linux' `prctl`."""
_SOUND_SECONDS = 60.0
"""A part that lived for so long is started again without a longer pause."""


@dataclass(frozen=True, slots=True)
class Part:
    """run: called in a process of its own; it returns after ``STOP``. name: for the log and ``is_running``."""

    name: str
    run: Callable[[], None]


@dataclass(slots=True)
class _Process:
    """What the parent knows of a part. pid: 0 while it does not run. due: when it is started (again)."""

    part: Part
    pid: int = 0
    due: float = 0.0
    started: float = 0.0
    deaths: int = 0


class Supervisor:
    """Made in the parent, before its parts: they may ask it which of them run."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._running = mmap.mmap(-1, len(self._names))  # shared by all processes
        self._processes: list[_Process] = []
        self._stopping = False
        self._stop_by = math.inf
        self._failed = False

    def is_running(self, name: str) -> bool:
        """In any of the processes."""
        return bool(self._running[self._names.index(name)])

    def run(self, parts: Sequence[Part]) -> bool:
        """Until SIGTERM or SIGINT, and all parts have ended. False when one of them cannot work as it is set up."""
        self._processes = list(map(_Process, parts))
        lifeline, held = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        try:
            while not self._stopping or any(process.pid for process in self._processes):
                for process in self._processes:
                    if self._is_due(process):
                        self._start(process, lifeline, held, before)
                received = signal.sigtimedwait(_WAITED, self._pause())
                self._reap()
                self._end_late_ones()
                # Python answers with any number where this process was paused (SIGSTOP, a frozen container, a debugger)
                # and the time is over when it goes on.
                if received and received.si_signo in _ENDING:
                    self._stop()
        finally:
            os.close(held)  # ends whatever part is left
            os.close(lifeline)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return not self._failed

    def _is_due(self, process: _Process) -> bool:
        if process.pid or self._stopping:
            return False
        return process.due <= time.monotonic()

    def _pause(self) -> float:
        if self._stopping:
            return max(0.01, self._stop_by - time.monotonic())
        waiting = [process.due for process in self._processes if not process.pid]
        if not waiting:
            return _LONGEST_PAUSE
        return max(0.0, min(waiting) - time.monotonic())

    def _start(self, process: _Process, lifeline: int, held: int, mask: set[int | signal.Signals]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            _end_with_parent_at_once()
            os.close(held)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _work(process.part, lifeline)
        process.pid, process.started = pid, time.monotonic()
        self._mark(process)

    def _reap(self) -> None:
        for process in self._processes:
            if process.pid:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid:
                    self._ended(process, os.waitstatus_to_exitcode(status))

    def _ended(self, process: _Process, code: int) -> None:
        """code: the exit code; negative: the signal that ended it."""
        now = time.monotonic()
        process.pid = 0
        self._mark(process)
        if self._stopping:
            return
        if code == os.EX_CONFIG:  # it has said why: starting it again would change nothing
            self._failed = True
            self._stop()
            return
        if now - process.started >= _SOUND_SECONDS:
            process.deaths = 0
        pause = min(_FIRST_PAUSE * 2.0 ** min(process.deaths, 30), _LONGEST_PAUSE)
        process.deaths += 1
        process.due = now + pause
        structlog.get_logger().error("process_died", process=process.part.name, exit_code=code, again_in=pause)

    def _end_late_ones(self) -> None:
        if time.monotonic() < self._stop_by:
            return
        for process in self._processes:
            if process.pid:
                structlog.get_logger().warning("process_killed", process=process.part.name, after=STOP_SECONDS)
                os.kill(process.pid, signal.SIGKILL)
        self._stop_by = time.monotonic() + STOP_SECONDS

    def _stop(self) -> None:
        if not self._stopping:
            self._stop_by = time.monotonic() + STOP_SECONDS
        self._stopping = True
        for process in self._processes:
            if process.pid:
                os.kill(process.pid, STOP)

    def _mark(self, process: _Process) -> None:
        self._running[self._names.index(process.part.name)] = bool(process.pid)


def _work(part: Part, lifeline: int) -> NoReturn:
    """What a process of its own does. Its end runs none of the parent's clean-up."""
    code = 1
    try:
        threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
        part.run()
        code = 0
    except DiagnoserError as error:
        sys.stderr.write(f"diagnoser: {part.name}: {error}\n")
        code = os.EX_CONFIG if isinstance(error, BadInput | RuleFaults) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent_at_once() -> None:
    """Have the kernel kill this process when its parent is killed, however busy it is: until it has ended it holds the
    parent's address, where the next service is to listen. Only Linux can; ``_end_with_parent`` does it anywhere."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_parent(lifeline: int) -> None:
    """Only the parent holds the other end: reading ends when the parent does, also after SIGKILL."""
    os.read(lifeline, 1)
    os._exit(1)
