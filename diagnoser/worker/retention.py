"""Drops what is older than its age, and the oldest where too much is stored: one short commit a step."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Archive, Clock

DAY = 86_400.0
DAYS_LEAST = 8
"""Decisions about plans look back seven days."""
SESSION_DAYS = 30
"""Days that a session is kept after it expired: it tells from where a person has signed in before."""
LOGIN_SECONDS = 3600.0
"""After the last of them, wrong passwords of an account or an address are forgotten; they count for ten minutes."""
PAUSE = 600.0
"""Seconds between two looks when there is nothing to drop."""
WORK_PAUSE = 20.0
"""The pause after a step that dropped something, by how long it took: an idle service stays one while years go."""
ATTEMPTS, ROWS = 20, 500
"""Attempts, and rows of one kind, that a commit drops."""
SWEEP_PAUSE = 6 * 3600.0
"""Seconds between two looks at all jobs, and at all objects of the archive."""
SWEPT_AFTER = 2 * DAY
"""Age of objects that nobody refers to. The key of an object holds its day: a younger one may be about to be referred
to."""
OBJECTS = 1_000
CLOCKS_DIFFER = 300.0
"""Seconds between this clock and the database's from which on nothing is dropped."""
CATCH_UP = 30.0
"""Seconds by which a clock without another beside it is followed in a second."""


@dataclass(frozen=True, slots=True)
class RetentionAges:
    """attempts_days: attempts with all that belongs to them, incidents of which nothing is left, what happened to
    nodes, and evaluation runs. 0: kept for ever.

    stored_bytes: of logs and dumps; beyond it the oldest attempts go, but none with news in the last ``DAYS_LEAST``
    days. 0: no bound. archive_days, archived_bytes: the same of archived lines. audit_days: entries of the audit log.
    """

    attempts_days: int = 0
    dumps_days: int = 0
    messages_days: int = 0
    stored_bytes: int = 0
    archive_days: int = 0
    archived_bytes: int = 0
    audit_days: int = 0


