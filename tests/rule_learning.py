"""A site in one process that diagnoses, hears what people say, and learns: what the tests of learning share."""

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry

from diagnoser import compress
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.learning.log_agent import FilterRegistry, LogAgent
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_lifecycle import RuleLearningConfig, RuleLifecycle
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.rule_writer import LLMRuleWriter
from diagnoser.learning.shadow_evaluation import ShadowEvaluator
from diagnoser.model import (
    AttemptKey,
    Event,
    EventKind,
    Feedback,
    FeedbackVerdict,
    Job,
    LearnedRule,
    LearnedState,
    LineBlock,
    Stream,
)
from diagnoser.model.logs import Append
from diagnoser.model.queries import DiagnosisFilter, LearnedRuleQuery
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import DiagnosisRecord, Timing
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.plan_service import PlanService
from diagnoser.redaction.redact import redact
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures
from diagnoser.worker.maintenance import Maintenance
from diagnoser.worker.worker import Worker, WorkerConfig
from tests import accuracy_bars
from tests.databases import sqlite_store
from tests.scripted_worker import Bystander
from tests.serving import plan_commands

NOW = 1_790_000_000.0
STEPS = tuple(f"step {number} loss 2.{number:03d}" for number in range(1, 30))
QUILT = "mosaic-feeder: catalogue snapshot {n} differs from the quilt manifest of {host}, giving up"
ROOT = len(STEPS) + 1
"""Number of the line that shows the cause."""


@dataclass
class Site:
    store: SqlStore
    registry: RuleRegistry
    lifecycle: RuleLifecycle
    watch: ShadowEvaluator
    confirmed_failures: ConfirmedFailures
    worker: Worker
    metrics: Metrics
    log_agent: LogAgent
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def run(
        self, job: str, lines: Sequence[str], code: int | None = 1, attempt: int = 1, **of_job: object
    ) -> DiagnosisRecord:
        """An attempt that prints ``lines`` and ends: its diagnosis, as the worker saves it."""
        await self.print_lines(job, lines, attempt, **of_job)
        await self.store.jobs.add_event(AttemptKey(job, attempt), Event(EventKind.EXIT, NOW - 50, code=code))
        assert await self.worker.step() == 1
        (found,) = await self.store.diagnoses.page(DiagnosisFilter(job=job), "", 1)
        return found

    async def print_lines(self, job: str, lines: Sequence[str], attempt: int = 1, **of_job: object) -> None:
        """An attempt that prints ``lines`` and goes on. of_job: fields of its job."""
        key, compressor = AttemptKey(job, attempt), self.registry.compressor()
        compressor.feed(LineBlock(Stream(), "".join(f"{line}\n" for line in lines).encode(), received=NOW - 60))
        delta = compress.to_bytes(compressor.take())
        registered = Job(job, nodes=("gpu-017", "gpu-018"), created=NOW - 100, **of_job)  # type: ignore[arg-type]
        await self.store.jobs.register(registered)
        await self.store.logs.append([Append(key, delta, NOW - 60, {Stream(): (0, ((1, len(lines)),))}, False)])

    async def fail(self, job: str, n: int = 4711, host: str = "gpu-017", more: Sequence[str] = ()) -> DiagnosisRecord:
        """The failure that no rule knows."""
        return await self.run(job, [*STEPS, QUILT.format(n=n, host=host), *more])

    async def say(
        self, about: DiagnosisRecord, kind: FailureType | None = FailureType.DATALOADER_KILLED, **more: object
    ) -> None:
        """A person names the cause; without ``kind`` the verdict is confirmed."""
        now = NOW + next(self.numbers)
        verdict = FeedbackVerdict.CORRECTED if kind else FeedbackVerdict.CONFIRMED
        fields: dict[str, object] = {"root_line": ROOT, "comment": "rebuild the manifest"} if kind else {}
        said = Feedback(f"f{now:.0f}", about.id, now, verdict, "maria", kind, **(fields | more))  # type: ignore[arg-type]
        await self.confirmed_failures.learn(about, said)

    async def learned(self, source: DiagnosisRecord) -> LearnedRule:
        """What became of the rule that is learned from a diagnosis, when all steps are done."""
        for _ in range(5):
            await self.lifecycle.step()
        (rule,) = await self.store.rules.page(LearnedRuleQuery(source=source.id), "", 5)
        return rule

    async def taught(self, job: str = "quilt-1") -> LearnedRule:
        """A rule in shadow, from a failure and a person's word."""
        record = await self.fail(job)
        await self.say(record)
        rule = await self.learned(record)
        assert rule.state is LearnedState.SHADOW, rule
        return rule

    async def learned_state(self, rule: LearnedRule) -> LearnedState:
        found = await self.store.rules.find(rule.id)
        assert found is not None
        return found.state

    async def move(self, rule: LearnedRule, state: LearnedState) -> LearnedRule:
        """As a person would, and all replicas see it before their next claim."""
        known = await self.store.rules.find(rule.id)
        assert known is not None
        return await self.store.rules.change(known, known.with_state(state, by="kai", why="a test", now=NOW))


@asynccontextmanager
async def site(
    folder: Path,
    pen: LLMRuleWriter | None = None,
    promote_after: int = 3,
    now: float = NOW,
    url: str = "",
    *,
    has_memory: bool = False,
    filters: bool = False,
    filter_pen: LLMRuleWriter | None = None,
) -> AsyncIterator[Site]:
    """Everything that learns, over the database at ``url``, by default one in ``folder``.

    has_memory: whether judged failures decide later ones, as in the service; else only learned rules do.
    filters: whether the Log Agent learns filters, with ``filter_pen`` or from shapes.
    """
    store = await (open_store(url) if url else sqlite_store(folder / "learning.db"))
    base, metrics = accuracy_bars.load(), Metrics(CollectorRegistry())
    registry = RuleRegistry(base, store.rules, lambda: NOW)
    filter_registry = FilterRegistry(registry, store.jobs)
    logs = AttemptLogs(store, base.compressor, filter_registry.folding)
    confirmed_failures = ConfirmedFailures(store.feedback, logs, base.knowledge.policy, metrics)
    config = RuleLearningConfig(redact, promote_after)
    history = ReplayHistory(store, logs)
    lifecycle = RuleLifecycle(history, registry, lambda: now, config, metrics, pen)
    log_agent = LogAgent(filter_registry, history, lambda: now, config, filter_pen)
    shadow = ShadowEvaluator(store, registry, confirmed_failures, log_agent if filters else None)
    commands, outbox = plan_commands(), LocalWakeSignal()
    plans = PlanService(store, commands, metrics, outbox)
    worker = Worker(
        store=store.work,
        logs=logs,
        context=DiagnosisContext(store, logs, lambda: NOW, baseline_days=30 if filters else 0),
        analysis=registry,
        confirmed_failures=confirmed_failures if has_memory else cast(ConfirmedFailures, Bystander()),
        planner=commands.planner,
        shadow=shadow,
        llm_stage=None,
        plans=plans,
        maintenance=Maintenance(store, plans, lambda: NOW),
        clock=lambda: NOW,
        attempts_due=LocalWakeSignal(),
        outbox=outbox,
        metrics=metrics,
        config=WorkerConfig(Timing(0.0, 0.0, 0.0)),
        evidence=cast(Any, Bystander()),
        watch=cast(Any, Bystander()),
    )
    try:
        yield Site(store, registry, lifecycle, shadow, confirmed_failures, worker, metrics, log_agent)
    finally:
        await store.close()
