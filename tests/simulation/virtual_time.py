"""An event loop whose time passes only when nothing can run, and processes on it that can be killed."""

import asyncio
from typing import Any

ANSWER_SECONDS, _SOON = 0.1, 0.05
"""Of real time, within which a server on this machine answers a statement that waits for no lock; a timer that is near
passes after a hundredth of that."""


class Killed(BaseException):
    """The process of whoever catches this is no more."""


class Process:
    """Something that can be killed: a replica or an agent. Nothing that it does afterwards reaches anybody.

    thawed: when it goes on, if it stands still: its leases run out meanwhile, and it does not know. wrongs: errors that
    ended what it does.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.thawed = 0.0
        self.wrongs: list[str] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in order: a set's would be another in each run

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def check_alive(self) -> None:
        """Raises Killed."""
        if self.is_dead:
            raise Killed

    def freeze(self, seconds: float) -> None:
        self.thawed = asyncio.get_running_loop().time() + seconds

    async def go_on(self) -> None:
        """Stand still as long as the process does. Raises Killed."""
        clock = asyncio.get_running_loop().time
        while self.thawed > clock():  # noqa: ASYNC110 - it may be frozen for longer meanwhile
            await asyncio.sleep(self.thawed - clock())
        self.check_alive()

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
        self.tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error and not self.is_dead:
            self.wrongs.append(f"a task of {self.name} ended by {error!r}")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to its next timer when nothing else can run.

    under_way: statements that a server outside of this process is working on. While there are any, it gets a moment of
    real time: who answers nothing within it waits for a lock, whose holder may need time to pass.
    answer_seconds: that moment; longer where nobody holds a lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.under_way = 0
        self.has_sockets = False
        self.answer_seconds = ANSWER_SECONDS
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
        if self.has_sockets:
            events = self._wait_for_server(timeout)
            if events:
                return events
        if timeout != 0 and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        return []

    def _wait_for_server(self, timeout: float | None) -> Any:
        events = self._wait_really(0)
        if events or timeout == 0 or not self.under_way:
            return events
        is_soon = timeout is not None and timeout < _SOON
        return self._wait_really(ANSWER_SECONDS / 100 if is_soon else self.answer_seconds)
