"""Claims attempts that are due, diagnoses them, and saves verdict, plan and messages in one transaction.

A worker that dies loses nothing: its lease ends and another one starts over. Two workers never save for one claim.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import inf
from typing import Protocol

import structlog
from structlog.contextvars import bound_contextvars

from diagnoser.adapters.sql.work import WorkRepository
from diagnoser.compress import AttemptLog
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.collection_pause import collection_paused
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.diagnosis.llm_stage import LLMStage
from diagnoser.localize.hang_detection import LONGEST_DOUBT, ExpectedSilence, stands_still_after
from diagnoser.model import Attempt, AttemptKey, Baseline, Diagnosis, Facts, Job, Plan, PlanReason, TransitionResult
from diagnoser.model.errors import Conflict, Unavailable
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.work import Claim, DiagnosisRecord, Timing
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace, TraceStep, untraced
from diagnoser.planning.plan_service import PlanService, trace_transition
from diagnoser.planning.planner import DecisionPlanner, ends_running
from diagnoser.ports import Clock, WakeSignal
from diagnoser.retrieval import confirmed_failures
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures
from diagnoser.worker.lease import claimed, renewed
from diagnoser.worker.maintenance import Maintenance
from diagnoser.worker.metric_watch import MetricWatch

SLEEP_MIN = 0.02
"""Seconds of the shortest sleep: another replica may hold what is due."""
_PATIENCE_GROWTH = 1.1
_STANDSTILL = 10.0
"""Seconds by which a round begins later than it was to, from which on the process, or the database, stood still."""
_ASLEEP = 300.0
"""Seconds of such a pause from which on the machine slept, and its jobs with it. Shorter ones, as of a database that is
away now and then, take nothing from the silence of a run, or a service that has many would find no hang."""
_SUSPENDED_LOOK = 3600.0
"""Seconds for which a suspended run is left alone; its next event makes it due again."""
_LOOK_AGAIN = 0.25
"""Share of its silence after which a run that may go on is judged again: the dumps that were asked for have come."""


class Analysis(confirmed_failures.Analysis, Protocol):
    """``learning.rule_registry.RuleRegistry``."""

    async def refresh(self) -> bool:
        """Take over rules that were learned or changed, by any replica."""

    async def analyze(self, log: AttemptLog, facts: Facts) -> Diagnosis: ...

    async def patience(self, job: Job, log: AttemptLog, known: Baseline) -> ExpectedSilence | None:
        """How long the run may be silent now; None where its log does not tell."""


class ShadowEvaluation(Protocol):
    """``learning.shadow_evaluation.ShadowEvaluator``. Neither method raises."""

    async def confirm_from_recovery(self, claim: Claim, record: DiagnosisRecord) -> None:
        """Store what a verdict proves about an earlier one, before the verdict itself is saved. Idempotent."""

    async def observe(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> None:
        """Count what rules on trial would have said about a verdict that was saved."""


class ClaimResult(StrEnum):
    SAVED = "saved"
    SOUND = "sound"  # the run goes on and its log shows no cause
    MAY_GO_ON = "may_go_on"  # its scheduler shows it running, and it may have outlived what looks fatal
    SUSPECTED = "suspected"  # it is silent for longer than usual: evidence is asked for
    ENDED_MEANWHILE = "ended_meanwhile"  # the run ended after its log was read: the whole of it is to be diagnosed
    OVERTAKEN = "overtaken"  # the lease ran out and somebody else took it
    HANDED_OVER = "handed_over"  # the process stops
    DIAGNOSIS_FAILED = "diagnosis_failed"  # a fault of our own: put off
    STORE_AWAY = "store_away"
    LLM_NOT_ASKED = "llm_not_asked"
    LLM_VERDICT_SAVED = "llm_verdict_saved"
    LLM_VERDICT_STALE = "llm_verdict_stale"  # a newer verdict was there first
    LLM_STAGE_LATE = "llm_stage_late"
    LLM_STAGE_FAILED = "llm_stage_failed"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """In seconds, except claims_max and llm_stages_max: attempts at one time. timing: when an attempt is due.

    lease: how long a claim holds; renewed three times as often while the work lasts, so that it is short without a slow
    worker losing it. A claim that failed waits ``backoff * 2**tries``, at most ``backoff_max``. llm_deadline: of one
    run of the model's stage. poll: the longest sleep. hang_check_idle: from this silence on a run is compared with its
    own rhythm; hang_diagnosis_idle: from this one on it is diagnosed as well, and again each time the silence has
    doubled. hang_check_interval: time between two searches for silent runs. catch_up: after a start, or a pause in
    which this process did nothing, the time that shippers have to send what they kept meanwhile.
    """

    timing: Timing
    lease: float = 6.0
    backoff: float = 60.0
    backoff_max: float = 3600.0
    llm_deadline: float = 30.0
    poll: float = 1.0
    claims_max: int = 2
    llm_stages_max: int = 4
    hang_check_idle: float = 11.0
    hang_diagnosis_idle: float = 300.0
    hang_check_interval: float = 1.0
    catch_up: float = 0.0


@dataclass(eq=False, kw_only=True)
class Worker:
    """Made once; ``run`` it as a task, or ``step`` it in a test and ``finish`` what it started.

    attempts_due: signals that an attempt may be due. outbox: notified when there may be a message to send.

    evidence: told of runs that may hang. watch: tells of runs to look at that print.
    """

    store: WorkRepository
    logs: AttemptLogs
    context: DiagnosisContext
    analysis: Analysis
    confirmed_failures: ConfirmedFailures
    planner: DecisionPlanner
    shadow: ShadowEvaluation
    llm_stage: LLMStage | None
    plans: PlanService
    maintenance: Maintenance
    clock: Clock
    attempts_due: WakeSignal
    outbox: WakeSignal
    metrics: Metrics
    config: WorkerConfig
    evidence: EvidenceCollection
    watch: MetricWatch
    trace: Trace = untraced

    def __post_init__(self) -> None:
        self._llm_seats = asyncio.Semaphore(self.config.llm_stages_max)
        self._llm_tasks: set[asyncio.Task[None]] = set()
        self._next_hang_check = 0.0
        self._last_round = self._woke_up = -inf
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Until it is cancelled. Waits while the database is down."""
        try:
            while True:
                await self._round()
        finally:
            for task in self._llm_tasks:
                task.cancel()
            await self.finish()

    async def step(self) -> int:
        """One round over what is due: the number of claims that were handled. Raises Unavailable."""
        config = self.config
        self._wait_for_shippers()
        await self.analysis.refresh()
        due = self.store.claim_attempts(self.clock(), config.timing, config.lease, config.claims_max)
        async with (
            claimed(due, self._release_on_shutdown) as claims,
            claimed(self._claim_silent_attempts(), self._release_on_shutdown) as silent,
            claimed(self._claim_running(self.watch.take_diverged()), self._release_on_shutdown) as diverged,
            claimed(self._claim_running(self.watch.take_still()), self._release_on_shutdown) as still,
        ):
            judged = [self._handle(claim, self._check_for_hang) for claim in (*silent, *still)]
            await asyncio.gather(*(self._handle(claim, self._process) for claim in (*claims, *diverged)), *judged)
        await self.maintenance.sweep()
        self._last_round = self.clock()
        return len(claims) + len(silent) + len(diverged) + len(still)

    def _wait_for_shippers(self) -> None:
        """Call no run silent at first where nothing could be heard: at a start, and after the clock jumped, the machine
        was suspended, or the database was away. Jobs on a machine that was suspended have stood still with it."""
        now = self.clock()
        pause = now - self._last_round - self.config.poll
        if _ASLEEP < pause < inf:
            self._woke_up = now
        if self.config.catch_up and pause > _STANDSTILL:
            self._next_hang_check = max(self._next_hang_check, now + self.config.catch_up)

    async def finish(self) -> None:
        """Wait for the LLM stages that are under way."""
        await asyncio.gather(*self._llm_tasks, return_exceptions=True)

    async def _round(self) -> None:
        try:
            if await self.step():
                return
        except Unavailable as error:
            self._log.warning("worker_waits", error=str(error))
        await self.attempts_due.wait(await self._pause())

    async def _pause(self) -> float:
        """Until the next attempt that has ended is due, or a run will have been silent for long, if that is soon."""
        config, pause = self.config, self.config.poll
        with suppress(Unavailable):
            now = self.clock()
            ended = await self.store.next_end(config.timing)
            if ended is not None:
                pause = min(pause, ended - now)
            silent = await self.store.next_silence(now, config.hang_check_idle, config.poll)
            if silent is not None:
                pause = min(pause, max(silent, self._next_hang_check) - now)
        return max(SLEEP_MIN, pause)

    async def _handle(self, claim: Claim, process: Callable[[Claim], Awaitable[ClaimResult]]) -> None:
        key = claim.attempt.key
        try:
            with bound_contextvars(job=key.job, attempt=key.number):  # of all that is logged meanwhile
                async with renewed(partial(self.store.extend, claim), self.config.lease, self.clock):
                    result = await process(claim)
            self._log_result(key, result)
        except Conflict:
            self._log_result(key, ClaimResult.OVERTAKEN)
        except Unavailable as error:
            self._log_result(key, ClaimResult.STORE_AWAY, error)
        except Exception as error:  # one attempt that cannot be diagnosed must not stop the others
            self._log_result(key, ClaimResult.DIAGNOSIS_FAILED, error)
            await self._back_off(claim)

    async def _process(
        self, claim: Claim, log: AttemptLog | None = None, limit: ExpectedSilence | None = None
    ) -> ClaimResult:
        """HOT PATH 2, from the stored log to the published verdict, and to what is learned from it.

        log: where it is loaded already. limit: how long the run may be silent, where that was asked.
        """
        started, key = self.clock(), claim.attempt.key
        with collection_paused():  # what was read stays until it is judged
            log = log or await self.logs.load(key)
            facts = await self.context.facts(claim)
            diagnosis = await self.analysis.analyze(log, facts)
        if claim.attempt.ended is None and await self.store.hand_back_ended(claim):
            return ClaimResult.ENDED_MEANWHILE
        if not is_sound(claim, diagnosis):
            matcher = self.confirmed_failures
            diagnosis = await matcher.match_confirmed_failure(key, diagnosis, log, facts, self.analysis)
        if is_sound(claim, diagnosis):
            await self.store.release(claim, self._next_look(claim, limit, diagnosis))
            return ClaimResult.SOUND
        if may_go_on(claim, diagnosis) and await self._put_off(claim, log):
            return ClaimResult.MAY_GO_ON
        claim = replace(claim, attempt=replace(claim.attempt, first_step=log.evidence.first_step))
        record, saved = await self._save(claim, diagnosis, started)
        self._start_llm_stage(claim, record, log, facts)
        await self._ask_for_evidence(claim, record, saved.plan)
        await self.shadow.observe(record, log, facts)
        await self.context.record_baseline(claim, diagnosis, log)
        return ClaimResult.SAVED

    async def _ask_for_evidence(self, claim: Claim, record: DiagnosisRecord, plan: Plan | None) -> None:
        """Ask for the dumps that a failure left, and for a second look at a hang whose plan waits for that."""
        await self.evidence.failed(claim, record.diagnosis)
        if plan and (plan.diagnosis, plan.reason) == (record.id, PlanReason.ONE_LOOK):
            await self.evidence.look_again(claim)

    async def _put_off(self, claim: Claim, log: AttemptLog) -> bool:
        """Leave a run alone that may go on, until it is silent for longer than its rhythm explains. Whether it is not
        so yet.

        After a minute its ranks are looked at meanwhile: peers of one that died show whom they wait for.
        """
        limit = await self.analysis.patience(claim.job, log, await self.context.baseline(claim.job))
        now, last_line = self.clock(), claim.attempt.last_line
        stands_still, look = last_line + stands_still_after(limit), last_line + stands_still_after(None)
        if claim.attempt.fatal is not None and (limit is None or not limit.known):
            # What is left of a process that died may go on printing.
            stands_still = min(stands_still, claim.attempt.fatal + LONGEST_DOUBT)
        if now >= stands_still:
            return False
        if now >= look:
            await self.evidence.suspected(claim)
            look = now + (now - last_line) * _LOOK_AGAIN
        if claim.attempt.fatal is None:
            await self.store.release(claim, min(stands_still, look))
        else:
            await self.store.put_off(claim, min(stands_still, look), self.config.timing)
        return True

    async def _save(
        self, claim: Claim, diagnosis: Diagnosis, started: float
    ) -> tuple[DiagnosisRecord, TransitionResult]:
        """Publish the verdict with its plan and messages, in one transaction. started: when it was begun."""
        decision = self.planner.decide(claim, diagnosis, self.clock())
        record = decision.record
        await self.shadow.confirm_from_recovery(claim, record)
        saved = await self.store.save_diagnosis(claim, record, decision.plan, decision.messages, decision.transition)
        self.metrics.observe_diagnosis(diagnosis, self.clock() - started)
        if not claim.attempt.diagnosed:
            self.trace(TraceStep.ATTEMPT, claim.attempt.key, failure_visible_at(claim.attempt))
        await self._follow_saved(record, saved, started)
        return record, saved

    async def _check_for_hang(self, claim: Claim) -> ClaimResult:
        """Compare the silence of a running attempt with its rhythm; diagnose it if that says it hangs, or nothing.

        The rest is left alone until the silence, or a new one, is long enough to tell more: the log of a run that
        prints is not read. One that somebody has suspended is left alone until it is resumed.
        """
        if claim.attempt.is_suspended:
            await self.store.release(claim, self.clock() + _SUSPENDED_LOOK)
            return ClaimResult.SOUND
        claim = replace(claim, attempt=claim.attempt.heard(self._woke_up))
        quiet, longest = self.clock() - claim.attempt.last_line, self.config.hang_diagnosis_idle
        log = await self.logs.load(claim.attempt.key)
        limit = await self.analysis.patience(claim.job, log, await self.context.baseline(claim.job))
        silence = limit.silence(quiet) if limit else None
        is_hang = silence is not None and (await self.evidence.suspected(claim) or silence.confirmed)
        said_it_ended = claim.hinted >= claim.attempt.last_line > 0.0
        if is_hang or said_it_ended or quiet >= longest:
            return await self._process(claim, log, limit)
        await self._leave_alone(claim, limit, quiet)
        return ClaimResult.SUSPECTED if silence else ClaimResult.SOUND

    async def _leave_alone(self, claim: Claim, limit: ExpectedSilence | None, quiet: float) -> None:
        """Give the claim back until the silence tells more. quiet: seconds of silence so far."""
        longest, next_look, patience = self.config.hang_diagnosis_idle, inf, 0.0
        if limit:
            next_look, patience = limit.next_look(quiet), limit.in_training
        again = self.clock() + min(next_look, longest - quiet)
        await self.store.release(claim, again, min(patience or self._next_idle_threshold(claim), longest))

    def _next_idle_threshold(self, claim: Claim) -> float:
        """For a run without a rhythm: a little more each time, until it is beyond what the run takes for a line."""
        return _PATIENCE_GROWTH * max(claim.patience, self.config.hang_check_idle)

    async def _release_on_shutdown(self, claim: Claim) -> None:
        """Give a claim back because this process stops. One that is finished belongs to nobody any more."""
        with suppress(Conflict):
            await self.store.extend(claim, self.clock())
            self._log_result(claim.attempt.key, ClaimResult.HANDED_OVER)

    async def _back_off(self, claim: Claim) -> None:
        """Wait longer after each failure. When even this fails, the lease itself is the wait."""
        wait = min(self.config.backoff_max, self.config.backoff * 2.0 ** min(claim.tries, 30))
        with suppress(Conflict, Unavailable):
            await self.store.extend(claim, self.clock() + wait)

    def _start_llm_stage(self, claim: Claim, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> None:
        if self.llm_stage is None:
            return
        loaded = None if self._llm_seats.locked() else log  # a task waiting for a seat holds no log text
        task = asyncio.create_task(self._run_llm_stage(self.llm_stage, claim, record, loaded, facts))
        self._llm_tasks.add(task)
        task.add_done_callback(self._llm_tasks.discard)

    async def _run_llm_stage(
        self, stage: LLMStage, claim: Claim, record: DiagnosisRecord, log: AttemptLog | None, facts: Facts
    ) -> None:
        async with self._llm_seats:
            started = self.clock()
            try:
                async with asyncio.timeout(self.config.llm_deadline):
                    better = await stage.run(record, log or await self.logs.load(record.attempt), facts)
                result = await self._publish(claim, record, better, started)
            except TimeoutError:
                self._log_result(record.attempt, ClaimResult.LLM_STAGE_LATE)
            except Exception as error:  # the verdict that is published stands
                self._log_result(record.attempt, ClaimResult.LLM_STAGE_FAILED, error)
            else:
                self._log_result(record.attempt, result)

    async def _publish(
        self, claim: Claim, record: DiagnosisRecord, better: Diagnosis | None, started: float
    ) -> ClaimResult:
        if better is None:
            return ClaimResult.LLM_NOT_ASKED
        new = self.planner.decide(claim, better, self.clock())
        saved = await self.store.replace_diagnosis(record.id, new.record, new.plan, new.messages, new.transition)
        if saved is None:
            return ClaimResult.LLM_VERDICT_STALE
        await self._follow_saved(new.record, saved, started)
        return ClaimResult.LLM_VERDICT_SAVED

    async def _follow_saved(self, record: DiagnosisRecord, result: TransitionResult, started: float) -> None:
        """Count a verdict that was saved, let its messages go, check the way back of its plan, and trace it."""
        self.metrics.observe_transition(result)
        self.outbox.notify()
        if result.plan:
            await self.plans.check_rollback(result.plan, self.clock())
        self._trace_verdict(record, result, started)

    def _trace_verdict(self, record: DiagnosisRecord, result: TransitionResult, started: float) -> None:
        diagnosis = record.diagnosis
        self.trace(
            TraceStep.DIAGNOSE,
            record.attempt,
            started,
            diagnosis=record.id,
            outcome=diagnosis.outcome.value,
            type=diagnosis.type.value,
            decided_by=diagnosis.decided_by,
            confidence=diagnosis.confidence,
        )
        trace_transition(self.trace, result, record.created)

    async def _claim_running(self, keys: Sequence[AttemptKey]) -> list[Claim]:
        if not keys:
            return []
        return await self.store.claim_running(self.clock(), keys, self.config.lease)

    async def _claim_silent_attempts(self) -> list[Claim]:
        """Now and then, runs that may hang; at once again while there are more of them than a round takes."""
        now, config = self.clock(), self.config
        if now < self._next_hang_check:
            return []
        claims = await self.store.claim_silent(now, config.hang_check_idle, config.lease, config.claims_max)
        self._next_hang_check = now
        if len(claims) < config.claims_max:
            self._next_hang_check += config.hang_check_interval
        return claims

    def _next_look(self, claim: Claim, limit: ExpectedSilence | None, diagnosis: Diagnosis) -> float:
        """When the silence of a sound run will have doubled, or tells more; at once for a run that was claimed for a
        fatal line."""
        attempt, now = claim.attempt, self.clock()
        quiet = now - attempt.last_line
        longest = self.config.hang_diagnosis_idle
        if diagnosis.hang is not None and diagnosis.hang.explains_wait:
            longest = 0.0  # its ranks are looked at again as the silence doubles
        wait = min(max(longest, quiet), limit.next_look(quiet) if limit else inf)
        if attempt.fatal is not None:
            return 0.0
        return now + wait

    def _log_result(self, key: AttemptKey, result: ClaimResult, error: Exception | None = None) -> None:
        fields = {"job": key.job, "attempt": key.number, "reason": result.value}
        if error is None:
            self._log.info("attempt_handled", **fields)
        else:
            self._log.error("attempt_failed", **fields, error_class=type(error).__name__, exc_info=error)


def failure_visible_at(attempt: Attempt) -> float:
    """When it was first known that the attempt is over, or fails; of one that hangs, its last line."""
    return min((time for time in (attempt.fatal, attempt.ended) if time is not None), default=attempt.last_line)


def may_go_on(claim: Claim, diagnosis: Diagnosis) -> bool:
    """Tell whether only its log says that the run failed, while its scheduler shows it running: many runs catch an
    error, and go on. An earlier verdict is kept up to date."""
    attempt = claim.attempt
    if not claim.runs or attempt.diagnosed:
        return False
    if claim.hinted >= attempt.last_line:
        return False
    if diagnosis.hang is not None and diagnosis.hang.holds_up:
        return False
    return not ends_running(diagnosis)


def is_sound(claim: Claim, diagnosis: Diagnosis) -> bool:
    """Tell whether the run goes on and nothing in its log says that it should not."""
    if claim.attempt.ended is not None or diagnosis.root_cause is not None:
        return False
    return diagnosis.outcome in (Outcome.COMPLETED, Outcome.UNKNOWN)
