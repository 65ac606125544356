"""Every contract test runs on SQLite always, and on a real PostgreSQL where one is installed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser.adapters.sql.store import SqlStore, open_store
from tests.databases import sqlite_store
from tests.postgresql import empty, new_database, shared_database

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))]


@pytest.fixture(params=BOTH)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, or one with the tables of the code where the test opens a store in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    server: str = request.getfixturevalue("postgresql")
    if "store" in request.fixturenames and not request.node.get_closest_marker("own_database"):
        return await shared_database(server)
    return await new_database(server)


@pytest.fixture
async def second_url(url: str, request: pytest.FixtureRequest) -> str:
    """Another empty database of the same kind."""
    if url.startswith("sqlite"):
        return url.replace("test.db", "second.db")
    return await new_database(request.getfixturevalue("postgresql"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    file = url.removeprefix("sqlite:///")
    opened = await (open_store(url) if file == url else sqlite_store(Path(file)))
    if file == url:
        await empty(opened)
    yield opened
    await opened.close()


@pytest.fixture
async def second(url: str, store: SqlStore) -> AsyncIterator[SqlStore]:
    """Another replica on the same database."""
    opened = await open_store(url)
    yield opened
    await opened.close()
