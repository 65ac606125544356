"""One engine: how it is opened, how a transaction begins, and what foreign errors become."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy
from sqlalchemy import (
    URL,
    ColumnElement,
    Engine,
    Executable,
    RowMapping,
    Select,
    Table,
    Text,
    cast,
    delete,
    event,
    extract,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import DataError, DBAPIError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import IntegrityError as BrokenConstraint
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, Pool, PoolProxiedConnection

from diagnoser.adapters.sql.sqlite_connection import OneVisitConnection
from diagnoser.adapters.sql.statements import has_key, read_record
from diagnoser.adapters.sql.tables import revisions
from diagnoser.adapters.sql.visibility import narrowed
from diagnoser.model.access import EVERYTHING, Viewer
from diagnoser.model.errors import BadInput, Conflict, DiagnoserError, Unavailable

BUSY_SECONDS = 10.0
"""Seconds that a statement waits for another process's lock."""

_RETRY_SECONDS = 0.02
_WRITE_CHECK = "~write-check"
_CHECK_SECONDS = 1.5
_CHECK_LOCK_SECONDS = 1.0
"""Of the first, how long a write check waits for another process's lock: the answer is then the database's own."""
T = TypeVar("T")

_ASYNC_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}


class _BadValue(Exception):
    """A value that the database cannot hold, as PostgreSQL reports it: without a class of its own."""


_ERRORS: tuple[tuple[type[BaseException], type[DiagnoserError] | None], ...] = (
    (_BadValue, BadInput),
    (DataError, BadInput),
    (OverflowError, BadInput),
    (UnicodeEncodeError, BadInput),
    (BrokenConstraint, Conflict),
    (ProgrammingError, None),  # a fault of this code: not for the caller to try again
    (DBAPIError, Unavailable),
    (PoolTimeout, Unavailable),
    (OSError, Unavailable),  # asyncpg lets a refused connection through as it is; TimeoutError is one too
)
"""Foreign error -> ours, first match wins; None leaves it as it is."""


def create_engine(url: str) -> AsyncEngine:
    """``sqlite:///path`` or ``postgresql://user:password@host/name``; the driver is chosen here. Raises BadInput."""
    target = parsed_url(url)
    target = target.set(drivername=_ASYNC_DRIVERS[target.drivername])
    if target.get_backend_name() == "sqlite":
        if not target.database or target.database == ":memory:":
            raise BadInput("SQLite needs a file: sqlite:///path/to/diagnoser.db")
        Path(target.database).parent.mkdir(parents=True, exist_ok=True)
        place, options = target.get_dialect()().create_connect_args(target)
        connect = partial(sqlite3.connect, *place, **options)
        engine = create_async_engine(target, async_creator=lambda: OneVisitConnection(connect))
        _configure_engine(engine.sync_engine)
        return engine
    connect_args = {"timeout": BUSY_SECONDS, "command_timeout": 60.0}
    engine = create_async_engine(target, pool_pre_ping=True, pool_size=10, connect_args=connect_args)
    event.listen(engine.sync_engine, "connect", _configure_postgresql)
    return engine


def parsed_url(url: str) -> URL:
    """Raises BadInput, whose messages never hold the URL: it may carry a password."""
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError):
        parsed = URL.create("")
    if parsed.drivername not in _ASYNC_DRIVERS:
        raise BadInput("the database URL must be sqlite:///path or postgresql://user:password@host/name")
    if "@" in f"{parsed.host}{parsed.database}" and parsed.drivername != "sqlite":
        raise BadInput("the database URL has two @: write those of the password as %40, and its / as %2F")
    if parsed.host and parsed.drivername == "sqlite":
        raise BadInput("the database URL has three slashes before a relative path, four before an absolute one")
    return parsed


def _configure_engine(engine: Engine) -> None:
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)


