"""What a start loads."""

import subprocess
import sys

import pytest

from diagnoser.cli import DEFERRED, Deferred

SELDOM = {"alembic", "google", "openai", "redis", "slack_sdk"}


def test_what_most_sites_do_not_use_is_not_loaded() -> None:
    """The clients of a model server, of Redis and of Slack, protobuf, and what migrates a schema, wait
    until they are needed: each takes up to a tenth of the whole start."""
    loaded = _loaded_by("import diagnoser.cli, diagnoser.app")
    assert "fastapi" in loaded
    assert SELDOM.isdisjoint(name.partition(".")[0] for name in loaded)


def test_the_list_of_commands_loads_none_of_them() -> None:
    """`diagnoser --help` answers in a third of a second: neither a command that is deferred nor a library of the
    service is loaded for it."""
    loaded = _loaded_by("import diagnoser.cli; diagnoser.cli.cli(['--help'], standalone_mode=False)")
    assert loaded.isdisjoint(command.module for command in DEFERRED)
    assert loaded.isdisjoint({"fastapi", "numpy", "pydantic", "sqlalchemy", "httpx", "yaml"})


def test_what_looks_at_files_loads_no_part_of_the_service() -> None:
    """A person waits for `diagnoser diagnose FILE`: it loads neither the event loop nor records of the service."""
    loaded = _loaded_by("import diagnoser.commands.logs")
    assert "diagnoser.diagnosis.pipeline" in loaded
    service = {"asyncio", "diagnoser.model.alerts", "diagnoser.model.evaluations", "diagnoser.ports", "fastapi"}
    assert loaded.isdisjoint(service | {"httpx", "sqlalchemy"})


@pytest.mark.parametrize("command", DEFERRED, ids=lambda command: command.name)
def test_a_command_has_the_words_of_its_line_in_the_list(command: Deferred) -> None:
    """The list of commands, written without loading them, says what each says of itself."""
    assert " ".join(command.load().help.split()).startswith((command.help or "").removesuffix("."))


def _loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())
