"""Composition root: the only place that names adapters. `cli.py` parses flags and comes here."""

import asyncio
import gc
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from random import Random
from typing import BinaryIO

import httpx
import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from diagnoser.adapters.clock import SteadyClock
from diagnoser.adapters.http import create_client
from diagnoser.adapters.log_root import log_root
from diagnoser.adapters.memory import LocalWakeSignal
from diagnoser.adapters.slack import SlackWebhook
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.config import authentication, llm_factory
from diagnoser.config.allowed_hosts import allowed_hosts
from diagnoser.config.loader import load_analyzer, site_node_queries
from diagnoser.config.retention import ages
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.ingest.service import IngestService
from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.learning.case_replay import CaseReplayConfig, CaseReplayer
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.shadow_evaluation import ShadowEvaluator
from diagnoser.model import Diagnosis, Facts, MessageKind, Mode, ids
from diagnoser.model.errors import DiagnoserError
from diagnoser.observability import logging
from diagnoser.observability.health import CachedHealthCheck
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.plan_service import PlanService
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import Clock, Sender, Timing, TokenStore, WakeSignal
from diagnoser.web.access import JobAccess
from diagnoser.web.authenticator import Authenticator
from diagnoser.web.dependencies import AppDependencies, HealthCheck, HealthChecks, RequestLimits, WebConfig
from diagnoser.web.http_protocol import ConnectionLimits, bounded
from diagnoser.web.news import NewsFeed
from diagnoser.web.server import create, create_health
from diagnoser.worker.compaction import Compaction
from diagnoser.worker.maintenance import Maintenance, RetentionConfig
from diagnoser.worker.outbox import Outbox, OutboxConfig
from diagnoser.worker.retention import Retention
from diagnoser.worker.worker import Worker, WorkerConfig

