"""The database as each process of the simulation sees it: transactions take time, wait for each other, and crash.

SQLite: one writer at a time over all processes, who waits for long is refused, readers see what is committed.
PostgreSQL: a real server; statements of transactions that are under way together interleave as they are drawn.
"""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Connection, Select, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import await_only

from diagnoser.adapters.sql.database import BUSY_SECONDS, Database, create_engine, our_errors
from tests.databases import sqlite_store
from tests.simulation.virtual_time import Killed, Process, VirtualLoop

USUAL_SECONDS = 0.02
"""Longest time that a transaction takes on a disk that is well."""
FROZEN_SECONDS = 40.0
"""Longest time that a process stands still."""
T = TypeVar("T")
_template: list[sqlite3.Connection] = []
"""An empty database in memory, of which each seed gets a copy."""


class Memory:
    """SQLite in memory, over one connection that all processes share: a statement takes no time.

    Nothing waits within a transaction, so that none is under way while another process has its turn.
    """

    def __init__(self) -> None:
        self.raw = sqlite3.connect(":memory:", isolation_level=None)
        _template[0].backup(self.raw)
        self.raw.execute("PRAGMA foreign_keys = ON")
        self.engine = sqlalchemy.create_engine("sqlite://", creator=lambda: self.raw, poolclass=StaticPool)
        self.connection = self.engine.connect()
        self.unused = create_engine("sqlite:///unused")

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        self.raw.execute("BEGIN")
        try:
            yield self.connection
        except BaseException:
            self.raw.execute("ROLLBACK")
            raise
        self.raw.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()
        self.engine.dispose()
        self.raw.close()


