"""An event loop whose time passes only when nothing can run, and a gate through which transactions go one by one.

What runs next is drawn from a seed. The same seed gives the same order, but for threads that finish at the same moment.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from diagnoser.adapters.sql.database import Database

T = TypeVar("T")
_THREAD_SECONDS = 0.001
"""Of real time, for a thread that holds a transaction."""
_SLOW_DISK = 0.02
"""Chance that time passes although a transaction waits."""
_holder: ContextVar["asyncio.Task[Any] | None"] = ContextVar("holder", default=None)
"""The task that holds the gate; a task that it starts meanwhile inherits the value, and is another one."""


class Killed(BaseException):
    """The process of whoever catches this is no more."""


class Process:
    """Something that can be killed: a replica or an agent. Once it is, no transaction of it goes through."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def kill(self) -> None:
        self.is_dead = True
        for task in self.tasks:
            task.cancel()

    async def end(self) -> None:
        """Kill it, and wait until nothing of it is left."""
        ended = list(self.tasks)
        self.kill()
        await asyncio.gather(*ended, return_exceptions=True)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a killed process has nobody to whom it would be reported


class Gate:
    """Lets one transaction through at a time, in an order that is drawn. crash_chance: of a crash at one, half of them
    before it and half behind its commit, whose answer then nobody gets."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.crash_chance = 0.0
        self.on_crash: Callable[[Process], None] = Process.kill
        self.waiting: list[tuple[Process, asyncio.Future[None]]] = []
        self.is_taken = False

    @asynccontextmanager
    async def turn(self, process: Process) -> AsyncIterator[None]:
        if _holder.get() is asyncio.current_task():
            yield
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((process, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self.is_taken = self.is_taken and not (turn.done() and not turn.cancelled())
            raise
        token = _holder.set(asyncio.current_task())
        try:
            crashes = self.chance.random() < self.crash_chance
            if crashes and self.chance.random() < 0.5:
                self.on_crash(process)
            if process.is_dead:
                raise Killed
            yield
            if crashes and not process.is_dead:
                self.on_crash(process)
                raise Killed
        finally:
            _holder.reset(token)
            self.is_taken = False

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let nobody through, and no time pass."""
        self.is_taken = True
        try:
            yield
        finally:
            self.is_taken = False

    def admit_one(self) -> bool:
        """Let a transaction in that is drawn from those that wait. Whether there is one."""
        self.waiting = [entry for entry in self.waiting if not entry[1].done()]
        if self.is_taken or not self.waiting:
            return False
        _, turn = self.waiting.pop(self.chance.randrange(len(self.waiting)))
        self.is_taken = True
        turn.set_result(None)
        return True


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to its next timer when nothing else can run."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.now = 0.0
        self._wait_really = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """At once: what a thread computes takes no time."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _select(self, timeout: float | None = None) -> Any:
        events = self._wait_really(0)
        if events or timeout == 0:
            return events
        if self.gate.is_taken:
            return self._wait_really(_THREAD_SECONDS)
        is_slow = bool(self._scheduled) and self.gate.chance.random() < _SLOW_DISK  # type: ignore[attr-defined]
        if not is_slow and self.gate.admit_one():
            return []
        if self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]
            return []
        return self._wait_really(_THREAD_SECONDS)


class GatedDatabase(Database):
    """The database as one process sees it."""

    def __init__(self, engine: AsyncEngine, gate: Gate, process: Process) -> None:
        super().__init__(engine)
        self._gate, self._process = gate, process

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._gate.turn(self._process), super().reading() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        async with self._gate.turn(self._process), super().writing() as connection:
            yield connection

    async def any(self, query: Select[Any]) -> bool:
        async with self._gate.turn(self._process):
            return await super().any(query)

    async def change_mark(self) -> int | None:
        return None

    async def _write_by(self, engine: Engine | None, work: Callable[[Connection], T]) -> T:
        async with self._gate.turn(self._process):
            return await super()._write_by(engine, work)
