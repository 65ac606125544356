"""A worker on a real store with collaborators that a test scripts."""

from collections.abc import Callable, Collection
from typing import Any, cast

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.compress import AttemptLog, Compressor, to_bytes
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.localize.hang_detection import ExpectedSilence
from diagnoser.model import AttemptKey, Baseline, Diagnosis, Facts, Job, LineBlock, Stream
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.plan_service import PlanService
from diagnoser.ports import WakeSignal
from diagnoser.worker.maintenance import Maintenance
from diagnoser.worker.worker import Analysis, Worker, WorkerConfig
from tests.serving import plan_commands


class Bystander:
    """A collaborator that knows nothing, remembers nothing and changes no verdict; tests override what they script."""

    async def refresh(self) -> bool:
        return False

    async def analyze(self, log: AttemptLog, facts: Facts) -> Diagnosis:
        raise NotImplementedError

    async def patience(self, job: Job, log: AttemptLog, known: Baseline) -> ExpectedSilence | None:
        return None

    async def baseline(self, job: Job) -> Baseline:
        return Baseline()

    async def facts(self, claim: Claim) -> Facts:
        return Facts(claim.job, claim.attempt.key.number, claim.attempt.events)

    async def record_baseline(self, claim: Claim, verdict: Diagnosis, log: AttemptLog) -> None: ...

    async def analyze_without(self, lines: Collection[int], log: AttemptLog, facts: Facts) -> Diagnosis:
        raise NotImplementedError

    async def match_confirmed_failure(
        self, attempt: AttemptKey, diagnosis: Diagnosis, log: AttemptLog, facts: Facts, analysis: Analysis
    ) -> Diagnosis:
        return diagnosis

    async def confirm_from_recovery(self, claim: Claim, record: DiagnosisRecord) -> None: ...

    async def observe(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> None: ...

    async def suspected(self, claim: Claim) -> bool:
        return False

    async def look_again(self, claim: Claim) -> None: ...

    async def failed(self, claim: Claim, diagnosis: Diagnosis) -> None: ...

    def take_diverged(self) -> list[AttemptKey]:
        return []

    take_still = take_diverged


def scripted_worker(
    store: SqlStore,
    script: Bystander,
    planner: Any,
    clock: Callable[[], float],
    config: WorkerConfig,
    metrics: Metrics,
    *,
    llm_stage: Any = None,
    outbox: WakeSignal | None = None,
    plans: PlanService | None = None,
    evidence: EvidenceCollection | None = None,
) -> Worker:
    outbox = outbox or LocalWakeSignal()
    plans = plans or PlanService(store, plan_commands(), metrics, outbox)
    return Worker(
        store=store.work,
        logs=AttemptLogs(store, Compressor),
        context=cast(Any, script),
        analysis=script,
        confirmed_failures=cast(Any, script),
        planner=planner,
        shadow=script,
        llm_stage=llm_stage,
        plans=plans,
        maintenance=Maintenance(store, plans, clock),
        clock=clock,
        attempts_due=LocalWakeSignal(),
        outbox=outbox,
        metrics=metrics,
        config=config,
        evidence=evidence or cast(Any, script),
        watch=cast(Any, script),
    )


def delta_of(text: str, number: int = 1) -> bytes:
    """One line as the ingest stores it."""
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), text.encode(), number))
    return to_bytes(compressor.take())
