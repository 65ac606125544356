"""`diagnoser users` and `diagnoser audit`: people are made on the command line, and what was done is shown there."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from typer.testing import CliRunner, Result

from diagnoser.adapters.passwords import Argon2Passwords
from diagnoser.adapters.sql.store import open_store
from diagnoser.cli import cli
from diagnoser.model.errors import BadInput, Conflict, NotFound
from diagnoser.model.people import User, password_fault, prepared_password

PASSWORD = "correct horse battery"
GUESSABLE = (
    "passwordpassword",
    "P@ssw0rd2026!!",
    "diagnoserdiagnoser",
    "qwertyuiop1234",
    "abcdefghijklmnop",
    "tigertigertiger",
)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"sqlite:///{tmp_path}/test.db"
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", found)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(Argon2Passwords, "_hasher", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    return found


def run(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(cli, [*arguments], input=given)


def add(name: str = "maria", role: str = "operator", password: str = PASSWORD) -> Result:
    return run("users", "add", name, "--role", role, given=f"{password}\n")


def stored(url: str, name: str) -> tuple[User, str]:
    async def read() -> tuple[User, str]:
        store = await open_store(url)
        try:
            found = await store.users.find_with_password(name)
            assert found is not None
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_user_is_made_with_a_password_from_standard_input(url: str) -> None:
    """Of the password a slow hash is stored; the first user is announced."""
    first = add()
    assert first.exit_code == 0 and "first user" in first.stderr
    assert "first user" not in add("ida", "admin").stderr
    user, hashed = stored(url, "maria")
    assert (user.name, user.role, user.disabled) == ("maria", "operator", None)
    assert hashed.startswith("$argon2id$") and PASSWORD not in hashed
    assert asyncio.run(Argon2Passwords().verify(hashed, PASSWORD))
    assert not asyncio.run(Argon2Passwords().verify(hashed, PASSWORD + " "))


@pytest.mark.parametrize("name", ["", "a b", "slack:ann", "anonymous", "recovery", "x" * 101, "-x"])
def test_a_name_that_means_somebody_else_is_refused(url: str, name: str) -> None:
    """Or that history could not show."""
    assert isinstance(run("users", "add", "--role", "viewer", "--", name, given=PASSWORD).exception, BadInput)


@pytest.mark.parametrize("password", GUESSABLE)
def test_a_password_that_is_easy_to_guess_is_refused(url: str, password: str) -> None:
    """Too short, too long, the name, few characters."""
    assert isinstance(add(password=password).exception, BadInput)


def test_a_long_password_may_hold_the_name() -> None:
    """And characters that a keyboard composes count once."""
    assert password_fault("the mare of maria eats quince", "maria") == ""
    assert prepared_password("e\u0301") == "\u00e9"


def test_a_name_is_given_once(url: str) -> None:
    """Also after the account is disabled."""
    add()
    assert isinstance(add().exception, Conflict)
    assert isinstance(run("users", "disable", "mario").exception, NotFound)


def test_accounts_are_changed_and_listed(url: str) -> None:
    """Role, password, disabled and enabled again; as a table and as JSON."""
    add()
    run("users", "role", "maria", "admin")
    before = stored(url, "maria")[1]
    run("users", "password", "maria", given="another horse battery\n")
    run("users", "disable", "maria")
    user, after = stored(url, "maria")
    assert user.role == "admin" and user.disabled is not None and before != after
    assert re.search(r"maria +admin +with a password +never +disabled", run("users", "list").stdout)
    run("users", "enable", "maria")
    (listed,) = [json.loads(line) for line in run("users", "list", "--json").stdout.splitlines()]
    assert (listed["name"], listed["role"], listed["disabled"]) == ("maria", "admin", None)
    assert "argon2" not in run("users", "list", "--json").stdout


def test_what_commands_do_is_in_the_audit_log(url: str) -> None:
    """In the name of the user of the machine; hashes and passwords are not."""
    add()
    run("users", "role", "maria", "viewer")
    run("users", "password", "maria", given="another horse battery\n")
    run("token", "create", "shipper", "--scope", "ingest")
    run("token", "revoke", "shipper")
    entries = [json.loads(line) for line in run("audit", "--json").stdout.splitlines()]
    assert [(entry["action"], entry["object_id"]) for entry in entries] == [
        ("diagnoser token revoke", "shipper"),
        ("diagnoser token create", "shipper"),
        ("diagnoser users password", "maria"),
        ("diagnoser users role", "maria"),
        ("diagnoser users add", "maria"),
    ]
    assert {entry["actor_kind"] for entry in entries} == {"command"}
    assert (entries[3]["before"], entries[3]["after"]) == ({"role": "operator"}, {"role": "viewer"})
    shown = run("audit", "--object", "user", "--within", "1h").stdout
    assert "role: operator -> viewer" in shown and "shipper" not in shown
    assert "argon2" not in str(entries) and "battery" not in str(entries)
    assert run("audit", "--limit", "2", "--json").stdout.count("\n") == 2
