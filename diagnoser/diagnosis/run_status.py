"""Where a running attempt stands, by the end of its log: a page of many runs must not read whole logs."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor, Delta, read_pieces
from diagnoser.model import AttemptKey, Progress, RunStatus, Stage
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
        if key not in self._known:
            return False
        _, known, read = self._known[key]
        return revision == known or 0 <= now - read < FRESH_SECONDS

    def _read(self, newest: dict[AttemptKey, list[StoredPiece]]) -> dict[AttemptKey, RunStatus]:
        statuses = {}
        for key, pieces in newest.items():
            try:
                delta = read_pieces([piece.data for piece in pieces], self._compressor)
                statuses[key] = run_status(delta)
            except DiagnoserError as error:
                structlog.get_logger().warning("status_unreadable", job=key.job, attempt=key.number, error=str(error))
                statuses[key] = RunStatus()
        return statuses


def run_status(delta: Delta) -> RunStatus:
    """What the lines of the delta say."""
    digest = AttemptLog(delta).digest
    lines = [line for line in digest.lines if line.stream.from_job]
    last = max(lines, key=lambda line: (line.received, line.time, line.number), default=None)
    points = sorted(digest.progress, key=lambda point: (point.received, point.time, point.line))
    stage = points[-1].stage if points else digest.phases[-1].stage if digest.phases else None
    status = RunStatus(stage=stage, last_line=last.text[:_CHARS] if last else "")
    steps = [point for point in points if point.stage is Stage.TRAIN and point.step is not None]
    if not steps:
        return status
    newest = steps[-1]
    return replace(
        status,
        step=newest.step,
        total=_total(newest, delta),
        loss=newest.loss,
        step_seconds=newest.step_seconds if newest.step_seconds is not None else _pace(steps),
        tokens_per_second=newest.tokens_per_second,
        at=newest.received or newest.time,
    )


def _total(point: Progress, delta: Delta) -> int | None:
    """The step at which the run ends, where the line counts its steps as ``7/12`` or ``7 of 12``."""
    count = re.compile(rf"(?<![\d.]){point.step}(?: */ *| of )(\d{{1,12}})(?![\d.])")
    texts = (share.points[point.line].line for share in delta.shares.values() if point.line in share.points)
    totals = [int(match[1]) for text in texts if (match := count.search(text.decode("utf-8", "replace")))]
    return max(totals, default=None)


def _pace(steps: Sequence[Progress]) -> float | None:
    """Seconds a step by the times of the lines of the rank that printed the newest one."""
    own = [point for point in steps if point.rank == steps[-1].rank]
    first, last = own[0], own[-1]
    done = (last.step or 0) - (first.step or 0)
    seconds = last.time - first.time
    return seconds / done if done > 0 and seconds > 0 else None


def _completed(status: RunStatus, earlier: RunStatus) -> RunStatus:
    """What the newest lines leave open, as it was before. A step belongs with its loss and its time."""
    if status.step is None:
        kept: Collection[str] = [field.name for field in fields(RunStatus)]
    elif earlier.step is not None and status.step >= earlier.step:
        kept = ("stage", "total", "step_seconds", "tokens_per_second", "last_line")
    else:
        return status
    empty = ("", None, 0.0)
    return replace(status, **{name: getattr(earlier, name) for name in kept if getattr(status, name) in empty})