STOP_SECONDS = 10
NO_TOKENS = (
    "plans may act, and there are no tokens: everybody who can connect is believed to be an agent and an operator, "
    "also any user of this machine; create tokens (diagnoser token create, or DIAGNOSER_TOKENS)"
)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. A part that fails for good takes the process down: a supervisor restarts it."""
    logging.set_up(as_json=settings.log_format == "json", level=settings.log_level)
    stopping = asyncio.Event()
    async with running(settings, stopping) as app:
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=bounded(ConnectionLimits(settings.max_connections, settings.request_head_seconds)),
            ws="none",
            timeout_keep_alive=settings.keep_alive_seconds,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        server = _UvicornServer(config)
        gc.freeze()  # rules and code live as long as the process: no collection has to look at them again
        gc.enable()
        _stop_on_signals(server, stopping)
        await server.serve()


@asynccontextmanager
async def running(settings: Settings, stopping: asyncio.Event) -> AsyncIterator[FastAPI]:
    """The application with its loops running around it; everything is closed at the end."""
    async with AsyncExitStack() as stack:
        dependencies, loops = await _compose(settings, stopping, stack)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in loops]
            yield create_health(dependencies) if settings.role == "worker" else create(dependencies)
            for task in tasks:
                task.cancel()


async def _compose(
    settings: Settings, stopping: asyncio.Event, stack: AsyncExitStack
) -> tuple[AppDependencies, list[Coroutine[None, None, None]]]:
    """Every part of the service, made once and straight down, and the loops that must run."""
    analyzer, clock, metrics = load_analyzer(settings), SteadyClock(), Metrics(CollectorRegistry())
    policy = analyzer.knowledge.policy
    metrics.up.set(clock())

    # the world
    store = await open_store(settings.database_url)
    stack.push_async_callback(store.close)
    authentication.check_bind_address(settings, stored=bool(await store.tokens()))
    senders = _senders(settings, await stack.enter_async_context(create_client()))
    endpoint = llm_factory.connected(settings, stack)
    model = llm_factory.guarded(settings, endpoint) if endpoint else None
    wakes = _wake_signals(settings, stack)

    # reading logs
    registry = RuleRegistry(analyzer, store, clock)
    await registry.refresh()
    logs = AttemptLogs(store, registry.compressor)
    ingest = IngestService(store, registry.compressor, metrics, pending_limit=settings.max_buffered_bytes)
    context, generalizer = DiagnosisContext(store, logs, clock, settings.baseline_retention_days), None
    if model and settings.filter_learning_enabled:
        generalizer = llm_factory.baseline_generalizer(settings, store, context, registry, model, metrics)
        context = replace(context, recorded=generalizer.note)

    # deciding, and learning from it
    incidents = llm_factory.incidents(settings, store, logs, policy, metrics, stack)
    planner = _planner(settings, analyzer, senders)
    commands = PlanCommands(policy, planner, settings.plan_lease_seconds, site_node_queries(settings))
    plans = PlanService(store, commands, metrics, wakes.outbox)
    history = ReplayHistory(store, logs)
    lifecycle = llm_factory.rule_lifecycle(settings, history, registry, model, metrics)
    replayer = CaseReplayer(history, registry, clock, CaseReplayConfig(version("diagnoser")))

    retention = Retention(store, clock, ages(settings), metrics)
    worker = Worker(
        store=store,
        logs=logs,
        context=context,
        analysis=registry,
        incidents=incidents,
        planner=planner,
        shadow=ShadowEvaluator(store, registry, incidents),
        llm_stage=llm_factory.llm_stage(settings, model, analyzer.knowledge, incidents, metrics),
        maintenance=Maintenance(store, plans, clock, _retention(settings), retention),
        clock=clock,
        attempts_due=wakes.attempts,
        outbox=wakes.outbox,
        metrics=metrics,
        config=_worker_config(settings),
        evidence=EvidenceCollection(store, clock, make_id),
    )
    jitter = Random()  # noqa: S311 - not a secret
    outbox = Outbox(store, senders, clock, wakes.outbox, jitter, metrics, _outbox_config(settings))
    authenticator = _authenticator(settings, store, clock)
    acts = settings.recovery_mode == "act" or (settings.recovery_mode == "policy" and policy.acts)
    access = {"access": partial(_check_access, authenticator)} if acts else {}
    dependencies = AppDependencies(
        store=store,
        ingest=ingest,
        plans=plans,
        incidents=incidents,
        logs=context,
        metrics=metrics,
        clock=clock,
        make_id=make_id,
        authenticator=authenticator,
        job_access=JobAccess(store, clock),
        attempts_due=wakes.attempts,
        news=NewsFeed(store, clock),
        stopping=stopping,
        config=_web_config(settings),
        health=HealthChecks(
            required={"writes": _write_check(store, ingest, clock, stack)},
            optional={**wakes.health, **llm_factory.health_check(endpoint, stack), **access},
        ),
        attribution=_attribution(settings, registry, stack),
    )
    _log_startup(settings, analyzer, senders)
    if acts and await authenticator.is_open():
        structlog.get_logger().warning("no_tokens", why=NO_TOKENS)
    compaction = Compaction(store, registry.compressor, clock, metrics)
    loops = list(wakes.loops)
    if settings.role != "worker":
        loops.append(ingest.run())
    if settings.role == "api":
        loops.append(registry.follow())
    else:  # the worker keeps up with the rules by itself
        loops += [compaction.run(), worker.run(), outbox.run(), lifecycle.run(), replayer.run()]
        loops += [generalizer.run()] if generalizer else []
    return dependencies, loops


class _UvicornServer(uvicorn.Server):
    """A server that leaves signals to us: uvicorn raises them again at its end, before our own parts are closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _stop_on_signals(server: uvicorn.Server, stopping: asyncio.Event) -> None:
    """The first signal ends live streams and waits for requests, the second does not wait."""

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def make_id(now: float) -> str:
    """An id that sorts by time, and that nobody can guess."""
    return ids.id_of(now, secrets.randbits(ids.OTHER_BITS))


def _senders(settings: Settings, client: httpx.AsyncClient) -> dict[MessageKind, Sender]:
    senders: dict[MessageKind, Sender] = {}
    private = settings.allow_private_targets
    if settings.webhook_url:
        secret = settings.webhook_secret.get_secret_value()
        senders[MessageKind.RECOVERY] = RecoveryWebhook(
            settings.webhook_url, secret, client, time.time, allow_private=private
        )
    if slack := settings.slack_url.get_secret_value():
        senders[MessageKind.SLACK] = SlackWebhook(slack, client, time.time, allow_private=private)
    return senders


def _planner(settings: Settings, analyzer: LogAnalyzer, senders: dict[MessageKind, Sender]) -> DecisionPlanner:
    return DecisionPlanner(
        policy=analyzer.knowledge.policy,
        make_id=make_id,
        mode=None if settings.recovery_mode == "policy" else Mode(settings.recovery_mode),
        webhook=MessageKind.RECOVERY in senders,
        chat=MessageKind.SLACK in senders,
        base_url=settings.base_url.rstrip("/") or f"http://{settings.host}:{settings.port}",
        redact=llm_factory.load_outbound_redactor(settings),
    )


