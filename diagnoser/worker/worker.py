"""Claims attempts that are due, diagnoses them, and saves verdict, plan and effects in one transaction.

A worker that dies loses nothing: its lease ends and another one starts over. Two workers never save for one claim.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import structlog

from diagnoser.model import AttemptKey, Diagnosis, Facts, OutboxMessage, Plan
from diagnoser.model.errors import Conflict, Unavailable
from diagnoser.model.taxonomy import Outcome
from diagnoser.observability.metrics import Metrics, Watched
from diagnoser.ports import (
    Claim,
    Clock,
    DiagnosisRecord,
    LogStore,
    PlanTransition,
    RecoveryStore,
    Timing,
    WakeSignal,
    WorkStore,
)
from diagnoser.worker.maintenance import Expire, Maintenance, Merge, RetentionConfig

Diagnose = Callable[[list[bytes], Facts], Diagnosis]
"""Deltas of one attempt, in any order, and what else is known -> verdict. Runs in a thread."""

Decide = Callable[[Claim, Diagnosis, float], tuple[DiagnosisRecord, Plan | None, list[OutboxMessage]]]
"""What is stored and sent for a verdict at a time."""

Enrich = Callable[[DiagnosisRecord, list[bytes], Facts], Awaitable[Diagnosis | None]]
"""A better verdict, or None to keep the one that is published. Takes its time; bounded by a deadline."""

Recall = Callable[[AttemptKey, Diagnosis, list[bytes]], Awaitable[Diagnosis]]
"""The verdict, or that of a confirmed incident which is the same failure. Quick, and never raises."""

Ruler = Callable[[DiagnosisRecord], PlanTransition]
"""How the store settles the plan of a record against what happened before."""

Gather = Callable[[Claim, list[bytes]], Awaitable[Facts]]
"""What is known beside the log; without it only what the claim itself says."""

Refresh = Callable[[], Awaitable[object]]
"""Takes over rules that were learned or changed, by any replica."""

Credit = Callable[[Claim, DiagnosisRecord], Awaitable[None]]
"""What a verdict proves about an earlier one, stored before it is saved itself. Quick, idempotent, never raises."""

Observe = Callable[[DiagnosisRecord, list[bytes], Facts], Awaitable[None]]
"""Looks at a verdict that was saved: what rules on trial would have said. Never raises."""

Learn = Callable[[Claim, Diagnosis, list[bytes]], Awaitable[None]]
"""Remembers what a clean run prints; ignores other runs."""

SHORTEST = 0.02
"""Seconds of the shortest sleep: another replica may hold what is due."""


class WorkerStore(LogStore, WorkStore, RecoveryStore, Protocol):
    """The part of the store that a worker uses."""


class ClaimResult(StrEnum):
    """What became of a claim."""

    SAVED = "saved"
    SOUND = "sound"  # the run goes on and its log shows no cause
    OVERTAKEN = "overtaken"  # the lease ran out and somebody else took it
    DIAGNOSIS_FAILED = "diagnosis_failed"  # a fault of our own: put off
    STORE_AWAY = "store_away"
    ENRICHED = "enriched"
    NOT_ENRICHED = "not_enriched"
    ENRICHMENT_LATE = "enrichment_late"
    ENRICHMENT_FAILED = "enrichment_failed"
    ENRICHMENT_STALE = "enrichment_stale"  # a newer verdict was there first


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker does with an attempt; the composition root says it. diagnose and merge run in threads.

    rule: settles plans. refresh: before each round.
    """

    diagnose: Diagnose
    decide: Decide
    merge: Merge
    enrich: Enrich | None = None
    rule: Ruler | None = None
    expire: Expire | None = None
    facts: Gather | None = None
    learn: Learn | None = None
    recall: Recall | None = None
    refresh: Refresh | None = None
    credit: Credit | None = None
    observe: Observe | None = None


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Seconds, except: at_once and enrich_at_once are numbers of attempts; bounds: of what is kept.

    lease: how long a claim holds; renewed while the work lasts. A claim that failed waits ``lease * 2**tries``, at
    most ``longest``. enrich: deadline of one enrichment. poll: the longest sleep. silent: a run that has printed
    nothing for so long is looked at, each time the silence has doubled; ``look``: time between two searches for such
    runs.
    """

    lease: float = 60.0
    longest: float = 3600.0
    enrich: float = 30.0
    poll: float = 1.0
    at_once: int = 2
    enrich_at_once: int = 4
    silent: float = 300.0
    look: float = 15.0
    bounds: RetentionConfig = field(default_factory=RetentionConfig)


class Worker:
    """Made once; ``run`` it as a task, or ``step`` it in a test and ``finish`` what it started."""

    def __init__(
        self,
        store: WorkerStore,
        work: Work,
        clock: Clock,
        wake: WakeSignal,
        outbox: WakeSignal,
        timing: Timing,
        metrics: Metrics,
        pace: WorkerConfig = WorkerConfig(),
    ) -> None:
        """wake: tells that an attempt may be due. outbox: is told when there may be effects to send."""
        self._store = store
        self._work = work
        self._clock = clock
        self._wake = wake
        self._outbox = outbox
        self._timing = timing
        self._metrics = metrics
        self._pace = pace
        self._seats = asyncio.Semaphore(pace.enrich_at_once)
        self._enriching: set[asyncio.Task[None]] = set()
        self._next_look = 0.0
        self._housekeeping = Maintenance(store, work.merge, work.expire, clock, outbox, metrics, pace.bounds)
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Until it is cancelled. A database that is away is waited for."""
        try:
            while True:
                await self._round()
        finally:
            for task in self._enriching:
                task.cancel()
            await self.finish()

    async def step(self) -> int:
        """One round over what is due: the number of claims that were handled. Raises Unavailable."""
        if self._work.refresh:
            await self._work.refresh()
        claims = await self._store.claim_attempts(self._clock(), self._timing, self._pace.lease, self._pace.at_once)
        claims += await self._silent()
        await asyncio.gather(*(self._handle(claim) for claim in claims))
        await self._housekeeping.sweep()
        return len(claims)

    async def finish(self) -> None:
        """Wait for the enrichments that are under way."""
        await asyncio.gather(*self._enriching, return_exceptions=True)

    async def _round(self) -> None:
        try:
            if await self.step():
                return
        except Unavailable as error:
            self._log.warning("worker_waits", error=str(error))
        await self._wake.wait(await self._pause())

    async def _pause(self) -> float:
        """Until the next attempt that has ended is due, if that is soon."""
        with suppress(Unavailable):
            due = await self._store.next_end(self._timing)
            if due is not None:
                return max(SHORTEST, min(self._pace.poll, due - self._clock()))
        return self._pace.poll

    async def _handle(self, claim: Claim) -> None:
        try:
            async with self._kept(claim):
                reason = await self._diagnose(claim)
            self._tell(claim.attempt.key, reason)
        except Conflict:
            self._tell(claim.attempt.key, ClaimResult.OVERTAKEN)
        except Unavailable as error:
            self._tell(claim.attempt.key, ClaimResult.STORE_AWAY, error)
        except Exception as error:  # one attempt that cannot be diagnosed must not stop the others
            self._tell(claim.attempt.key, ClaimResult.DIAGNOSIS_FAILED, error)
            await self._put_off(claim)

    async def _diagnose(self, claim: Claim) -> ClaimResult:
        started, key = self._clock(), claim.attempt.key
        data = await self._data(key)
        facts = await self._facts(claim, data)
        diagnosis = await asyncio.to_thread(self._work.diagnose, data, facts)
        if is_sound(claim, diagnosis):
            await self._store.release(claim, self._look_again(claim))
            return ClaimResult.SOUND
        if self._work.recall:
            diagnosis = await self._work.recall(key, diagnosis, data)
        record, plan, effects = self._work.decide(claim, diagnosis, self._clock())
        if self._work.credit:
            await self._work.credit(claim, record)
        rule = self._rule(record)
        await self._store.save_diagnosis(claim, record, plan, effects, rule)
        self._metrics.ruled(rule)
        self._metrics.observe_diagnosis(diagnosis, self._clock() - started)
        self._outbox.notify()
        self._begin_enrichment(claim, record, facts)
        await self._afterwards(claim, record, data, facts)
        return ClaimResult.SAVED

    async def _afterwards(self, claim: Claim, record: DiagnosisRecord, data: list[bytes], facts: Facts) -> None:
        """What is learned from a verdict that is published."""
        if self._work.observe:
            await self._work.observe(record, data, facts)
        if self._work.learn:
            await self._work.learn(claim, record.diagnosis, data)

    async def _facts(self, claim: Claim, data: list[bytes]) -> Facts:
        if self._work.facts:
            return await self._work.facts(claim, data)
        return Facts(claim.job, claim.attempt.key.number, claim.attempt.events)

    def _rule(self, record: DiagnosisRecord) -> Watched | None:
        return Watched(self._work.rule(record)) if self._work.rule else None

    async def _data(self, key: AttemptKey) -> list[bytes]:
        return [delta.data for delta in await self._store.deltas(key)]

    async def _put_off(self, claim: Claim) -> None:
        """Wait longer after each failure. When even this fails, the lease itself is the wait."""
        wait = min(self._pace.longest, self._pace.lease * 2.0 ** min(claim.tries, 30))
        with suppress(Conflict, Unavailable):
            await self._store.extend(claim, self._clock() + wait)

    @asynccontextmanager
    async def _kept(self, claim: Claim) -> AsyncIterator[None]:
        """Renew the lease while the block runs."""
        done = asyncio.Event()
        renewal = asyncio.create_task(self._renew(claim, done))
        try:
            yield
        finally:
            done.set()
            await renewal

    async def _renew(self, claim: Claim, done: asyncio.Event) -> None:
        """Ends with ``done``, or when the lease cannot be renewed: the save will find out."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.lease / 3):
                    await done.wait()
                    return
            try:
                await self._store.extend(claim, self._clock() + self._pace.lease)
            except (Conflict, Unavailable):
                return

    def _begin_enrichment(self, claim: Claim, record: DiagnosisRecord, facts: Facts) -> None:
        if self._work.enrich is None:
            return
        task = asyncio.create_task(self._enrich(self._work.enrich, claim, record, facts))
        self._enriching.add(task)
        task.add_done_callback(self._enriching.discard)

    async def _enrich(self, enrich: Enrich, claim: Claim, record: DiagnosisRecord, facts: Facts) -> None:
        """The log is read again when a seat is free: what waits for one holds no log text."""
        async with self._seats:
            try:
                async with asyncio.timeout(self._pace.enrich):
                    better = await enrich(record, await self._data(record.attempt), facts)
                reason = await self._publish(claim, record, better)
            except TimeoutError:
                self._tell(record.attempt, ClaimResult.ENRICHMENT_LATE)
            except Exception as error:  # the verdict that is published stands
                self._tell(record.attempt, ClaimResult.ENRICHMENT_FAILED, error)
            else:
                self._tell(record.attempt, reason)

    async def _publish(self, claim: Claim, record: DiagnosisRecord, better: Diagnosis | None) -> ClaimResult:
        if better is None:
            return ClaimResult.NOT_ENRICHED
        new, plan, effects = self._work.decide(claim, better, self._clock())
        rule = self._rule(new)
        if not await self._store.replace_diagnosis(record.id, new, plan, effects, rule):
            return ClaimResult.ENRICHMENT_STALE
        self._metrics.ruled(rule)
        self._outbox.notify()
        return ClaimResult.ENRICHED

    async def _silent(self) -> list[Claim]:
        """Now and then, runs that may hang."""
        now = self._clock()
        if now < self._next_look:
            return []
        self._next_look = now + self._pace.look
        return await self._store.claim_silent(now, self._pace.silent, self._pace.lease, self._pace.at_once)

    def _look_again(self, claim: Claim) -> float:
        """When the silence of a sound run will have doubled; at once for what was claimed for a fatal line."""
        attempt, now = claim.attempt, self._clock()
        return 0.0 if attempt.fatal is not None else now + max(self._pace.silent, now - attempt.last_line)

    def _tell(self, key: AttemptKey, reason: ClaimResult, error: Exception | None = None) -> None:
        fields = {"job": key.job, "attempt": key.number, "reason": reason.value}
        if error is None:
            self._log.info("attempt_handled", **fields)
        else:
            self._log.error("attempt_failed", **fields, error_class=type(error).__name__, exc_info=error)


def is_sound(claim: Claim, diagnosis: Diagnosis) -> bool:
    """The run goes on, and nothing in its log says that it should not."""
    return (
        claim.attempt.ended is None
        and diagnosis.root_cause is None
        and diagnosis.outcome in (Outcome.COMPLETED, Outcome.UNKNOWN)
    )