def _configure_postgresql(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    """Without compiled queries: ours read few rows, and compiling one takes longer than running it."""
    cursor = connection.cursor()
    cursor.execute("SET jit = off")
    cursor.close()
    connection.commit()  # the rollback of a connection that comes back to the pool would undo it


def _configure_sqlite(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    """An acknowledgement means durable: FULL syncs the write-ahead log at every commit."""
    connection.isolation_level = None  # we begin transactions ourselves
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {int(BUSY_SECONDS * 1000)}",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    _use_write_ahead_log(cursor)
    cursor.close()


def _use_write_ahead_log(cursor: DBAPICursor) -> None:
    """Changing the mode of a new file needs it alone, and does not wait for who else has just opened it."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= until:
                raise
        time.sleep(_RETRY_SECONDS)


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the lock at once: a read lock that is raised later can fail without waiting."""
    writes = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@asynccontextmanager
async def our_errors() -> AsyncIterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError, OverflowError, UnicodeEncodeError) as error:
        ours = _our_error(_BadValue if _is_bad_value(error) else type(error))
        if ours is None:
            raise
        raise ours(_reason(error)) from error


def _our_error(kind: type[BaseException]) -> type[DiagnoserError] | None:
    for foreign, ours in _ERRORS:
        if issubclass(kind, foreign):
            return ours
    return None


def _is_bad_value(error: BaseException) -> bool:
    """SQLSTATE class 22 is "data exception"; what asyncpg itself cannot encode is a ValueError."""
    origin = getattr(error, "orig", None)
    state = getattr(origin, "sqlstate", None) or ""
    return state.startswith("22") or isinstance(getattr(origin, "__cause__", None), ValueError)


def _reason(error: BaseException) -> str:
    """The driver's message without the statement and its values, which may hold log text."""
    origin = getattr(error, "orig", None) or error
    return f"database: {type(origin).__name__}: {origin}".splitlines()[0]


def insert(connection: Connection | AsyncConnection, table: Table) -> Any:
    """An INSERT that knows ``on_conflict_do_nothing`` and ``on_conflict_do_update``, equal in both dialects."""
    return dialect_insert(connection.dialect.name, table)


def dialect_insert(dialect: str, table: Table) -> Any:
    """The same by the name of the dialect, for statements that are made once."""
    if dialect == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # loads for a while

    return postgresql.insert(table)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncConnection]:
    """Connect to a database for a moment, whatever is in it. Raises Unavailable, BadInput."""
    engine = create_engine(url)
    try:
        async with our_errors(), engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


