"""Waits of the demos have an end and say what they wait for; whatever ends a demo ends what it started."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

console = Console(width=110 if not sys.stdout.isatty() else None)

STOP_SECONDS = 30
SILENT_SECONDS = 5
"""A wait that takes longer says so."""


def end_on_sigterm() -> None:
    """Let SIGTERM end the demo as Ctrl-C does: everything that was started is stopped."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a program that the demo started; kill it where it does not end by itself."""
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(look: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    """The first true answer of ``look``. Ends the demo with a message where there is none in time."""
    begin, pause, silent = time.monotonic(), 0.1, True
    while time.monotonic() < begin + seconds:
        if answer := look():
            return answer
        if silent and time.monotonic() > begin + SILENT_SECONDS:
            console.print(f"waiting until {what} (at most {seconds:.0f} s)", style="dim", highlight=False)
            silent = False
        time.sleep(pause)
        pause = min(pause * 1.2, 0.5)
    raise SystemExit(f"gave up after {seconds:.0f} s: waited until {what}")
