"""Runs queries on the node that it is started on, and prints each answer as one line of JSON.

It is sent to the node as the text of ``python3 -I -c``, so it is one file of the standard library, for Python 3.6 and
later. Its argument is a list of ``{"id", "argv", "seconds", "bytes"}``. Commands run beside each other, without a
shell; what they print is bounded: the beginning and the end of it. exit_code is null for one that is missing or took
too long.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

HEAD, TAIL = 8192, 24576
"""Bytes that are kept of the beginning and of the end of what a command prints."""
KILL_SECONDS = 1.0


class QueryRun(threading.Thread):
    """One command. code: None until it has ended. Nobody waits for a process that the kernel does not let go."""

    def __init__(self, argv: "list[str]", tail: int = 0) -> None:
        super().__init__(daemon=True)
        self.argv = argv
        self.limit = tail or TAIL
        self.code: int | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.head, self.tail, self.size = b"", b"", 0

    def run(self) -> None:
        try:
            self.process = subprocess.Popen(  # noqa: S603 -- no shell, and only what the agent's own table has
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=dict(os.environ, LC_ALL="C"),
                start_new_session=True,
            )
        except OSError as error:
            self.head = ("%s: %s" % (self.argv[0], error.strerror or error)).encode()  # noqa: UP031
            self.size = len(self.head)
            return
        assert self.process.stdout is not None
        while True:
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                break
            self.keep(data)
        self.code = self.process.wait()

    def keep(self, data: bytes) -> None:
        room = HEAD - len(self.head)
        self.size += len(data)
        self.head += data[:room]
        self.tail = (self.tail + data[max(room, 0) :])[-self.limit :]

    def text(self) -> str:
        """Whole lines where the middle is cut out."""
        head, tail = self.head, self.tail
        if self.size > HEAD + self.limit:
            head = head.rpartition(b"\n")[0] + b"\n[...]\n"
            tail = tail.partition(b"\n")[2]
        return (head + tail).decode("utf-8", "replace")

    def stop(self) -> None:
        if self.process is not None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.join(KILL_SECONDS)


def answer(query: "dict[str, Any]", run: QueryRun, started: float) -> "dict[str, Any]":
    run.join(max(0.0, started + query["seconds"] - time.monotonic()))
    late = run.is_alive()
    if late:
        run.stop()
    text = run.text() + ("\nno answer within %g s" % query["seconds"] if late else "")  # noqa: UP031
    return {"id": query["id"], "exit_code": None if late else run.code, "output": text.lstrip("\n")}


def main() -> None:
    queries = json.loads(sys.argv[1])
    started, runs = time.monotonic(), [QueryRun(query["argv"], query.get("bytes", 0)) for query in queries]
    for run in runs:
        run.start()
    for query, run in zip(queries, runs):  # noqa: B905 -- strict= is newer than the Python of some nodes
        print(json.dumps(answer(query, run, started)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
