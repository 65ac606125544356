"""Composition root: the only place that names adapters. `cli.py` parses flags and comes here."""

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from random import Random
from typing import BinaryIO

import httpx
import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from diagnoser.adapters.http import create_client
from diagnoser.adapters.log_root import log_root
from diagnoser.adapters.memory import LocalWakeSignal
from diagnoser.adapters.redis import RedisWakeSignals
from diagnoser.adapters.slack import SlackWebhook
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.config import authentication, llm_factory, loader
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.ingest.service import IngestService
from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.shadow_evaluation import ShadowEvaluator
from diagnoser.model import AttemptKey, Diagnosis, Facts, Line, MessageKind, Mode, Progress
from diagnoser.observability.health import CachedHealthCheck
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import DiagnosisRecord, LanguageModel, Sender, Timing, WakeSignal
from diagnoser.retrieval.incidents import Incidents
from diagnoser.web.dependencies import AppDependencies, HealthCheck, KeptLinesQuery, ProgressQuery, RequestLimits
from diagnoser.web.server import create
from diagnoser.worker.maintenance import RetentionConfig
from diagnoser.worker.outbox import Outbox
from diagnoser.worker.outbox import OutboxConfig as OutboxPace
from diagnoser.worker.worker import Work, Worker, WorkerConfig

