"""SQLite's connection with one visit of its thread for each statement.

aiosqlite goes to the connection's thread to open a cursor, to execute, to fetch and to close: each way costs more than
most statements do. SQLAlchemy reads every result whole, so that all of it fits into one visit.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import aiosqlite

_Result = tuple[Any, int, int | None, list[Any]]
"""A cursor's description, rowcount and lastrowid, and its rows."""


class OneVisitConnection(aiosqlite.Connection):
    """Await it to open it. open: makes the connection, in the connection's thread."""

    def __init__(self, open: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(open, iter_chunk_size=64)
        self._thread.daemon = True  # a process that ends does not wait for a connection that nobody closed

    def cursor(self) -> "OneVisitCursor":  # type: ignore[override]
        return OneVisitCursor(self)

    async def visit(self, work: Callable[[sqlite3.Cursor], object]) -> _Result:
        return await self._execute(_whole, self._conn, work)  # type: ignore[no-any-return, no-untyped-call]


class OneVisitCursor:
    """What SQLAlchemy asks of an asynchronous cursor. The rows of a statement are fetched with it."""

    arraysize = 1

    def __init__(self, connection: OneVisitConnection) -> None:
        self._connection = connection
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._rows: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        await self._visit(lambda cursor: cursor.execute(statement, values))

    async def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._visit(lambda cursor: cursor.executemany(statement, rows))

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        """The thread has closed its cursor."""

    async def _visit(self, work: Callable[[sqlite3.Cursor], object]) -> None:
        self.description, self.rowcount, self.lastrowid, self._rows = await self._connection.visit(work)


def _whole(connection: sqlite3.Connection, work: Callable[[sqlite3.Cursor], object]) -> _Result:
    cursor = connection.cursor()
    try:
        work(cursor)
        rows = cursor.fetchall() if cursor.description else []
        return cursor.description, cursor.rowcount, cursor.lastrowid, rows
    finally:
        cursor.close()
