"""What a new user meets in the first hour."""

import runpy
import socket
from pathlib import Path

import pytest

from diagnoser import processes
from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput
from diagnoser.observability import logging
from tests.command_line import invoke

SETUP = Path(__file__).resolve().parents[2] / "deploy" / "setup" / "install.py"


@pytest.mark.parametrize(
    ("version", "supported"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)]
)
def test_make_names_the_pythons_that_it_needs(version: tuple[int, int], supported: bool) -> None:
    """In one line, before anything is installed."""
    why = runpy.run_path(str(SETUP))["unsupported"](version)
    assert (why == "") is supported
    assert supported or ("3.11, 3.12 or 3.13" in why and "\n" not in why)


def test_a_taken_port_is_reported_before_a_database_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left in the folder of a service that could not start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging, "set_up", lambda **given: None)  # it would hold for the tests that follow
    monkeypatch.setattr(processes, "_ADDRESS_SECONDS", 0.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(BadInput, match=r"cannot listen on .*: Address already in use"):
            processes.serve(Settings(port=other.getsockname()[1]))
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_becomes_free_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a service that was killed may hold it for a moment."""
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    other.listen()
    monkeypatch.setattr("time.sleep", lambda seconds: other.close())
    processes._wait_for_address(Settings(port=other.getsockname()[1]))
    assert other.fileno() == -1


def test_a_folder_without_rules_is_no_success(tmp_path: Path) -> None:
    """Also where a file lies one level too deep: the message says where it was expected."""
    with pytest.raises(BadInput, match="holds no rules"):
        invoke("rules", "test", tmp_path)
    deep = tmp_path / "site" / "infrastructure" / "switch.yaml"
    deep.parent.mkdir(parents=True)
    deep.write_text("id: switch\n")
    with pytest.raises(BadInput, match=r"switch\.yaml lies elsewhere"):
        invoke("rules", "test", tmp_path)
