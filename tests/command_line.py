"""The command line inside the test's process: what a command does, without starting Python for each.

That the installed command starts, ends and prints its errors is what ``tests.e2e`` shows with real processes.
"""

from contextlib import ExitStack
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


def _analyzer(settings: Settings) -> LogAnalyzer:
    """The shipped rules are read once in a process."""
    return loader.load_analyzer(settings) if settings.rules_dir else accuracy_bars.load()