@dataclass(frozen=True)
class _WakeSignals:
    """loops: what carries them between replicas; health: its check."""

    attempts: WakeSignal
    outbox: WakeSignal
    loops: tuple[Coroutine[None, None, None], ...] = ()
    health: Mapping[str, HealthCheck] = field(default_factory=dict)


def _wake_signals(settings: Settings, stack: AsyncExitStack) -> _WakeSignals:
    """Of this process; with Redis, of all replicas."""
    attempts, outbox = LocalWakeSignal(), LocalWakeSignal()
    url = settings.redis_url.get_secret_value()
    if not url:
        return _WakeSignals(attempts, outbox)
    from diagnoser.adapters.redis import RedisWakeSignals  # loads for a while, and most sites have one replica

    shared = RedisWakeSignals(url, {"attempts": attempts, "outbox": outbox})
    stack.push_async_callback(shared.close)
    check = CachedHealthCheck(shared.ping, time.monotonic)
    stack.push_async_callback(check.close)
    return _WakeSignals(shared.wake("attempts"), shared.wake("outbox"), (shared.run(),), {"redis": check})


def _worker_config(settings: Settings) -> WorkerConfig:
    grace, idle = settings.exit_grace_seconds, settings.hang_check_idle_seconds
    timing = Timing(
        exit_grace=grace,
        fatal_debounce=settings.fatal_debounce_seconds,
        fatal_debounce_max=settings.fatal_debounce_max_seconds,
        exit_grace_after_fatal=min(grace, settings.exit_grace_after_fatal_seconds),
    )
    return WorkerConfig(
        timing=timing,
        lease=settings.claim_lease_seconds,
        poll=0.5,
        llm_deadline=settings.llm_deadline_seconds + 5,
        hang_check_idle=idle,
        hang_diagnosis_idle=max(idle, settings.hang_diagnosis_idle_seconds),
        hang_check_interval=min(0.5, idle),
    )


def _retention(settings: Settings) -> RetentionConfig:
    return RetentionConfig(
        node_log_hours=settings.node_log_retention_hours, baseline_hours=settings.baseline_retention_days * 24
    )


def _outbox_config(settings: Settings) -> OutboxConfig:
    return OutboxConfig(rates={"slack": settings.slack_rate_limit, "webhook": settings.webhook_rate_limit})


def _web_config(settings: Settings) -> WebConfig:
    size = settings.max_request_bytes
    return WebConfig(settings.base_url.rstrip("/"), RequestLimits(size, size), allowed_hosts(settings))


def _authenticator(settings: Settings, store: TokenStore, clock: Clock) -> Authenticator:
    required = not authentication.is_loopback(settings.host)
    return Authenticator(store, authentication.tokens(settings), clock, required=required)


async def _check_access(authenticator: Authenticator) -> str:
    """Raises DiagnoserError while everybody may move a machine."""
    if await authenticator.is_open():
        raise DiagnoserError(NO_TOKENS)
    return "tokens are needed"


def _write_check(store: SqlStore, ingest: IngestService, clock: Clock, stack: AsyncExitStack) -> HealthCheck:
    async def check() -> str:
        ingest.check_commits(clock())
        await store.check_write(clock())
        return "work"

    cached = CachedHealthCheck(check, time.monotonic)
    stack.push_async_callback(cached.close)
    return cached


def _attribution(settings: Settings, registry: RuleRegistry, stack: AsyncExitStack) -> LogAttribution | None:
    if settings.ft_launcher_log_root is None:
        return None

    def analyse(log: BinaryIO) -> Diagnosis:
        analyzer = registry.analyzer
        return analyzer.diagnose_with_node_logs(analyzer.read(log).evidence, Facts())

    attribution = LogAttribution(log_root(settings.ft_launcher_log_root).open, analyse)
    stack.push_async_callback(attribution.close)
    return attribution


def _log_startup(settings: Settings, analyzer: LogAnalyzer, senders: dict[MessageKind, Sender]) -> None:
    structlog.get_logger().info(
        "serving",
        url=f"http://{settings.host}:{settings.port}",
        database=settings.database_url.partition(":")[0],
        rules=len(analyzer.knowledge.engine.ruleset.rules),
        model=settings.llm_model if settings.llm_url else "none",
        effects=sorted(senders) or "none",
        recovery=settings.recovery_mode,
    )
    for scope in authentication.deprecated_scopes(settings):
        structlog.get_logger().warning(
            "deprecated_scope", setting="DIAGNOSER_TOKENS", was=scope, now=authentication.DEPRECATED[scope].value
        )
    sys.stderr.flush()
