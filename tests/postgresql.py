"""One PostgreSQL server for all tests of a run that need one, and databases in it."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.contract import postgres

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore

_numbers = itertools.count()
_shared: dict[str, str] = {}
"""Server -> its database with the tables of the code, which tests use one after the other."""

# A new database costs the copies of 300 files and empty caches; so does a table that is truncated. Rows are few.
# As a replica, so that neither foreign keys nor the trigger of tables that only grow stand in the way.
_EMPTY = """
DO $$
DECLARE name text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL LOOP
        EXECUTE format('ALTER SEQUENCE %I RESTART', name);
    END LOOP;
END $$
"""


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Its address without a database. Tests that use it are of the group "postgresql"."""
    programs = postgres.programs()
    if programs is None:
        pytest.skip(postgres.MISSING)
    with postgres.server(programs) as url:
        yield url


@pytest.fixture
async def postgresql_database(postgresql: str) -> str:
    """Address of an empty database of this test's own, without tables."""
    return await new_database(postgresql)


async def new_database(server: str) -> str:
    """Address of an empty database, without tables."""
    name = f"test{next(_numbers)}"
    await execute(f"{server}/postgres", f"CREATE DATABASE {name}")
    return f"{server}/{name}"


async def shared_database(server: str) -> str:
    """Address of the database that tests use one after the other: each empties it when it has opened its store. None
    may change its schema."""
    if server not in _shared:
        _shared[server] = await new_database(server)
    return _shared[server]


async def empty(store: "SqlStore") -> None:
    """Take away what the test before has left, by a connection that this one uses as well: each costs a process."""
    from sqlalchemy import text

    async with store.db.writing() as connection:
        await connection.execute(text(_EMPTY))


async def execute(url: str, statement: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg", 1), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(statement))
    await engine.dispose()