class InlineConnection:
    """What repositories ask of an asynchronous connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.dialect = connection, connection.dialect

    async def execute(self, statement: Any, values: Any = None) -> Any:
        return self.connection.execute(statement, values)

    async def run_sync(self, work: Callable[..., T], *args: Any) -> T:
        return work(self.connection, *args)


def open_memory(folder: Path) -> Memory:
    """A database for one seed. Close it."""
    if not _template:
        file = folder / "template.db"
        asyncio.run(_make(file))
        _template.append(sqlite3.connect(":memory:"))
        with closing(sqlite3.connect(file)) as made:
            made.backup(_template[0])
    return Memory()


async def _make(file: Path) -> None:
    await (await sqlite_store(file)).close()


class Disk:
    """What all processes share of the database.

    crash_chance: that a process dies at a transaction: before it, within it, or behind its commit, whose answer then
    nobody gets. freeze_chance: that a process stands still before a transaction. slow_chance, slow_seconds: that a
    transaction takes up to so long.
    """

    def __init__(self, chance: random.Random, on_crash: Callable[[Process], None]) -> None:
        self.chance = chance
        self.on_crash = on_crash
        self.crash_chance = 0.0
        self.freeze_chance = 0.0
        self.slow_chance = 0.0
        self.slow_seconds = 20.0
        self.is_taken = False
        self.waiting: list[asyncio.Future[None]] = []

    async def take_turn(self) -> None:
        """Wait until no other process writes; who comes next is drawn. Raises OperationalError."""
        if not self.is_taken:
            self.is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                await turn
        except TimeoutError:
            self._give_up(turn)
            raise OperationalError("BEGIN IMMEDIATE", None, sqlite3.OperationalError("database is locked")) from None
        except BaseException:
            self._give_up(turn)
            raise

    def end_turn(self) -> None:
        self.waiting = [turn for turn in self.waiting if not turn.done()]
        self.is_taken = bool(self.waiting)
        if self.waiting:
            self.waiting.pop(self.chance.randrange(len(self.waiting))).set_result(None)

    def _give_up(self, turn: "asyncio.Future[None]") -> None:
        """A turn that came at the same moment goes on to the next."""
        if turn.done() and not turn.cancelled():
            self.end_turn()

    async def pass_time(self) -> None:
        longest = USUAL_SECONDS
        if self.slow_chance and self.chance.random() < self.slow_chance:
            longest = self.slow_seconds
        await asyncio.sleep(self.chance.uniform(0.0, longest))

    async def reach(self, process: Process) -> None:
        """Begin a transaction. Raises Killed."""
        if self.freeze_chance and self.chance.random() < self.freeze_chance:
            process.freeze(self.chance.uniform(5.0, FROZEN_SECONDS))
        await process.go_on()

    def crash_now_and_then(self, process: Process) -> None:
        """Raises Killed."""
        process.check_alive()
        if self.crash_chance and self.chance.random() < self.crash_chance:
            self.on_crash(process)
            raise Killed


class Turn:
    """What a process waits for before it writes: with SQLite for its own writers, then for those of the others."""

    def __init__(self, disk: Disk, process: Process, *, is_alone: bool) -> None:
        self.disk, self.process, self.is_alone = disk, process, is_alone
        self.own = asyncio.Semaphore(1)

    async def __aenter__(self) -> None:
        await self.disk.reach(self.process)
        self.disk.crash_now_and_then(self.process)
        if self.is_alone:
            await self._begin_alone()
        try:
            await self.disk.pass_time()
            self.disk.crash_now_and_then(self.process)
        except BaseException:
            self._end()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._end()
        self.disk.crash_now_and_then(self.process)  # behind the commit

    async def _begin_alone(self) -> None:
        await self.own.acquire()
        try:
            await self.disk.take_turn()
        except BaseException:
            self.own.release()
            raise

    def _end(self) -> None:
        if self.is_alone:
            self.disk.end_turn()
            self.own.release()


class SimulatedDatabase(Database):
    """The database as one process sees it."""

    def __init__(self, engine: AsyncEngine, disk: Disk, process: Process) -> None:
        super().__init__(engine)
        self._disk, self._process = disk, process
        self._turns = Turn(disk, process, is_alone=self.dialect == "sqlite")  # type: ignore[assignment]

    async def change_mark(self) -> int | None:
        """None: a replica looks at its usual times, and is woken by itself only."""
        return None

    async def _arrive(self) -> None:
        """Begin to read. Raises Killed."""
        await self._disk.reach(self._process)
        await self._disk.pass_time()


class MemoryDatabase(SimulatedDatabase):
    """SQLite, whose transactions run at once as soon as it is their turn."""

    def __init__(self, memory: Memory, disk: Disk, process: Process) -> None:
        super().__init__(memory.unused, disk, process)
        self._memory = memory

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        await self._arrive()
        async with our_errors():
            yield InlineConnection(self._memory.connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Any]:
        async with our_errors(), self._turns:
            with self._memory.transaction() as connection:
                yield InlineConnection(connection)

    async def any(self, query: Select[Any]) -> bool:
        async with self.reading() as connection:
            return (await connection.execute(query)).first() is not None

    async def write(self, work: Callable[[Connection], T]) -> T:
        async with self.writing() as connection:
            return await connection.run_sync(work)  # type: ignore[no-any-return]


class ServerDatabase(SimulatedDatabase):
    """PostgreSQL. Another transaction's statement may come before each statement."""

    def __init__(self, engine: AsyncEngine, disk: Disk, process: Process) -> None:
        super().__init__(engine, disk, process)
        event.listen(engine.sync_engine, "before_cursor_execute", self._wait_before_statement)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        await self._arrive()
        with under_way():
            async with super().reading() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        with under_way():
            async with super().writing() as connection:
                yield connection

    async def close(self) -> None:
        with under_way():
            await super().close()

    def _wait_before_statement(self, *_: object) -> None:
        with under_way(-1):
            await_only(self._disk.pass_time())


@contextmanager
def under_way(more: int = 1) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.under_way += more
    try:
        yield
    finally:
        loop.under_way -= more
