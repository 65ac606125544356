"""The command line inside the test's process: what a command does, without starting Python for each.

That the installed command starts, ends and prints its errors is what ``tests.e2e`` shows with real processes.
"""

import json
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from diagnoser.cli import cli
from diagnoser.commands import logs, prompts, rule_trial, rules, scoring
from diagnoser.config import loader
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.observability import logging
from tests import accuracy_bars


def invoke(*words: str | Path, **settings: str) -> Result:
    """settings: of the environment, without their prefix. An error that is no exit is raised."""
    environment = {f"DIAGNOSER_{name}": value for name, value in settings.items()}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for module in (logs, prompts, rule_trial, rules, scoring):
            patch.setattr(module, "load_analyzer", _analyzer)
        patch.setattr(logging, "set_up", lambda **given: None)  # it would hold for the tests that follow
        stack.enter_context(capture_logs())
        return CliRunner().invoke(cli, [*map(str, words)], env=environment, catch_exceptions=False)


@contextmanager
def program(folder: Path) -> Iterator[Path]:
    """A program that others start as ``diagnoser``. It hands its arguments to this process, which does as told: code
    and rules are loaded once for all of its starts."""
    path, address = folder / "diagnoser", folder / "socket"
    path.write_text(_PROGRAM.format(python=sys.executable, address=str(address)))
    path.chmod(0o755)
    with socketserver.UnixStreamServer(str(address), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        done = invoke(*json.loads(self.rfile.readline()))
        self.wfile.write(json.dumps([done.stdout, done.stderr, done.exit_code]).encode())


_PROGRAM = """#!{python} -IS
import json, socket, sys

with socket.socket(socket.AF_UNIX) as ask:
    ask.connect({address!r})
    ask.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    output, errors, code = json.loads(ask.makefile().read())
sys.stdout.write(output)
sys.stderr.write(errors)
sys.exit(code)
"""


def _analyzer(settings: Settings) -> LogAnalyzer:
    """The shipped rules are read once in a process."""
    return loader.load_analyzer(settings) if settings.rules_dir else accuracy_bars.load()
