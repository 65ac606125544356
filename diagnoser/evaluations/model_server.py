"""The model server of a batch: started once, checked before each command, started again when it dies.

A keeper starts it, in a process group of both that is ended with the batch. The keeper waits for the end of a pipe that
only the runner of the batch can write to: it notices, too, when the runner is killed. Where the keeper is killed, the
runner ends the group. Standard library only, as the runner.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STARTS = 4
"""Of a server in a batch, the first one counted."""
ANSWER_SECONDS = 30.0
"""How long a server that was ready may be silent before it is started again."""
GRACE_SECONDS = 3.0
TAIL = 2000
_ADDRESS = "127.0.0.1"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_ENGINES = ("inspect_engine", "lm_eval_engine", "opencompass_engine")
_PROGRAMS = {name: str(Path(__file__).with_name("engines") / f"{name}.py") for name in _ENGINES}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""No proxy of the environment stands between this machine and itself."""


@dataclass(slots=True)
class ModelServer:
    """spec: of the order, with command, ready, url and seconds.

    log: of the server, over all of its starts.
    kept: descriptors that stay open as long as it runs.
    """

    spec: Mapping[str, Any]
    checkpoint: str
    log: Path
    environment: Mapping[str, str]
    kept: Sequence[int]
    port: int = 0
    starts: int = 0
    _keeper: subprocess.Popen[bytes] | None = None
    _lifeline: int = field(default=-1)

    @property
    def values(self) -> dict[str, str]:
        """Placeholders of the commands that ask it."""
        return {"port": str(self.port), "url": f"http://{_ADDRESS}:{self.port}{self.spec['url']}"}

    def wait_ready(self) -> None:
        """Return once the server answers, after starting it where it does not run. Raises SystemExit where it does not
        get ready."""
        if self._answers_within(ANSWER_SECONDS):
            return
        while self.starts < STARTS:
            self.close()
            self._start()
            if self._answers_within(self.spec["seconds"]):
                return
        self.close()
        raise SystemExit(f"the server did not get ready in {self.starts} starts\n{self._tail()}")

    def close(self) -> None:
        """End the server, and return when it is gone."""
        if self._keeper is None:
            return
        os.close(self._lifeline)
        os.waitid(os.P_PID, self._keeper.pid, os.WEXITED | os.WNOWAIT)
        with suppress(OSError):  # what is left where the keeper was killed; its number stays its own until wait
            os.killpg(self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()
        self._keeper = None

    def _start(self) -> None:
        self.starts += 1
        self.port = _free_port()
        values = {"port": str(self.port), "checkpoint": self.checkpoint}
        words = filled(self.spec["command"], values)
        end_of_keeper, self._lifeline = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._keeper = subprocess.Popen(  # noqa: S603 - the suite's own command, as words
                    [sys.executable, "-P", __file__, str(end_of_keeper), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    pass_fds=[*self.kept, end_of_keeper],
                    start_new_session=True,  # a signal to the group of the runner must not end the keeper first
                )
        finally:
            os.close(end_of_keeper)

    def _answers_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._is_kept():
            if self._answers():
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return False

    def _is_kept(self) -> bool:
        if self._keeper is None:
            return False
        return os.waitid(os.P_PID, self._keeper.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _answers(self) -> bool:
        address = f"http://{_ADDRESS}:{self.port}{self.spec['ready']}"
        try:
            with _DIRECT.open(address, timeout=5) as answer:
                return 200 <= int(answer.status) < 300
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def _tail(self) -> str:
        with suppress(OSError):
            return self.log.read_text(errors="replace")[-TAIL:].strip()
        return ""


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Put values in place of placeholders in braces, also of the programs that come with this package."""
    known = {**_PROGRAMS, **values}
    return [_PLACEHOLDER.sub(lambda name: known.get(name[1], name[0]), word) for word in words]


def _free_port() -> int:
    """Find a port that nobody listens at. Where somebody takes it first, the server ends and is started again."""
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        return int(probe.getsockname()[1])


def keep(lifeline: int, words: Sequence[str]) -> None:
    """Run the server until it ends, or nobody has the other end of ``lifeline`` any more. Then end this process group:
    the server, what it has started, and this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL)  # noqa: S603
        while server.poll() is None:
            if select.select([lifeline], [], [], 0.2)[0]:
                break
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_SECONDS)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
    finally:
        sys.stderr.flush()
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    keep(int(sys.argv[1]), sys.argv[2:])
