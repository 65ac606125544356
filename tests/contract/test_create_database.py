"""`diagnoser db upgrade --create` on a PostgreSQL server without the database."""

import asyncio

import orjson
import pytest
from typer.testing import CliRunner, Result

from diagnoser.adapters.sql.migrations import head
from diagnoser.cli import cli
from diagnoser.model.errors import BadInput
from tests import postgresql as databases

pytestmark = pytest.mark.xdist_group("postgresql")


async def upgrade(url: str, *options: str) -> Result:
    environment = {"DIAGNOSER_DATABASE_URL": url}
    return await asyncio.to_thread(CliRunner().invoke, cli, ["db", "upgrade", *options], env=environment)


async def test_the_database_is_made_once(postgresql: str) -> None:
    """Without --create it is an error that there is none; a second call finds the first one's database."""
    url = f"{postgresql}/new-site"
    assert "does not exist" in str((await upgrade(url)).exception)
    for _ in range(2):
        made = await upgrade(url, "--create", "--json")
        assert made.exit_code == 0, made.exception
        assert orjson.loads(made.stdout)["after"] == head()


async def test_a_user_who_may_not_make_it_reads_what_an_administrator_has_to_run(postgresql: str) -> None:
    """As one statement."""
    await databases.execute(f"{postgresql}/postgres", "CREATE ROLE small LOGIN")
    refused = await upgrade(f"{postgresql.replace('diagnoser@', 'small@')}/other", "--create")
    assert isinstance(refused.exception, BadInput)
    assert 'run CREATE DATABASE "other" OWNER small' in str(refused.exception)
