"""Runs a command and passes its output on byte for byte, with a copy for whoever ships it. The command's exit is ours.

What a program prints to is a terminal for it if it is one for us, else a pipe. Where standard output and standard
error lead to the same place they share one channel, so that their order stays. Linux.
"""

from __future__ import annotations

import array
import fcntl
import os
import pty
import resource
import select
import signal
import sys
import termios
import threading
import time
import tty
from contextlib import suppress
from typing import Callable, Mapping, Sequence

PIPE_BYTES = CHUNK_BYTES = 1 << 20
SET_PIPE_SIZE = 1031  # fcntl.F_SETPIPE_SZ is new in Python 3.10
PAUSE_SECONDS = 0.002
"""After a read of little: a program that writes line by line would else wake us for each, and wait for it."""
LITTLE_BYTES = PIPE_BYTES // 4
QUIET_SECONDS = 0.2
"""An empty channel that is still open so long after the command has ended is held by a process it left behind."""

ENDING = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
FORWARDED = ENDING | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
FROM_TERMINAL = frozenset((signal.SIGINT, signal.SIGQUIT, signal.SIGHUP))
"""The terminal sends these to the command as well: forwarded, they would come twice."""
KERNEL = 0x80
"""``si_code`` of a signal that no process sent."""
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and other programs do not."""

Copy = Callable[[str, bytes], None]
"""(name of the stream, bytes that the command printed). Must not block."""


class Channel:
    """One way out of the command, such as "stdout". reader: our end. writer: the command's end. target: where it goes
    to. is_terminal: a pseudo-terminal, for a program that prints to a terminal."""

    def __init__(self, name: str, target: int) -> None:
        self.name, self.target = name, target
        self.is_terminal = os.isatty(target)
        self._has_room = False
        if self.is_terminal:
            self.reader, self.writer = pty.openpty()
            tty.setraw(self.writer)  # bytes pass as they are: the real terminal does what terminals do with them
            self.resize()
        else:
            self.reader, self.writer = os.pipe()
            with suppress(OSError):  # the user's share of pipe memory is used up: the usual size does as well
                fcntl.fcntl(self.reader, SET_PIPE_SIZE, PIPE_BYTES)
                self._has_room = True
        self._stop_reader, self._stop_writer = os.pipe()
        self.fault = ""
        self._pause = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.copy: Copy = _nowhere

    def resize(self) -> None:
        """The pseudo-terminal, if it is one, is as large as the terminal."""
        if not self.is_terminal:
            return
        end = self.writer
        if end < 0:
            end = self.reader
        with suppress(OSError):
            size = fcntl.ioctl(self.target, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(end, termios.TIOCSWINSZ, size)

    def start(self, copy: Copy) -> None:
        """The command has its end: ours of it is closed, so that the channel ends with the command."""
        os.close(self.writer)
        self.writer = -1
        self.copy = copy
        self.thread.start()

    def stop(self) -> bool:
        """Waits until everything that came was passed on. Whether the channel is still open."""
        os.write(self._stop_writer, b"x")
        self.thread.join()
        return self.reader >= 0

    def pass_on_rest(self) -> None:
        """Pass on, without a copy, until the channel ends."""
        self.copy = _nowhere
        while self._pass_on():
            pass

    @property
    def is_empty(self) -> bool:
        waiting = array.array("i", [0])
        try:
            fcntl.ioctl(self.reader, termios.FIONREAD, waiting)
        except OSError:
            return True
        return waiting[0] == 0

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        poll.register(self._stop_reader, select.POLLIN)
        while True:
            ready = {handle for handle, _ in poll.poll()}
            if self.reader not in ready:
                return  # told to stop, and nothing is left to read
            if not self._pass_on():
                os.close(self.reader)
                self.reader = -1
                return
            if self._pause:
                time.sleep(self._pause)

    def _pass_on(self) -> bool:
        """False at the end of the channel, or when nobody reads what comes out: the command is to notice that."""
        try:
            data = os.read(self.reader, CHUNK_BYTES)
        except OSError:  # EIO: no process has the pseudo-terminal open
            return False
        if not data:
            return False
        try:
            self.copy(self.name, data)
        except Exception as error:  # the copy is ours to lose, the output is not
            self.copy, self.fault = _nowhere, "{} is not shipped any more: {}".format(self.name, type(error).__name__)
        self._pause = 0.0
        if self._has_room and len(data) < LITTLE_BYTES:
            self._pause = PAUSE_SECONDS
        try:
            write_all(self.target, data)
        except BrokenPipeError:
            return False
        except OSError as error:  # a full disk must not stop the command
            if not self.fault:
                self.fault = "{} cannot be written: {}".format(self.name, error.strerror)
        return True


class Command:
    """A running command. stopped_by: the first signal that asked it to end, 0 for none. Raises OSError when it cannot
    be started."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], copy: Copy) -> None:
        self.stopped_by = 0
        self.channels = channels()
        self._handled = _handled()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it never hears how a child ended
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        actions: list[tuple[int, ...]] = []
        for channel, names in self.channels.items():
            actions += [(os.POSIX_SPAWN_DUP2, channel.writer, name) for name in names]
        try:
            self.pid = os.posix_spawnp(
                words[0], list(words), dict(environment), file_actions=actions, setsigmask=before, setsigdef=RESTORED
            )
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
        for channel in self.channels:
            channel.start(copy)

    def wait(self) -> int:
        """Forwards signals until the command ends. Its status, as ``os.waitpid`` gives it."""
        while True:
            info = signal.sigwaitinfo(self._handled)
            if info.si_signo == signal.SIGCHLD:
                status = self._reap()
                if status is not None:
                    return status
            elif info.si_signo == signal.SIGWINCH:
                for channel in self.channels:
                    channel.resize()
            else:
                self._forward(info)

    def _forward(self, info: signal.struct_siginfo) -> None:
        """Pass a signal on to the command, unless the terminal has sent it to the command as well."""
        number = info.si_signo
        if number in ENDING and not self.stopped_by:
            self.stopped_by = number
        if number not in FROM_TERMINAL or info.si_code != KERNEL:
            os.kill(self.pid, number)

    def drain(self) -> None:
        """Waits for what the command printed last. A process that it left behind may hold a channel open for ever."""
        for channel in self.channels:
            while channel.thread.is_alive():
                channel.thread.join(QUIET_SECONDS)
                if channel.thread.is_alive() and channel.is_empty:
                    break

    def leave(self) -> None:
        """Lets a process of its own pass on what processes that the command left behind still print."""
        still_open = [channel for channel in self.channels if channel.stop()]
        if still_open and os.fork() == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)
                relays = [threading.Thread(target=channel.pass_on_rest) for channel in still_open]
                for relay in relays:
                    relay.start()
                for relay in relays:
                    relay.join()
            finally:
                os._exit(0)  # it is not us: nothing of ours may happen twice

    @property
    def faults(self) -> list[str]:
        return [channel.fault for channel in self.channels if channel.fault]

    def _reap(self) -> int | None:
        """All that have ended: as the first process of a container, orphans come to us."""
        status = None
        while True:
            try:
                pid, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return status
            if pid == 0:
                return status
            if pid == self.pid:
                status = ended


def channels() -> dict[Channel, set[int]]:
    """Each channel with the file descriptors of the command that lead into it."""
    if _identity(1) == _identity(2):
        return {Channel("stdout", 1): {1, 2}}
    return {Channel("stdout", 1): {1}, Channel("stderr", 2): {2}}


def exit_as(status: int) -> int:
    """Ends this process by the signal that ended the command; else returns its exit code."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # one core is enough
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # the first process of a container does not die of its own signals


def write_all(target: int, data: bytes) -> None:
    """Raises OSError. Waits where the target takes nothing now, as the command itself would."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            select.select([], [target], [])


def _handled() -> set[signal.Signals]:
    """Signals that we wait for. One that is ignored, as nohup has it, stays so for us and the command."""
    waited = {number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    return waited | {signal.SIGCHLD, signal.SIGWINCH}


def _identity(handle: int) -> tuple[object, ...]:
    """Device and number of the file, which tell whether two descriptors lead to the same place."""
    try:
        status = os.fstat(handle)
    except OSError:
        return (handle,)
    return (status.st_dev, status.st_ino, status.st_rdev)


def _nowhere(name: str, data: bytes) -> None:
    pass
