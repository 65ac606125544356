"""Sends what pods print: each line once, with the time the cluster gave it, through restarts of everything between."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import orjson
import structlog

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.parsing import ContainerRun, seconds
from diagnoser.agent.state_file import LogOffset
from diagnoser.model.errors import BadInput, OutOfScope, Unavailable

BATCH_BYTES = 256 << 10
BATCH_SECONDS = 0.5
QUIET_SECONDS = 120.0
"""A stream without a byte for so long is opened anew: it may be dead without anyone having said so."""
LONGEST_LINE = 1 << 20
STREAMS = 1_000
"""Logs that are followed at once; further ones wait for their turn."""
AGAIN_SECONDS = 1.0
LONGEST_WAIT = 30.0
TRIES = 6
"""Failures in a row after which the log of a run that has ended is given up."""
MAIN_SOURCE = "stdout"
STAMP_LENGTH = 40

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LogTarget:
    """The stream that a run's lines go to."""

    job: str
    attempt: int
    source: str
    node: str
    rank: int

    @classmethod
    def of_run(cls, run: ContainerRun, job: str, attempt: int) -> "LogTarget":
        """A pod whose rank is known prints as that rank; others are told apart by their names."""
        source = f"{run.pod[-80:]}.{run.restarts}"
        if run.rank >= 0 and not run.restarts:
            source = MAIN_SOURCE
        return cls(job, attempt, source, run.node, run.rank)


@dataclass(slots=True)
class LogFollower:
    """offsets: by key of the run. tasks: of the logs that are followed. failing: keys of those that cannot be read now.
    moved: set when a log has been read further."""

    kube: Kube
    client: ApiClient
    offsets: dict[str, LogOffset] = field(default_factory=dict)
    runs: dict[str, ContainerRun] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STREAMS))
    failing: set[str] = field(default_factory=set)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def see(self, run: ContainerRun, target: LogTarget, gone: bool) -> None:
        """A run of a launch that the service knows. gone: its pod is no more, so nothing more can be read."""
        self.runs[run.key] = run
        if run.key in self.tasks:
            return
        offset = self.offsets.get(run.key, LogOffset())
        if gone:
            self.offsets[run.key] = replace(offset, done=True)
        elif run.started and not offset.done:
            self.tasks[run.key] = asyncio.create_task(self._follow(run.key, target))

    def unread(self, run: ContainerRun) -> bool:
        """Tell whether it is worth waiting for: a log that cannot be read now is not."""
        if not run.started:
            return False
        if run.key in self.failing:
            return False
        return not self.offsets.get(run.key, LogOffset()).done

    def forget(self, keys: set[str]) -> None:
        """keys: of runs that can still be seen."""
        for key in set(self.offsets) - keys:
            if key not in self.tasks:
                del self.offsets[key]
                self.runs.pop(key, None)

    async def close(self) -> None:
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: str, target: LogTarget) -> None:
        """Until the run has ended and all of its lines were sent, or its log cannot be had."""
        wait, failures = AGAIN_SECONDS, 0
        try:
            while True:
                run = self.runs[key]
                try:
                    async with self.turn:
                        exists = await self._read(run, target)
                    wait, failures = AGAIN_SECONDS, 0
                    self.failing.discard(key)
                except (Unavailable, OutOfScope) as error:
                    log.warning("log_waits", pod=run.pod, why=str(error), again_in=wait)
                    exists, wait, failures = True, min(2 * wait, LONGEST_WAIT), failures + 1
                    self.failing.add(key)
                if not exists:
                    break
                if run.over and failures in (0, TRIES):
                    break
                await self._pause(key, wait)
            self.offsets[key] = replace(self.offsets.get(key, LogOffset()), done=True)
        finally:
            self.tasks.pop(key, None)
            self.failing.discard(key)
            self.moved.set()

    async def _pause(self, key: str, seconds: float) -> None:
        """Shorter when the run ends meanwhile: its last lines are awaited."""
        was_over = self.runs[key].over
        for _ in range(int(seconds / 0.1)):
            await asyncio.sleep(0.1)
            if self.runs[key].over and not was_over:
                return

    async def _read(self, run: ContainerRun, target: LogTarget) -> bool:
        """One stream until it ends. False when the pod's log is no more."""
        offset = self.offsets.get(run.key, LogOffset())
        query = {"container": run.container, "timestamps": "true", "follow": str(not run.over).lower()}
        if offset.time:
            query["sinceTime"] = offset.time[:19] + "Z"
        if run.before:
            query["previous"] = "true"
        path = f"/api/v1/namespaces/{run.namespace}/pods/{run.pod}/log"
        async with self.kube.stream(path, query, QUIET_SECONDS) as answer:
            why = f"the log of {run.namespace}/{run.pod}: HTTP {answer.status_code}"
            if answer.status_code == 404:
                return False
            if answer.status_code == 400:
                return not run.over  # not there yet, or no more
            if answer.status_code == 403:
                raise OutOfScope(why)
            if answer.status_code != 200:
                raise Unavailable(why)
            splitter = LineSplitter(offset)
            try:
                async for chunk in _in_time(answer.aiter_bytes()):
                    splitter.add(chunk)
                    if splitter.size > BATCH_BYTES or not chunk:
                        await self._send(run.key, target, splitter)
            finally:
                splitter.end()
            await self._send(run.key, target, splitter)
        return True

    async def _send(self, key: str, target: LogTarget, splitter: "LineSplitter") -> None:
        """Until the service has them: nothing more is read from this log meanwhile."""
        lines, offset = splitter.take()
        if not lines:
            return
        first = offset.lines - len(lines)
        while True:
            try:
                await self.client.records(
                    target.job, target.attempt, target.source, target.node, target.rank, first, lines
                )
                break
            except Unavailable as error:
                log.warning("lines_wait", job=target.job, source=target.source, why=str(error))
                await self.client.pause(AGAIN_SECONDS)
            except BadInput as error:
                log.warning("lines_refused", job=target.job, first=first, why=str(error))
                break
        self.offsets[key] = offset
        self.moved.set()


