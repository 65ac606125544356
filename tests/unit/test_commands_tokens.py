"""`diagnoser token`: a secret is shown once, and what is stored of it opens nothing."""

import asyncio
import re
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from diagnoser.adapters.sql.store import open_store
from diagnoser.cli import cli
from diagnoser.model.access import StoredToken, hash_of
from diagnoser.model.errors import BadInput, Conflict, NotFound
from diagnoser.model.spans import seconds

SECRET = re.compile(r"dgn_[A-Za-z0-9_-]{43}")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"sqlite:///{tmp_path}/test.db"
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", found)
    monkeypatch.setenv("COLUMNS", "200")
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["token", *arguments])


def stored(url: str) -> list[StoredToken]:
    async def read() -> list[StoredToken]:
        store = await open_store(url)
        try:
            return await store.tokens.list_all()
        finally:
            await store.close()

    return asyncio.run(read())


def secret_of(result: Result) -> str:
    """Standard output holds the secret and nothing else, for programs."""
    assert result.exit_code == 0, result.output
    assert SECRET.fullmatch(result.stdout.strip()), result.stdout
    return result.stdout.strip()


def test_a_token_is_made(url: str) -> None:
    """With what it may do; of the secret only the hash is stored, and it differs each time."""
    first = secret_of(run("create", "slurm-east", "--scope", "agent", "--cluster", "east", "--expires", "90d"))
    second = secret_of(run("create", "maria", "--scope", "operate", "--tenant", "vision"))
    maria, agent = stored(url)
    assert first != second and (maria.hash, agent.hash) == (hash_of(second), hash_of(first))
    found = agent.credential
    assert (found.scope, found.cluster, found.expires) == ("agent", "east", found.created + 90 * 86_400)
    assert (maria.credential.tenant, maria.credential.expires) == ("vision", None)
    assert first not in repr(stored(url))


def test_the_first_token_is_announced(url: str) -> None:
    """From then on the service asks everybody for one."""
    assert "first token" in run("create", "a", "--scope", "read").stderr
    assert "first token" not in run("create", "b", "--scope", "read").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("a b", "--scope", "read"),
        ("", "--scope", "read"),
        ("anonymous", "--scope", "read"),
        ("diagnoser", "--scope", "read"),
        ("a", "--scope", "agent", "--tenant", "vision"),
        ("a", "--scope", "read", "--expires", "soon"),
        ("a", "--scope", "read", "--expires", "-1d"),
    ],
)
def test_tokens_that_make_no_sense_are_not_made(url: str, arguments: tuple[str, ...]) -> None:
    """Names that mean somebody else in history, bounds that are not enforced, spans that are none."""
    result = run("create", *arguments)
    assert isinstance(result.exception, BadInput)
    assert stored(url) == []


def test_a_name_is_used_once(url: str) -> None:
    """Also after the token was revoked."""
    run("create", "maria", "--scope", "read")
    run("revoke", "maria")
    assert isinstance(run("create", "maria", "--scope", "read").exception, Conflict)


def test_a_token_is_rotated(url: str) -> None:
    """The old secret stays for the overlap; the new one lives as long as the old one did."""
    old = secret_of(run("create", "maria", "--scope", "operate", "--expires", "10d"))
    new = secret_of(run("rotate", "maria", "--overlap", "2h"))
    (token,) = stored(url)
    assert (token.hash, token.old_hash) == (hash_of(new), hash_of(old))
    created, expires = token.credential.created, token.credential.expires
    assert expires == pytest.approx(created + 10 * 86_400) and token.old_until == created + 7200
    secret_of(run("rotate", "maria", "--expires", "1d"))
    assert stored(url)[0].credential.expires == pytest.approx(stored(url)[0].credential.created + 86_400)


def test_tokens_are_listed_without_secrets(url: str) -> None:
    """As a table and as JSON, with what a person needs to tidy up."""
    secret = secret_of(run("create", "maria", "--scope", "operate", "--cluster", "east"))
    run("rotate", "maria", "--overlap", "1h")
    run("create", "left", "--scope", "read")
    run("revoke", "left")
    left, maria = (orjson.loads(line) for line in run("list", "--json").stdout.splitlines())
    assert (left["name"], left["state"], maria["scope"], maria["cluster"]) == ("left", "revoked", "operate", "east")
    assert maria["old_secret_valid_until"] and maria["expires"] is None
    table = run("list").stdout
    assert "cluster east" in table and "old secret until" in table and "revoked" in table
    assert secret not in table and hash_of(secret) not in table


def test_what_is_not_there_is_told(url: str) -> None:
    """A slip in a name revokes nothing in silence."""
    for command in ("rotate", "revoke"):
        assert isinstance(run(command, "mario").exception, NotFound)


def test_spans_of_time_are_read() -> None:
    """Minutes, hours and days."""
    assert [seconds(span) for span in ("30m", "24h", "90d")] == [1800.0, 86_400.0, 7_776_000.0]