async def insert_new(connection: AsyncConnection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert rows; those whose key exists already stay as they are. The number of new rows, for a single row."""
    if not rows:
        return 0
    statement = insert(connection, table).on_conflict_do_nothing()
    if len(rows) > 1:
        await connection.execute(statement, list(rows))
        return len(rows)
    return (await connection.execute(statement, rows[0])).rowcount


async def scalar(connection: AsyncConnection, query: Executable, missing: T) -> T:
    """Read the first value of the first row. missing: what stands for it where there is no row, or it is null."""
    found: T | None = (await connection.execute(query)).scalar()
    return missing if found is None else found


async def put_rows(connection: AsyncConnection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as a whole, whether their keys exist or not."""
    await connection.execute(_upsert(insert(connection, table), table, rows[0]), rows)


def _upsert(statement: Any, table: Table, names: Iterable[str]) -> Any:
    keys = table.primary_key.columns.keys()
    changes = {name: statement.excluded[name] for name in names if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changes)


class Database:
    """Transactions over one engine. Within a process, SQLite's writers queue here, in order, instead of polling."""

    viewer = EVERYTHING
    """Whose rows ``reading`` finds."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writer = engine.execution_options(write=True)
        self._turns = asyncio.Semaphore(1 if engine.dialect.name == "sqlite" else 1_000_000)
        self._blocking: Engine | None = None
        self._checking: Engine | None = None
        self._watching: PoolProxiedConnection | None = None
        if engine.dialect.name == "sqlite":
            self._blocking = sqlalchemy.create_engine(engine.url.set(drivername="sqlite"))
            _configure_engine(self._blocking)
            impatient = {"timeout": _CHECK_LOCK_SECONDS}
            self._checking = sqlalchemy.create_engine(self._blocking.url, connect_args=impatient, poolclass=NullPool)
            event.listen(self._checking, "begin", _begin_sqlite)

    def scoped_to(self, viewer: Viewer) -> Self:
        """The same database, of which queries find only what the viewer may see. What is written is not narrowed: who
        changes something has looked for it first. Close the database that this comes from."""
        if viewer.sees_all:
            return self
        other = copy(self)
        other.viewer, other._engine = viewer, narrowed(self._engine, viewer)
        return other

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    @property
    def has_clock(self) -> bool:
        """Whether it has a clock beside its callers'; SQLite has that of their machine."""
        return self.dialect == "postgresql"

    async def clock(self) -> float:
        """Ask for the time of the database's machine."""
        return float(await self.value(select(extract("epoch", func.clock_timestamp()))))

    @property
    def pool(self) -> Pool:
        return self._engine.pool

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        async with our_errors(), self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Commits at the end of the block; any exception rolls all of it back."""
        async with our_errors(), self._turns, self._writer.begin() as connection:
            yield connection

    async def rows(self, query: Executable, make: Callable[[RowMapping], T]) -> list[T]:
        async with self.reading() as connection:
            return list(map(make, (await connection.execute(query)).mappings()))

    async def records(self, query: Executable, kind: Callable[..., T]) -> list[T]:
        """The rows of a query as records whose fields are called like its columns."""
        return await self.rows(query, partial(read_record, kind))

    async def values(self, query: Executable, make: Callable[[Any], T]) -> list[T]:
        async with self.reading() as connection:
            return list(map(make, (await connection.execute(query)).scalars()))

    async def value(self, query: Executable, missing: T | None = None) -> T | Any:
        """Read the first value of the first row, as ``scalar`` does."""
        async with self.reading() as connection:
            return await scalar(connection, query, missing)

    async def row(self, query: Executable) -> RowMapping | None:
        async with self.reading() as connection:
            return (await connection.execute(query)).mappings().first()

    async def execute(self, change: Executable) -> int:
        """A transaction of one statement; how many rows it changed."""
        async with self.writing() as connection:
            return (await connection.execute(change)).rowcount

    async def any(self, query: Select[Any]) -> bool:
        """Whether there is a row, for work that is looked for far more often than it is there: no lock is taken."""

        return await self.read(lambda connection: connection.execute(query).first() is not None)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a transaction that is one function and only reads; for SQLite in a thread, as ``write`` does."""
        if self._blocking is None or not self.viewer.sees_all:
            async with self.reading() as connection:
                return await connection.run_sync(work)
        async with our_errors():
            return await asyncio.to_thread(self._read_blocking, self._blocking, work)

    async def change_mark(self) -> int | None:
        """A number that is another after each change that anybody made, for much less than looking what changed; None
        where the database has none."""
        if self._blocking is None:
            return None
        async with our_errors():
            return await asyncio.to_thread(self._data_version, self._blocking)

    def _data_version(self, engine: Engine) -> int:
        if self._watching is None:
            self._watching = engine.raw_connection()  # one that never writes: its own changes do not count
        cursor = self._watching.cursor()
        try:
            cursor.execute("PRAGMA data_version")
            (version,) = cursor.fetchall()[0]
            return int(version)
        finally:
            cursor.close()

    async def check_write(self, now: float) -> None:
        """Raises Unavailable, with the cause, when nothing can be written, or not within a moment: a full disk answers
        every question, and a locked database does, too."""
        row = {"name": _WRITE_CHECK, "value": int(now)}
        upsert = _upsert(self.insert(revisions), revisions, row)
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._write_by(self._checking, lambda connection: connection.execute(upsert, row))
        except TimeoutError:
            cause = "another transaction holds it, or its disk is slow"
            raise Unavailable(f"database: no write came through within {_CHECK_SECONDS:g} s: {cause}") from None

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a transaction that is one function. For SQLite it runs in a thread as a whole: statement by statement
        it would change threads some twenty times, which costs more than the statements."""
        return await self._write_by(self._blocking, work)

    async def _write_by(self, engine: Engine | None, work: Callable[[Connection], T]) -> T:
        if engine is None:
            async with self.writing() as connection:
                return await connection.run_sync(work)
        async with our_errors(), self._turns:
            return await asyncio.to_thread(self._write_blocking, engine, work)

    def _read_blocking(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with engine.begin() as connection:
            return work(connection)

    def _write_blocking(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with engine.execution_options(write=True).begin() as connection:
            return work(connection)

    def insert(self, table: Table) -> Any:
        """As the function ``insert``, before there is a connection."""
        return dialect_insert(self.dialect, table)

    def json_text(self, body: ColumnElement[str], *path: str) -> ColumnElement[str]:
        """A field of the JSON in a text, found by names of objects in each other."""
        if self.dialect == "sqlite":
            return func.json_extract(body, f"$.{'.'.join(path)}", type_=Text)
        from sqlalchemy.dialects import postgresql

        *outer, name = path
        value: Any = cast(body, postgresql.JSONB)
        for key in outer:
            value = value[key]
        field: ColumnElement[str] = value[name].astext
        return field

    async def upsert(self, table: Table, row: dict[str, Any]) -> None:
        """Write a row as a whole, whether its key exists or not."""
        upsert = _upsert(self.insert(table), table, row)
        await self.write(lambda connection: connection.execute(upsert, row))

    async def drop_rows(self, query: Select[Any], limit: int, *key: Any) -> int:
        """Delete at most ``limit`` rows that the query finds by their key, in one short commit; how many."""
        async with self.reading() as connection:
            rows = list(map(tuple, await connection.execute(query.limit(limit))))
        if not rows:
            return 0
        async with self.writing() as connection:
            return (await connection.execute(delete(key[0].table).where(has_key(key, rows)))).rowcount

    async def close(self) -> None:
        await self._engine.dispose()
        if self._watching is not None:
            self._watching.close()
        if self._blocking is not None:
            self._blocking.dispose()


class Repository:
    """A part of the store: the rows of one subject. What commits together shares a connection, not an object.

    Every method may raise Unavailable. A value that the database cannot hold raises BadInput.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