@dataclass(eq=False)
class Retention:
    """Call ``step`` now and then; all replicas may. Raises Unavailable."""

    store: SqlStore
    clock: Clock
    ages: RetentionAges
    metrics: Metrics
    archive: Archive | None = None
    monotonic: Clock = time.monotonic

    def __post_init__(self) -> None:
        self._rested, self._pause = float("-inf"), PAUSE
        self._excess: int | None = None  # bytes to drop; None: to be counted
        self._archive_excess: int | None = None
        self._swept = float("-inf")
        self._swept_to = ""  # key of the object that was looked at last
        self._asked, self._warned = self.monotonic(), float("-inf")  # when the time was asked for, and doubted, last
        self._now = 0.0

    async def step(self) -> int:
        """How much was dropped; 0 when there is nothing to do, now or for a while."""
        started = self.clock()
        if 0 <= started - self._rested < self._pause:
            return 0
        count = await self.drop(await self.trusted_time())
        self._rested, self._pause = self.clock(), PAUSE
        if count:
            self._pause = WORK_PAUSE * (self._rested - started)
        return count

    async def trusted_time(self) -> float:
        """The time by which what is old may go: nothing brings it back where this clock is wrong. 0.0 while it differs
        from the database's. Where that has none of its own, the time of the last drop moves on thirty times as fast as
        time passes, so that a site that was off for a month has caught up in a day."""
        now, running = self.clock(), self.monotonic()
        passed, self._asked = running - self._asked, running
        last, database = await self.store.retention.clocks()
        trusted = now
        if database and abs(now - database) > CLOCKS_DIFFER:
            trusted = 0.0
        if last and not database:
            trusted = min(now, last + CATCH_UP * passed)
        if now - trusted > DAY and running - self._warned >= PAUSE:
            self._warned = running
            why = "the database's clock" if database else "the last drop"
            structlog.get_logger().warning("clock_doubted", ahead_seconds=round(now - (database or last)), of=why)
            self.metrics.retention_refused.inc()
        if trusted:
            await self.store.retention.note_clock(trusted)
        return trusted

    async def drop(self, now: float | None = None) -> int:
        """The same at once, without the pause. now: None for that of the clock, whatever it shows."""
        self._now = self.clock() if now is None else now
        for work in (self._logins, self._by_age, self._by_size, self._archived, self._sweep):
            if count := await work():
                return count
        self._excess = self._archive_excess = None
        return 0

    async def _logins(self) -> int:
        return await self.store.logins.drop(self.clock() - LOGIN_SECONDS, ROWS)

    async def _by_age(self) -> int:
        ages, store = self.ages, self.store
        rows: tuple[tuple[str, int, Callable[[float, int], Awaitable[int]]], ...] = (
            ("messages", ages.messages_days, store.retention.drop_messages),
            ("dumps", ages.dumps_days, store.retention.drop_dumps),
            ("node_events", ages.attempts_days, store.retention.drop_node_events),
            ("node_facts", ages.attempts_days, store.retention.drop_node_facts),
            ("incidents", ages.attempts_days or bool(ages.stored_bytes), store.retention.drop_incidents),
            ("trials", ages.attempts_days, store.evaluations.drop),
            ("sessions", SESSION_DAYS, store.users.drop_sessions),
            ("audit", ages.audit_days, store.audit.drop),
        )
        for kind, days, drop in rows:
            if days and (count := await drop(self._before(days), ROWS)):
                self.metrics.dropped.labels(kind).inc(count)
                return count
        return await self._drop_attempts(self._before(ages.attempts_days)) if ages.attempts_days else 0

    async def _by_size(self) -> int:
        """The size is counted once, and then reckoned by what is dropped."""
        if not self.ages.stored_bytes:
            return 0
        if self._excess is None:
            self._excess = await self.store.retention.stored_bytes() - self.ages.stored_bytes
        if self._excess <= 0:
            return 0
        return await self._drop_attempts(self._before(1))

    async def _archived(self) -> int:
        """What is dropped here is forgotten first, and swept then."""
        ages = self.ages
        if ages.archive_days and (count := await self._forget(self._before(ages.archive_days))):
            return count
        if not ages.archived_bytes:
            return 0
        if self._archive_excess is None:
            self._archive_excess = await self.store.archive.archived_bytes() - ages.archived_bytes
        return await self._forget(self._before(1)) if self._archive_excess > 0 else 0

    async def _forget(self, before: float) -> int:
        count, size = await self.store.archive.drop_archived(before, ROWS)
        if self._archive_excess is not None:
            self._archive_excess -= size
        self.metrics.dropped.labels("archived").inc(count)
        return count

    async def _sweep(self) -> int:
        """What nothing refers to: jobs that never ran, and objects of dropped lines or of a compaction that crashed."""
        if 0 <= self.clock() - self._swept < SWEEP_PAUSE:
            return 0
        days = self.ages.attempts_days
        if days and (count := await self.store.retention.drop_empty_jobs(self._before(days), ROWS)):
            self.metrics.dropped.labels("jobs").inc(count)
            return count
        if self.archive and (count := await self._sweep_objects(self.archive)):
            return count
        self._swept = self.clock()
        return 0

    async def _sweep_objects(self, archive: Archive) -> int:
        """How many were looked at; 0 when that were all."""
        objects = await archive.objects(self._swept_to, OBJECTS)
        self._swept_to = objects[-1].key if objects else ""
        settled = [stored.key for stored in objects if stored.changed < self._now - SWEPT_AFTER]
        if settled and (orphans := sorted(set(settled) - await self.store.archive.archived_keys(settled))):
            await archive.delete(orphans)
        return len(objects)

    async def _drop_attempts(self, before: float) -> int:
        dropped = await self.store.retention.drop_attempts(before, ATTEMPTS)
        if self._excess is not None:
            self._excess -= dropped.stored
        for kind in ("attempts", "diagnoses", "plans"):
            self.metrics.dropped.labels(kind).inc(getattr(dropped, kind))
        return dropped.attempts

    def _before(self, days: int) -> float:
        return self._now - max(days, DAYS_LEAST) * DAY
