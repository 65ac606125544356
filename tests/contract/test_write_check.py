"""Contract of the check behind /readyz: a database that answers questions and takes nothing is found out in time."""

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from diagnoser.adapters.sql.database import BUSY_SECONDS
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.model.errors import Unavailable
from tests.contract.conftest import BOTH
from tests.postgresql import execute


@asynccontextmanager
async def locked(url: str) -> AsyncIterator[None]:
    """Another process holds what every write needs."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
        return
    engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg", 1))
    async with engine.begin() as connection:
        await connection.execute(text("LOCK TABLE revisions"))
        yield
    await engine.dispose()


async def test_a_locked_database_is_told_in_time_and_forgotten_when_free(store: SqlStore, url: str) -> None:
    """The check fails long before a write gives up while another process holds it, and works again afterwards."""
    await store.db.check_write(1.0)
    async with locked(url):
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"database is locked|no write came through within"):
            await store.db.check_write(2.0)
        assert time.monotonic() - started < BUSY_SECONDS, "it did not wait as long as a write does"
    await store.db.check_write(3.0)


@pytest.mark.own_database
@pytest.mark.parametrize("url", BOTH[1:], indirect=True)
async def test_a_database_that_is_read_only_says_so(url: str) -> None:
    """As a standby after a failover does: the check has the database's own words."""
    await (await open_store(url)).close()
    await execute(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET default_transaction_read_only = on")
    store = await open_store(url)
    with pytest.raises(Unavailable, match="read-only"):
        await store.db.check_write(1.0)
    await store.close()
