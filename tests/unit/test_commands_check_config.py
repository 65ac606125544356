"""`check-config`: every fault at once; and where the service makes a new database."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diagnoser.adapters.sql.administration import check_place
from diagnoser.adapters.sql.store import open_store
from diagnoser.cli import cli
from diagnoser.model.errors import BadInput
from diagnoser.model.people import Role, User

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
    "DIAGNOSER_TRUSTED_PROXIES": "nginx",
    "DIAGNOSER_TLS_CERTIFICATE": "/no/such/certificate",
    "DIAGNOSER_OIDC_ISSUER": "login.example",
}
URLS = {
    "/var/lib/diagnoser.db": "must be sqlite:///path or postgresql://",
    "mysql://u:hidden@h/x": "must be sqlite:///path or postgresql://",
    "sqlite://data/diagnoser.db": "three slashes",
    "postgresql://u:hid@den@h/x": "%40",
    "postgresql://u:hid@d/en@h/x": "%40",
    "postgresql://u:hidden@127.0.0.1:9/x": "127.0.0.1:9/x: ConnectionRefusedError",
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
    expected = {
        *(
            "settings",
            "tokens",
            "allowed hosts",
            "mapping",
            "webhook",
            "alerts",
            "archive",
            "rules and policy",
            "redis",
        ),
        *("model", "database address", "trusted proxies", "certificate", "identity provider"),
    }
    assert set(parts) == expected and parts.count("settings") == 2


def test_a_sound_configuration_passes_and_nothing_is_made(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also before the first start; the database is told to be made then, and is not there yet."""
    result = CliRunner().invoke(cli, ["check-config", "--json"])
    assert result.exit_code == 0, result.output
    details = {part["part"]: part["detail"] for part in json.loads(result.stdout)["parts"]}
    assert details["database"] == f"{tmp_path}/diagnoser.db, made at the start"
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_away_is_told_with_its_address(environment: pytest.MonkeyPatch) -> None:
    """And without what else the setting holds."""
    environment.setenv("DIAGNOSER_LLM_URL", "http://user:hidden@127.0.0.1:9/v1")
    environment.setenv("DIAGNOSER_LLM_MODEL", "m")
    output = CliRunner().invoke(cli, ["check-config"]).output
    assert "model: 127.0.0.1:9 (DIAGNOSER_LLM_URL): model_unavailable" in output
    assert "hidden" not in output


@pytest.mark.parametrize("url", URLS)
def test_a_mistyped_database_url_is_told_without_its_password(environment: pytest.MonkeyPatch, url: str) -> None:
    """With what is wrong with it."""
    environment.setenv("DIAGNOSER_DATABASE_URL", url)
    result = CliRunner().invoke(cli, ["check-config"])
    assert result.exit_code == 1
    assert URLS[url] in result.output
    assert "hid" not in result.output and "den" not in result.output.replace("identity", "")


async def test_users_alone_are_enough_beyond_loopback(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As they are for the service."""
    environment.setenv("DIAGNOSER_HOST", "0.0.0.0")
    assert "needs tokens" in (await asyncio.to_thread(CliRunner().invoke, cli, ["check-config"])).output
    store = await open_store(f"sqlite:///{tmp_path}/diagnoser.db")
    try:
        await store.users.add(User("maria", Role.ADMIN, 0.0), "hash")
    finally:
        await store.close()
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["check-config"])
    assert result.exit_code == 0, result.output


def test_a_receiver_at_a_private_address_is_told(environment: pytest.MonkeyPatch) -> None:
    """Before the first plan is not delivered to it."""
    environment.setenv("DIAGNOSER_WEBHOOK_URL", "http://127.0.0.1:9/hook")
    environment.setenv("DIAGNOSER_WEBHOOK_SECRET", "whsec_c2VjcmV0")
    assert "DIAGNOSER_ALLOW_PRIVATE_TARGETS" in CliRunner().invoke(cli, ["check-config"]).output
    environment.setenv("DIAGNOSER_ALLOW_PRIVATE_TARGETS", "true")
    assert CliRunner().invoke(cli, ["check-config"]).exit_code == 0


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