@dataclass(slots=True)
class LineSplitter:
    """Cuts a stream of ``stamp text`` lines into records, and leaves out those that were taken before.

    The server can be asked for what came since a second, and gives whole seconds again.
    """

    offset: LogOffset
    skip: int = 0
    rest: bytes = b""
    size: int = 0
    ready: list[bytes] = field(default_factory=list)
    behind: str = ""

    def __post_init__(self) -> None:
        self.behind, self.skip = self.offset.time, self.offset.same

    def add(self, chunk: bytes) -> None:
        *whole, rest = (self.rest + chunk).split(b"\n")
        for line in whole:
            self._line(line)
        while len(rest) > LONGEST_LINE:  # each part counts as a line
            self._line(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        self.rest = rest

    def end(self) -> None:
        """The stream is over: a last line without its end counts too."""
        if self.rest:
            self._line(self.rest)
            self.rest = b""

    def take(self) -> tuple[list[bytes], LogOffset]:
        """(records as JSON, the offset behind them)."""
        lines, self.ready, self.size = self.ready, [], 0
        return lines, self.offset

    def _line(self, line: bytes) -> None:
        stamp, text = _split(line)
        if self._was_taken(stamp):
            return
        time, same = stamp or self.offset.time, 1
        if time == self.offset.time:
            same += self.offset.same
        self.offset = LogOffset(self.offset.lines + 1, time=time, same=same)
        record: dict[str, object] = {"message": text.decode("utf-8", "replace").replace("\0", "")}
        if when := seconds(stamp[:26] + "+00:00"):
            record["time"] = when
        self.ready.append(orjson.dumps(record))
        self.size += len(line)

    def _was_taken(self, stamp: str) -> bool:
        """Tell whether a line was taken by an earlier stream; counts those of the last stamp."""
        if not self.behind:
            return False
        if not stamp:
            return False
        if stamp != self.behind:
            return stamp < self.behind
        if self.skip <= 0:
            return False
        self.skip -= 1
        return True


async def _in_time(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks, and an empty one whenever none has come for a while."""
    waiting: asyncio.Task[bytes] | None = None
    try:
        while True:
            waiting = waiting or asyncio.create_task(_next(chunks))
            done, _ = await asyncio.wait((waiting,), timeout=BATCH_SECONDS)
            if not done:
                yield b""
                continue
            chunk, waiting = waiting.result(), None
            if not chunk:
                return
            yield chunk
    finally:
        if waiting:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    """Empty at the end: a task cannot end in StopAsyncIteration."""
    async for chunk in chunks:
        if chunk:
            return chunk
    return b""


def _split(line: bytes) -> tuple[str, bytes]:
    """(stamp, text). Stamps have nine digits of a second and are of UTC, so that they compare as text."""
    head, space, text = line.partition(b" ")
    if not space:
        return "", line
    if not 20 <= len(head) <= STAMP_LENGTH:
        return "", line
    if not head.endswith(b"Z"):
        return "", line
    if head[10:11] != b"T":
        return "", line
    whole, _, part = head[:-1].decode("ascii", "replace").partition(".")
    return f"{whole}.{part.ljust(9, '0')}Z", text
