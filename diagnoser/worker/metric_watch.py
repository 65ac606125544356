"""Watches the metrics of running attempts: tells people while a run goes on, and hands a diverged one to the worker.

What is remembered of a run is a pure function of its lines, so that every replica may watch it, and one that is started
reads what is stored. The messages of replicas have the same keys, and one claim makes one verdict.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, Compressor, read_pieces
from diagnoser.localize.metric_watch import MetricHistory
from diagnoser.model import AttemptKey, MetricEvent, MetricEventKind, Progress
from diagnoser.model.errors import DiagnoserError
from diagnoser.model.job_contract import contract_of
from diagnoser.model.logs import StoredPiece
from diagnoser.model.metric_events import NOWHERE
from diagnoser.model.taxonomy import Outcome
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.ports import Clock, WakeSignal
from diagnoser.worker.repeat import send
from diagnoser.worker.straggler_looks import StragglerLooks

PERIOD = 0.5
WATCHED, NEW = 1000, 20
"""Attempts that are watched, those that printed last; and how many are read for the first time at once."""
FRESH_SECONDS = 60.0
STILL_SECONDS, STILL_AGAIN = 60.0, 1.5
"""Without a step, of a run that prints, before it is looked at as if it were silent; and how much longer each time."""
PIECES, PIECE_BYTES = 16, 256 << 10
"""Newest pieces of a log that are read at a look, and the largest of them."""

_Pieces = dict[AttemptKey, Sequence[StoredPiece]]


@dataclass(slots=True)
class WatchedRun:
    """revision: of the log as it was read. piece: id of the newest piece that was. told: what need not be again.
    still: for how long it had made no step when that was looked at last. resumed: a step that it made after a verdict
    that it hangs."""

    revision: int
    piece: int = 0
    history: MetricHistory = field(default_factory=MetricHistory)
    told: set[MetricEventKind] = field(default_factory=set)
    still: float = 0.0
    resumed: float = 0.0

    def went_on(self, verdict: float) -> bool:
        """Whether it made steps after a verdict, and not all at once: a process that is ended prints what it held
        back."""
        if self.resumed <= verdict:
            self.resumed = self.history.advanced
        return verdict < self.resumed < self.history.advanced

    def stands_still(self, now: float) -> bool:
        """Whether it is to be looked at because it made no step, though it prints."""
        still = now - self.history.advanced
        if still < self.still:
            self.still = 0.0
        if not self.history.advanced or still < max(STILL_SECONDS, STILL_AGAIN * self.still):
            return False
        self.still = still
        return True


@dataclass(eq=False)
class MetricWatch:
    """``step`` it each ``PERIOD``.

    attempts_due: notified of a run that diverged; outbox: of messages. stragglers: looks at runs that crawl.
    """

    store: SqlStore
    compressor: Callable[[], Compressor]
    planner: DecisionPlanner
    clock: Clock
    attempts_due: WakeSignal
    outbox: WakeSignal
    stragglers: StragglerLooks
    _runs: OrderedDict[AttemptKey, WatchedRun] = field(default_factory=OrderedDict, init=False)
    _diverged: set[AttemptKey] = field(default_factory=set[AttemptKey], init=False)
    _still: set[AttemptKey] = field(default_factory=set[AttemptKey], init=False)

    def take_diverged(self) -> list[AttemptKey]:
        """The runs that diverged since the last call."""
        taken, self._diverged = sorted(self._diverged), set()
        return taken

    def take_still(self) -> list[AttemptKey]:
        """The runs that print and may hang all the same, since the last call: what a monitor beside the training prints
        is no sign of life."""
        taken, self._still = sorted(self._still), set()
        return taken

    async def step(self) -> bool:
        """Read what running attempts have printed since the last look. Whether more is to be read, or looks at crawling
        runs are under way. Raises Unavailable."""
        revisions = await self.store.work.printing(self.clock() - FRESH_SECONDS, WATCHED)
        new = [key for key in revisions if key not in self._runs][:NEW]
        pieces = await self._unread(revisions, new)
        for key, stored in pieces.items():
            self._runs[key].revision = revisions[key]
            await self._read_on(key, self._runs[key], stored, is_new=key in new)
            # One that prints nothing is looked at as a silent one: not a second time here.
            if self._runs[key].stands_still(self.clock()):
                self._still.add(key)
        if pieces:
            await self._withdraw_verdicts()
        for key, event in await self.stragglers.step():
            await self._tell_once(key, self._runs.get(key), event)
        while len(self._runs) > 2 * WATCHED:
            self._runs.popitem(last=False)
        return len(new) == NEW or bool(self.stragglers.runs)

    async def _unread(self, revisions: Mapping[AttemptKey, int], new: Collection[AttemptKey]) -> _Pieces:
        """The pieces of the runs that printed since they were read; of new ones, all."""
        changed = [key for key, run in self._runs.items() if revisions.get(key, run.revision) != run.revision]
        pieces: _Pieces = {}
        if changed:
            pieces |= await self.store.logs.newest_pieces(changed, PIECES, PIECE_BYTES)
        for key in new:
            self._runs[key] = WatchedRun(revisions[key])
            await self._check_contract(key, self._runs[key])
            pieces[key] = await self.store.logs.pieces(key)
        return pieces

    async def _withdraw_verdicts(self) -> None:
        """Take back what was said of runs that hung and make steps again, or whose loss came back."""
        now = self.clock()
        for record in await self.store.work.went_on(now - FRESH_SECONDS):
            key, run = record.attempt, self._runs.get(record.attempt)
            job = await self.store.jobs.find(key.job)
            if run is None or job is None or not run.went_on(record.created):
                continue
            what, since = "run went on", run.resumed
            if record.diagnosis.outcome is not Outcome.HUNG:
                what, since = "loss came back", run.history.advanced
                if not run.history.came_back:
                    continue
            why = f"The {what} at {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC"
            incident = await self.store.incidents.of_diagnosis(record.id)
            messages = self.planner.alert_went_on(record, job, incident.id if incident else "", why, now)
            if await self.store.work.withdraw_verdict(record, why, now, messages):
                structlog.get_logger().info("verdict_withdrawn", job=key.job, attempt=key.number, diagnosis=record.id)
                self.outbox.notify()

    async def _read_on(self, key: AttemptKey, run: WatchedRun, stored: Iterable[StoredPiece], *, is_new: bool) -> None:
        """Tell what the run's new lines show. Of a run that was read before, deltas repeat what raw pieces had."""
        unread = [piece for piece in stored if piece.id > run.piece]
        if not is_new:
            unread = [piece for piece in unread if piece.raw]
        run.piece = max(map(attrgetter("id"), stored), default=run.piece)
        await self._tell(key, run, await asyncio.to_thread(self._read, key, run, unread))
        if run.history.came_back:
            run.told.discard(MetricEventKind.DIVERGED)  # it may break again

    def _read(self, key: AttemptKey, run: WatchedRun, unread: Sequence[StoredPiece]) -> list[MetricEvent]:
        """What the run shows with its new lines; nothing where they cannot be read."""
        if not unread:
            return []
        try:
            run.history.add(self._points(unread))
        except DiagnoserError as error:
            structlog.get_logger().warning("metrics_unreadable", job=key.job, attempt=key.number, error=str(error))
        return list(run.history.events())

    def _points(self, pieces: Sequence[StoredPiece]) -> tuple[Progress, ...]:
        delta = read_pieces(list(map(attrgetter("data"), pieces)), self.compressor)
        if not any(share.points for share in delta.shares.values()):
            return ()
        return AttemptLog(delta).digest.progress

    async def _tell(self, key: AttemptKey, run: WatchedRun, events: Iterable[MetricEvent]) -> None:
        for event in events:
            if event.kind is MetricEventKind.CRAWLING:
                self.stragglers.begin(key, event)
            else:
                await self._tell_once(key, run, event)

    async def _tell_once(self, key: AttemptKey, run: WatchedRun | None, event: MetricEvent) -> None:
        """run: None where it is not watched any more."""
        if run is None or event.kind in run.told:
            return
        run.told.add(event.kind)
        structlog.get_logger().info("metric_event", job=key.job, attempt=key.number, reason=event.kind.value)
        if event.kind is MetricEventKind.DIVERGED:
            self._diverged.add(key)
            self.attempts_due.notify()
        else:
            await self._alert(key, event)

    async def _check_contract(self, key: AttemptKey, run: WatchedRun) -> None:
        """Tell the owner of a job that its contract does not count."""
        if problem := contract_of(await self.store.jobs.find(key.job)).problem:
            why = f"what its job file says to diagnoser does not count: {problem}"
            await self._tell_once(key, run, MetricEvent(MetricEventKind.BAD_CONTRACT, NOWHERE, why))

    async def _alert(self, key: AttemptKey, event: MetricEvent) -> None:
        job = await self.store.jobs.find(key.job)
        if job is None:
            return
        await send(self.store, self.planner.alert_metric(job, key.number, event, self.clock()), self.outbox)
