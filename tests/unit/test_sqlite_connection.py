"""SQLite's connection, whose thread is visited once for each statement."""

import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from diagnoser.adapters.sql.sqlite_connection import OneVisitConnection


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[OneVisitConnection]:
    opened = OneVisitConnection(partial(sqlite3.connect, tmp_path / "test.db", isolation_level=None))
    await opened
    yield opened
    await opened.close()


async def test_a_statement_is_one_visit(connection: OneVisitConnection) -> None:
    """Opening the cursor, executing, fetching and closing it go to the thread once; rows and figures are those of the
    statement."""
    await connection.cursor().execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    with patch.object(connection, "_execute", wraps=connection._execute) as visits:
        cursor = connection.cursor()
        await cursor.executemany("INSERT INTO t (name) VALUES (?)", [("a",), ("b",)])
        assert (cursor.rowcount, cursor.description) == (2, None)
        await cursor.execute("SELECT name FROM t WHERE id > ?", (0,))
        assert [column[0] for column in cursor.description] == ["name"]
        assert await cursor.fetchall() == [("a",), ("b",)]
        await cursor.close()
    assert visits.await_count == 2


async def test_a_statement_that_fails_spoils_nothing(connection: OneVisitConnection) -> None:
    """Its error is the driver's, and the next statement is executed."""
    cursor = connection.cursor()
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await cursor.execute("SELECT * FROM absent")
    await cursor.execute("SELECT 7")
    assert await cursor.fetchall() == [(7,)]
