"""`check-config`: every fault at once; and where the service makes a new database."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diagnoser.adapters.sql.administration import check_place
from diagnoser.cli import cli
from diagnoser.model.errors import BadInput

FAULTY = {
    "DIAGNOSER_FOO": "1",
    "DIAGNOSER_PORT": "abc",
    "DIAGNOSER_TOKENS": "nope:x",
    "DIAGNOSER_ALLOWED_HOSTS": "a b",
    "DIAGNOSER_MAPPING": "/no/such/file",
    "DIAGNOSER_WEBHOOK_URL": "ftp://x",
    "DIAGNOSER_APPRISE_URLS": "zzz",
    "DIAGNOSER_ARCHIVE": "tape:",
    "DIAGNOSER_RULES_DIR": "/no/such/rules",
    "DIAGNOSER_REDIS_URL": "redis://127.0.0.1:9/0",
    "DIAGNOSER_LLM_URL": "http://127.0.0.1:9/v1",
    "DIAGNOSER_LLM_MODEL": "m",
    "DIAGNOSER_DATABASE_URL": "sqlite:////no/such/folder/diagnoser.db",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", f"sqlite:///{tmp_path}/diagnoser.db")
    return monkeypatch


def test_every_fault_is_told_at_once(environment: pytest.MonkeyPatch) -> None:
    """One of each kind, of files and of servers, and the command fails."""
    for name, value in FAULTY.items():
        environment.setenv(name, value)
    result = CliRunner().invoke(cli, ["check-config", "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 1 and not told["ok"]
    parts = [fault.partition(":")[0] for fault in told["faults"]]
    expected = {"settings", "tokens", "allowed hosts", "mapping", "webhook", "alerts", "archive", "rules and policy",
                "redis", "model", "database"}  # fmt: skip
    assert set(parts) == expected and parts.count("settings") == 2


def test_a_sound_configuration_passes_and_nothing_is_made(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also before the first start; the database is told to be made then, and is not there yet."""
    result = CliRunner().invoke(cli, ["check-config", "--json"])
    assert result.exit_code == 0, result.output
    details = {part["part"]: part["detail"] for part in json.loads(result.stdout)["parts"]}
    assert details["database"] == "a new one is made at the start"
    assert list(tmp_path.iterdir()) == []


def test_offline_nobody_is_asked(environment: pytest.MonkeyPatch) -> None:
    """Servers that are away are no fault then."""
    environment.setenv("DIAGNOSER_REDIS_URL", "redis://127.0.0.1:9/0")
    assert CliRunner().invoke(cli, ["check-config", "--offline"]).exit_code == 0
    assert CliRunner().invoke(cli, ["check-config"]).exit_code == 1


def test_a_mistyped_path_makes_no_database(tmp_path: Path) -> None:
    """A folder that is not there, or another database beside it, means a slip; an empty folder means a first start."""
    url, usual = f"sqlite:///{tmp_path}/diagnosr.db", "sqlite:///data/diagnoser.db"
    assert check_place(url, usual) and check_place(usual, usual)
    with pytest.raises(BadInput, match="there is no folder"):
        check_place(f"sqlite:///{tmp_path}/no/diagnoser.db", usual)
    with closing(sqlite3.connect(tmp_path / "diagnoser.db")) as other:
        other.execute("CREATE TABLE a (b)")
    with pytest.raises(BadInput, match=r"no database .*diagnosr\.db, but diagnoser\.db beside it"):
        check_place(url, usual)
    assert not check_place(f"sqlite:///{tmp_path}/diagnoser.db", usual)
    assert not check_place("postgresql://somewhere/x", usual)
