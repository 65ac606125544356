"""Where a running attempt stands, by the end of its log: a page of many runs must not read whole logs."""

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from operator import attrgetter

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor, Delta, read_pieces
from diagnoser.localize.hang_detection import training_steps
from diagnoser.model import AttemptKey, Progress, RunStatus
from diagnoser.model.errors import DiagnoserError
from diagnoser.model.logs import StoredPiece
from diagnoser.ports import Clock

PIECES = 8
"""Newest pieces of a log that are read: a few commits, or the last two million bytes of a busy run."""
PIECE_BYTES = 256 << 10
"""Larger pieces are merged ones of a whole log, which take long to read. The next lines come in a small one again."""
FRESH_SECONDS = 5.0
"""How long a status is shown before the log is read again, however many pages are open."""
REMEMBERED = 2_000
"""Attempts whose status is kept: what the newest lines do not say, earlier ones did."""
_CHARS = 300


class RunStatuses:
    """One a process: what was read lately is shown to everybody who asks."""

    def __init__(self, store: SqlStore, compressor: Callable[[], Compressor], clock: Clock) -> None:
        self._store = store
        self._compressor = compressor
        self._clock = clock
        self._known: OrderedDict[AttemptKey, tuple[RunStatus, int, float]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, revisions: dict[AttemptKey, int]) -> dict[AttemptKey, RunStatus]:
        """The status of these attempts. revisions: those of their logs, which tell whether something came.

        Raises Unavailable. A log that cannot be read has an empty status.
        """
        async with self._turn:
            await self._refresh(revisions)
            return {key: self._known[key][0] for key in revisions}

    async def _refresh(self, revisions: dict[AttemptKey, int]) -> None:
        now = self._clock()
        stale = [key for key, revision in revisions.items() if not self._is_fresh(key, revision, now)]
        newest = await self._store.logs.newest_pieces(stale, PIECES, PIECE_BYTES) if stale else {}
        statuses = await asyncio.to_thread(self._read, newest)
        for key in revisions:
            if key in statuses:
                earlier = self._known[key][0] if key in self._known else RunStatus()
                self._known[key] = (_completed(statuses[key], earlier), revisions[key], now)
            self._known.move_to_end(key)
        while len(self._known) > max(REMEMBERED, len(revisions)):
            self._known.popitem(last=False)

    def _is_fresh(self, key: AttemptKey, revision: int, now: float) -> bool:
        _, known, read = self._known.get(key, (None, -1, -math.inf))
        if revision == known:
            return True
        return 0 <= now - read < FRESH_SECONDS

    def _read(self, newest: dict[AttemptKey, list[StoredPiece]]) -> dict[AttemptKey, RunStatus]:
        statuses = {}
        for key, pieces in newest.items():
            try:
                delta = read_pieces(list(map(attrgetter("data"), pieces)), self._compressor)
                statuses[key] = run_status(delta)
            except DiagnoserError as error:
                structlog.get_logger().warning("status_unreadable", job=key.job, attempt=key.number, error=str(error))
                statuses[key] = RunStatus()
        return statuses


def run_status(delta: Delta) -> RunStatus:
    """What the lines of the delta say."""
    digest = AttemptLog(delta).digest
    lines = (line for line in digest.lines if line.stream.from_job)
    last = max(lines, key=lambda line: (line.received, line.time, line.number), default=None)
    points = sorted(digest.progress, key=lambda point: (point.received, point.time, point.line))
    status = RunStatus(last_line=last.text[:_CHARS] if last else "")
    if points:
        status = replace(status, stage=points[-1].stage)
    elif digest.phases:
        status = replace(status, stage=digest.phases[-1].stage)
    steps = training_steps(points)
    if not steps:
        return status
    newest = steps[-1]
    return replace(
        status,
        step=newest.step,
        total=_total(newest, delta),
        loss=newest.loss,
        grad_norm=newest.grad_norm,
        step_seconds=_pace(steps) if newest.step_seconds is None else newest.step_seconds,
        tokens_per_second=newest.tokens_per_second,
        at=newest.received or newest.time,
    )


def _total(point: Progress, delta: Delta) -> int | None:
    """The step at which the run ends, where the line counts its steps as ``7/12`` or ``7 of 12``."""
    count = re.compile(rf"(?<![\d.]){point.step}(?: */ *| of )(\d{{1,12}})(?![\d.])")
    totals = []
    for share in delta.shares.values():
        if point.line in share.points:
            totals += count.findall(share.points[point.line].line.decode("utf-8", "replace"))[:1]
    return max(map(int, totals), default=None)


def _pace(steps: Sequence[Progress]) -> float | None:
    """Seconds a step by the times of the lines of the rank that printed the newest one."""
    last = steps[-1]
    own = [point for point in steps if point.rank == last.rank]
    numbers, seconds = [point.steps_made for point in own], last.time - own[0].time
    done = numbers[-1] - numbers[0]
    if min(done, seconds) > 0:
        return seconds / done
    return None


def _completed(status: RunStatus, earlier: RunStatus) -> RunStatus:
    """What the newest lines leave open, as it was before. A step belongs with its loss and its time."""
    names = set(map(attrgetter("name"), fields(RunStatus)))
    if status.step is not None:
        if earlier.step is None:
            return status
        if status.step < earlier.step:
            return status
        names -= {"step", "loss", "grad_norm", "at"}
    for name in names:
        if getattr(status, name) in ("", None, 0.0):
            status = replace(status, **{name: getattr(earlier, name)})
    return status
