"""Log files read on request, for launchers that ask whether to start again: NVIDIA's ``ft_launcher`` and its like.

The launcher names the log of each cycle when the cycle begins, says when it has failed, and asks until there is a
verdict. Nothing is stored: the same file read again gives the same verdict. The shapes of requests and answers are
those of the attribution service of nvidia-resiliency-ext 0.7 and before.
"""

import asyncio
import io
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import BinaryIO

import structlog

from diagnoser.model import Diagnosis
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import Action, Category, Outcome

PATHS_LIMIT = 1000
"""Logs whose verdict is remembered."""
AT_ONCE = 2
"""Logs that are read at a time; each takes a core."""

READ_BYTES = 1 << 30
"""Bytes read of a log: its end, where the failure is. A sparse file of any size costs nothing to make."""
READ_SECONDS = 120.0
"""For reading one log. Then its seat goes to the next one."""
_BUFFER_BYTES = 1 << 20
"""Bytes between two looks at the clock."""

Opener = Callable[[str], BinaryIO]
"""Path -> the open file. Raises LogRefused."""

Analyse = Callable[[BinaryIO], Diagnosis]
"""Runs in a thread. The file's ``read`` raises Unavailable when it has taken too long or nobody waits any more."""


class Recommendation(StrEnum):
    """In the launcher's terms. Only STOP changes what it does: the job ends instead of starting again."""

    STOP = "STOP"
    RESTART = "RESTART"
    CONTINUE = "CONTINUE"  # nothing has failed
    UNKNOWN = "UNKNOWN"


class AnalysisProgress(StrEnum):
    """Progress of analysing one log. Clients ask again until it is completed."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    COMPLETED = "completed"


_BEYOND_IT = frozenset({Action.NOTIFY_USER, Action.ROLLBACK_AND_RESUBMIT})
"""Actions the launcher cannot take: it would start the same code again, from the newest checkpoint."""


def recommend(diagnosis: Diagnosis) -> Recommendation:
    """STOP only where a stable rule says that only a person, or an older checkpoint, can help: a wrong STOP ends a job
    that would have gone on."""
    if (diagnosis.category, diagnosis.outcome) == (Category.NONE, Outcome.COMPLETED):
        return Recommendation.CONTINUE
    if diagnosis.category in (Category.NONE, Category.UNKNOWN):
        return Recommendation.UNKNOWN
    if diagnosis.recovery.action in _BEYOND_IT:
        return Recommendation.STOP if diagnosis.grounds.stable else Recommendation.UNKNOWN
    return Recommendation.RESTART


@dataclass(slots=True)
class _Entry:
    """One log. version: the file's identity when the analysis began."""

    version: tuple[int, ...] = ()
    task: asyncio.Task[Diagnosis] | None = None


class LogAttribution:
    """Analyses logs in threads and keeps the newest verdicts; ``close`` it at the end."""

    def __init__(self, opener: Opener, analyse: Analyse) -> None:
        self._open = opener
        self._analyse = analyse
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._turn = asyncio.Semaphore(AT_ONCE)

    def submit(self, path: str, *, terminal: bool) -> None:
        """Register a log. terminal: its job has ended, so it is read now. Raises LogRefused."""
        with self._open(path) as log:
            entry = self._entry(path)
            if terminal:
                self._begin(entry, path, log)

    async def result(self, path: str, *, wait: bool) -> tuple[AnalysisProgress, Diagnosis | None]:
        """The verdict on the current log; without ``wait`` only if an analysis of it was started and is finished.

        Raises LogRefused.
        """
        entry = self._entries.get(path)
        if wait or entry is None:
            with self._open(path) as log:
                entry = self._entry(path)
                if wait:
                    self._begin(entry, path, log)
        if entry.task is None:
            return AnalysisProgress.PENDING, None
        if not wait and not entry.task.done():
            return AnalysisProgress.IN_FLIGHT, None
        return AnalysisProgress.COMPLETED, await asyncio.shield(entry.task)

    async def close(self) -> None:
        tasks = [entry.task for entry in self._entries.values() if entry.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _entry(self, path: str) -> _Entry:
        """Evicts the entry that was asked for longest ago when there are too many."""
        entry = self._entries.setdefault(path, _Entry())
        self._entries.move_to_end(path)
        while len(self._entries) > PATHS_LIMIT:
            _, oldest = self._entries.popitem(last=False)
            if oldest.task:
                oldest.task.cancel()
        return entry

    def _begin(self, entry: _Entry, path: str, log: BinaryIO) -> None:
        """Analyse the log, unless this version was or is being analysed. A failed analysis is repeated."""
        status = os.fstat(log.fileno())
        version = status.st_ino, status.st_size, status.st_mtime_ns
        has_failed = entry.task is not None and entry.task.done() and (entry.task.cancelled() or entry.task.exception())
        if entry.task is None or version != entry.version or has_failed:
            entry.version, entry.task = version, asyncio.create_task(self._read(path))
            entry.task.add_done_callback(_tell)

    async def _read(self, path: str) -> Diagnosis:
        async with self._turn:
            abandoned = threading.Event()
            try:
                return await asyncio.to_thread(self._diagnosed, path, abandoned)
            finally:
                abandoned.set()  # a thread cannot be cancelled, and the process would wait for it at its end

    def _diagnosed(self, path: str, abandoned: threading.Event) -> Diagnosis:
        with self._open(path) as log:
            skipped = _skip_to_end(log)
            diagnosis = self._analyse(io.BufferedReader(_BoundedLog(log, abandoned), _BUFFER_BYTES))
        if not skipped:
            return diagnosis
        note = f"Only the last {READ_BYTES >> 20} MB of the log were read. Line numbers count from there."
        return replace(diagnosis, notes=(*diagnosis.notes, note))


class _BoundedLog(io.RawIOBase):
    """At most ``READ_BYTES`` more of a file, also of one that grows, for ``READ_SECONDS`` or until it is abandoned."""

    def __init__(self, log: BinaryIO, abandoned: threading.Event) -> None:
        self._log = log
        self._abandoned = abandoned
        self._left = READ_BYTES
        self._deadline = time.monotonic() + READ_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Raises Unavailable."""
        if self._abandoned.is_set():
            raise Unavailable("nobody waits for this log any more")
        if time.monotonic() > self._deadline:
            raise Unavailable(f"the log could not be read in {READ_SECONDS:.0f} seconds")
        data = self._log.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _skip_to_end(log: BinaryIO) -> bool:
    """Move to the first line of the last ``READ_BYTES``; whether anything was skipped."""
    size = os.fstat(log.fileno()).st_size
    if size <= READ_BYTES:
        return False
    log.seek(size - READ_BYTES)
    log.readline(_BUFFER_BYTES)
    return True


def _tell(task: asyncio.Task[Diagnosis]) -> None:
    """Logs a failed analysis, because nobody may ask for its result."""
    if not task.cancelled() and (error := task.exception()):
        structlog.get_logger().error("attribution_failed", error_class=type(error).__name__, exc_info=error)
