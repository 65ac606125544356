"""Several files on several cores."""

import os
import signal
from pathlib import Path

import pytest

from diagnoser.commands import logs
from diagnoser.model.errors import BadInput

PATHS = [Path(name) for name in "abcde"]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def process_of(path: Path) -> tuple[str, int]:
    return path.name, os.getpid()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_results_come_in_the_order_of_the_files() -> None:
    """From other processes than this one; from this one where the work has to be done alone."""
    results = [*logs.each_on_a_core(process_of, PATHS, alone=False)]
    assert [name for name, _ in results] == [*"abcde"]
    assert os.getpid() not in {process for _, process in results}
    assert {process for _, process in logs.each_on_a_core(process_of, PATHS, alone=True)} == {os.getpid()}


def die(path: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_is_killed_ends_the_command() -> None:
    """Nobody waits for ever for its result."""
    with pytest.raises(BadInput, match="one file at a time"):
        list(logs.each_on_a_core(die, PATHS, alone=False))
