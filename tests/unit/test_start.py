"""What a start loads."""

import os
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


@pytest.mark.parametrize(("start", "most"), [("commands.logs", 180), ("processes", 515)])
def test_a_start_loads_few_modules(start: str, most: int) -> None:
    """Each module that a start loads costs every start: a little more room than `diagnose` (173) and `serve` (504)
    need is all that there is."""
    loaded = _loaded_by(f"import diagnoser.{start}")
    assert sum(name.startswith("diagnoser.") for name in loaded) <= most


def test_numpy_is_loaded_without_threads_and_leaves_no_trace() -> None:
    """A command that loads numpy runs on one thread, and what it starts itself sees the environment as it was."""
    code = (
        "import os; from diagnoser.cli import DEFERRED\n"
        "next(command for command in DEFERRED if command.name == 'diagnose').load()\n"
        "threads = len(os.listdir('/proc/self/task')) if os.path.isdir('/proc/self/task') else 1\n"
        "import sys; assert 'numpy' in sys.modules\n"
        "print(threads, os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["1", "None"], done.stderr


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
