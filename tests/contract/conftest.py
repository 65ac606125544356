"""Every contract test runs on SQLite always, and on a real PostgreSQL where one is installed."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from diagnoser.adapters.sql.store import SqlStore, open_store
from tests.contract import postgres
from tests.databases import sqlite_store

_numbers = itertools.count()
_made: dict[str, str] = {}
"""Server -> its database with the tables of the code."""

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    programs = postgres.programs()
    if programs is None:
        pytest.skip(postgres.MISSING)
    with postgres.server(programs) as url:
        yield url


async def _new_database(server: str, like: str = "template1") -> str:
    name = f"test{next(_numbers)}"
    address = server.replace("postgresql", "postgresql+asyncpg")
    engine = create_async_engine(f"{address}/postgres", isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {like}"))
    await engine.dispose()
    return f"{server}/{name}"


async def _with_tables(server: str) -> str:
    """Name of a database with the tables of the code: the others are its copies."""
    if server not in _made:
        url = await _new_database(server)
        await (await open_store(url)).close()
        _made[server] = url.rpartition("/")[2]
    return _made[server]


@pytest.fixture(params=BOTH)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, or one with the tables of the code where the test opens a store in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    server: str = request.getfixturevalue("server")
    if "store" in request.fixturenames:
        return await _new_database(server, await _with_tables(server))
    return await _new_database(server)


@pytest.fixture
async def second_url(url: str, request: pytest.FixtureRequest) -> str:
    """Another empty database of the same kind."""
    if url.startswith("sqlite"):
        return url.replace("test.db", "second.db")
    return await _new_database(request.getfixturevalue("server"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    file = url.removeprefix("sqlite:///")
    opened = await (open_store(url) if file == url else sqlite_store(Path(file)))
    yield opened
    await opened.close()


@pytest.fixture
async def second(url: str, store: SqlStore) -> AsyncIterator[SqlStore]:
    """Another replica on the same database."""
    opened = await open_store(url)
    yield opened
    await opened.close()