STOP_SECONDS = 10
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. A part that fails for good takes the process down: a supervisor restarts it."""
    logging.set_up(as_json=settings.log_format == "json", level=settings.log_level)
    authentication.check_bind_address(settings)
    stopping = asyncio.Event()
    async with running(settings, stopping) as app:
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        server = _UvicornServer(config)
        _stop_on_signals(server, stopping)
        await server.serve()


@asynccontextmanager
async def running(settings: Settings, stopping: asyncio.Event) -> AsyncIterator[FastAPI]:
    """The application with its loops running around it; everything is closed at the end."""
    reader = loader.load_reader(settings)
    clock, metrics = time.time, Metrics(CollectorRegistry())
    metrics.up.set(clock())
    async with AsyncExitStack() as stack:
        store = await open_store(settings.database_url)
        stack.push_async_callback(store.close)
        client = await stack.enter_async_context(create_client())
        senders, model = _senders(settings, client), llm_factory.connected(settings, stack)
        wake, outbox_wake, bell, spare = _wakes(settings, stack)
        orders = PlanCommands(reader.knowledge.policy, _effects(settings, reader, senders), settings.plan_lease_seconds)
        incidents = llm_factory.incidents(settings, store, reader, metrics, stack)
        shelf = RuleRegistry(reader, store)
        await shelf.refresh()
        shared = llm_factory.guarded(settings, model) if model else None
        school = llm_factory.school(settings, store, shelf, shared, metrics)
        intake = IngestService(store, shelf.compressor, metrics, pending_limit=settings.max_buffered_bytes)
        outbox = Outbox(
            store,
            senders,
            clock,
            outbox_wake,
            Random(),  # noqa: S311 - jitter, not a secret
            metrics,
            OutboxPace(rates={"slack": settings.slack_rate_limit, "webhook": settings.webhook_rate_limit}),
        )
        watch = ShadowEvaluator(store, shelf, incidents)
        around = DiagnosisContext(store, clock, settings.baseline_retention_days)
        worker = Worker(
            store,
            replace(
                _work(settings, shelf, orders, metrics, shared, incidents),
                facts=around.facts,
                learn=around.record_baseline,
                recall=incidents.recall,
                credit=watch.credit,
                observe=watch.observe,
            ),
            clock,
            wake,
            outbox_wake,
            _timing(settings),
            metrics,
            _pace(settings),
        )
        services = AppDependencies(
            store=store,
            intake=intake,
            clock=clock,
            registry=metrics.registry,
            orders=orders,
            incidents=incidents,
            wake=wake,
            outbox=outbox_wake,
            limits=RequestLimits(settings.max_request_bytes, settings.max_request_bytes),
            base_url=settings.base_url.rstrip("/"),
            tokens=authentication.tokens(settings),
            view=_view(store, reader, around),
            series=_series(store, reader),
            stopping=stopping,
            attribution=_attribution(settings, shelf, stack),
            metrics=metrics,
            spare=spare | llm_factory.pulse(model, stack),
        )
        _tell_start(settings, reader, senders)
        async with asyncio.TaskGroup() as group:
            runs = [intake.run(), worker.run(), outbox.run(), school.run(), *(part.run() for part in bell)]
            loops = [group.create_task(run) for run in runs]
            yield create(services)
            for loop in loops:
                loop.cancel()


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
    """26 characters that sort by time (as ULID does): 48 bits of milliseconds, 80 random bits."""
    value = int(now * 1000) << 80 | secrets.randbits(80)
    return "".join(CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


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


def _effects(settings: Settings, reader: LogAnalyzer, senders: dict[MessageKind, Sender]) -> DecisionPlanner:
    return DecisionPlanner(
        policy=reader.knowledge.policy,
        make_id=make_id,
        mode=None if settings.recovery_mode == "policy" else Mode(settings.recovery_mode),
        webhook=MessageKind.RECOVERY in senders,
        chat=MessageKind.SLACK in senders,
        base_url=settings.base_url.rstrip("/") or f"http://{settings.host}:{settings.port}",
        mask=llm_factory.load_outbound_redactor(settings),
    )


def _wakes(
    settings: Settings, stack: AsyncExitStack
) -> tuple[WakeSignal, WakeSignal, list[RedisWakeSignals], dict[str, HealthCheck]]:
    """Of the worker and the outbox; with Redis those of all replicas, the loop that carries them, and its check."""
    wakes = {"attempts": LocalWakeSignal(), "effects": LocalWakeSignal()}
    url = settings.redis_url.get_secret_value()
    if not url:
        return wakes["attempts"], wakes["effects"], [], {}
    bell = RedisWakeSignals(url, wakes)
    stack.push_async_callback(bell.close)
    pulse = CachedHealthCheck(bell.ping, time.monotonic)
    stack.push_async_callback(pulse.close)
    return bell.wake("attempts"), bell.wake("effects"), [bell], {"redis": pulse}


def _work(
    settings: Settings,
    shelf: RuleRegistry,
    orders: PlanCommands,
    metrics: Metrics,
    model: LanguageModel | None,
    incidents: Incidents,
) -> Work:
    enrich, reader = None, shelf.base
    if model:
        agent = llm_factory.failure_agent(settings, model, reader.knowledge.policy, metrics)
        enrich = shelf.enricher(agent, incidents.told)
    effects = orders.effects
    return Work(
        shelf.diagnoser(time.time),
        effects.decide,
        reader.merge,
        enrich,
        effects.rule,
        orders.expire,
        refresh=shelf.refresh,
    )


def _timing(settings: Settings) -> Timing:
    grace = settings.exit_grace_seconds
    return Timing(
        grace,
        settings.fatal_debounce_seconds,
        settings.fatal_debounce_max_seconds,
        quiet=min(grace, settings.exit_grace_after_fatal_seconds),
    )


def _pace(settings: Settings) -> WorkerConfig:
    return WorkerConfig(
        silent=settings.hang_check_idle_seconds,
        look=min(15.0, settings.hang_check_idle_seconds),
        lease=settings.claim_lease_seconds,
        poll=0.5,
        enrich=settings.llm_deadline_seconds + 5,
        bounds=RetentionConfig(
            node_log_hours=settings.node_log_retention_hours, baseline_hours=settings.baseline_retention_days * 24
        ),
    )


def _attribution(settings: Settings, shelf: RuleRegistry, stack: AsyncExitStack) -> LogAttribution | None:
    if settings.ft_launcher_log_root is None:
        return None

    def analyse(log: BinaryIO) -> Diagnosis:
        reader = shelf.reader
        return reader.diagnose(reader.read(log).evidence(), Facts())

    attribution = LogAttribution(log_root(settings.ft_launcher_log_root).open, analyse)
    stack.push_async_callback(attribution.close)
    return attribution


def _view(store: SqlStore, reader: LogAnalyzer, around: DiagnosisContext) -> KeptLinesQuery:
    async def view(record: DiagnosisRecord) -> Sequence[Line]:
        deltas = [delta.data for delta in await store.deltas(record.attempt)]
        own = (await asyncio.to_thread(reader.digest, deltas)).evidence().lines
        return (*own, *await around.beside(record))

    return view


def _series(store: SqlStore, reader: LogAnalyzer) -> ProgressQuery:
    async def series(key: AttemptKey) -> Sequence[Progress]:
        deltas = [delta.data for delta in await store.deltas(key)]
        return (await asyncio.to_thread(reader.digest, deltas)).progress

    return series


def _tell_start(settings: Settings, reader: LogAnalyzer, senders: dict[MessageKind, Sender]) -> None:
    structlog.get_logger().info(
        "serving",
        url=f"http://{settings.host}:{settings.port}",
        database=settings.database_url.partition(":")[0],
        rules=len(reader.knowledge.engine.ruleset.rules),
        model=settings.llm_model if settings.llm_url else "none",
        effects=sorted(senders) or "none",
        recovery=settings.recovery_mode,
    )
    sys.stderr.flush()
