"""Composition root: the only place that names adapters. `cli.py` parses flags and comes here."""

import asyncio
import ctypes
import gc
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, Literal

import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from diagnoser.adapters.clock import SteadyClock
from diagnoser.adapters.log_root import log_root
from diagnoser.adapters.memory import LocalWakeSignal
from diagnoser.adapters.passwords import Argon2Passwords
from diagnoser.adapters.sql.administration import check_place
from diagnoser.adapters.sql.migrations import upgrade
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.wake_pipe import PipeWakeSignal
from diagnoser.config import alerting, authentication, identity, llm_factory, tls
from diagnoser.config.allowed_hosts import allowed_hosts, trusted_proxies
from diagnoser.config.archive import open_archive
from diagnoser.config.field_mapping import load_mapping
from diagnoser.config.loader import load_analyzer, site_node_queries
from diagnoser.config.redaction import load_outbound_redactor, load_redactor
from diagnoser.config.retention import ages
from diagnoser.config.settings import Settings
from diagnoser.config.tracing import open_traces
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.diagnosis.log_indexes import KeptLogs, LogIndexes
from diagnoser.diagnosis.original_lines import OriginalLines
from diagnoser.diagnosis.run_status import RunStatuses
from diagnoser.ingest.service import RAW_BYTES, IngestService
from diagnoser.ingest.unplaced import UnplacedStreams
from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.learning.case_replay import CaseReplayConfig, CaseReplayer
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.shadow_evaluation import ShadowEvaluator
from diagnoser.learning.workbench import RuleWorkbench
from diagnoser.model import Diagnosis, Facts, MessageKind, Mode, ids
from diagnoser.model.errors import BadInput, DiagnoserError, Unavailable
from diagnoser.observability import logging
from diagnoser.observability.health import CachedHealthCheck
from diagnoser.observability.metrics import Metrics, share
from diagnoser.observability.tracing import untraced
from diagnoser.observability.vitals import VitalsReader
from diagnoser.planning.plan_service import PlanService
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import AlertThreadStore, Archive, Clock, Sender, Timing, WakeSignal
from diagnoser.recovery.node_query import NodeQueryTable
from diagnoser.supervisor import STOP, Part, Supervisor
from diagnoser.supervisor import STOP_SECONDS as LAST_SECONDS
from diagnoser.web.access import JobAccess
from diagnoser.web.authenticator import Authenticator
from diagnoser.web.dependencies import AppDependencies, HealthCheck, HealthChecks, RequestLimits, SlackAccess, WebConfig
from diagnoser.web.http_protocol import ConnectionLimits, bounded
from diagnoser.web.news import NewsFeed
from diagnoser.web.server import create, create_health
from diagnoser.web.sessions import CookieRules, Sessions
from diagnoser.web.sign_in import PasswordSignIn
from diagnoser.worker.alerts import AlertSender
from diagnoser.worker.blind_spots import BlindSpotWatch
from diagnoser.worker.compaction import Compaction
from diagnoser.worker.maintenance import Maintenance, RetentionConfig
from diagnoser.worker.outbox import Outbox, OutboxConfig
from diagnoser.worker.retention import Retention
from diagnoser.worker.scores import ScoreWatch
from diagnoser.worker.worker import Worker, WorkerConfig

if TYPE_CHECKING:
    import httpx

STOP_SECONDS = 3
"""For requests that are under way when the service stops. The supervisor ends what is left soon after."""
BACKLOG = 2048
"""Connections that wait to be accepted: as many as uvicorn lets wait."""
POLL_SECONDS = 0.5
WATCHED_POLL_SECONDS = 2.0
"""Of a database that tells cheaply whether it changed: what is due by time alone may be so much late."""
_M_ARENA_MAX = -8
"""A parameter of glibc's `mallopt`."""
NO_TOKENS = (
    "plans may act, and there are neither tokens nor users: everybody who can connect is believed to be an agent and "
    "an operator, also any user of this machine; create tokens (diagnoser token create, or DIAGNOSER_TOKENS)"
)


@dataclass(frozen=True)
class _Shared:
    """What processes of one machine have in common: made before the fork. check_worker: whether that process runs.
    client: for receivers of webhooks and alerts, where there are any; it has no open connection at the fork."""

    analyzer: LogAnalyzer
    node_queries: NodeQueryTable
    client: "httpx.AsyncClient | None"
    attempts: WakeSignal = field(default_factory=LocalWakeSignal)
    outbox: WakeSignal = field(default_factory=LocalWakeSignal)
    check_worker: HealthCheck | None = None


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. A part that fails is started again; one that cannot work as it is set up ends all
    of it: then this raises BadInput."""
    _limit_malloc_arenas()
    logging.set_up(as_json=settings.log_format == "json", level=settings.log_level)
    tls.check_certificate(settings)
    trusted_proxies(settings)
    shared = _load(settings)
    if check_place(settings.database_url, Settings.model_fields["database_url"].default):
        structlog.get_logger().warning("new_database", url=settings.database_url)
    asyncio.run(upgrade(settings.database_url))  # before any part uses it
    _log_startup(settings, shared.analyzer)
    gc.freeze()  # rules and code live as long as the process: no collection has to look at them again
    gc.enable()
    names = _processes(settings)
    if len(names) == 1:
        socket = _listen(settings, shared=False)
        asyncio.run(_serve(settings, shared, socket, (signal.SIGTERM, signal.SIGINT)))
        return
    with TemporaryDirectory(prefix="diagnoser-metrics-") as folder:
        if not _supervise(settings, names, shared, Path(folder)):
            raise BadInput("the service ended: see the message above")


def _load(settings: Settings) -> _Shared:
    client = None
    if settings.webhook_url or alerting.receiver_names(settings):
        from diagnoser.adapters.http import create_client  # with its certificates, it loads for a while

        client = create_client()
    return _Shared(load_analyzer(settings), site_node_queries(settings), client)


def _limit_malloc_arenas() -> None:
    """glibc gives each thread an arena, and memory that was freed in one is not used by another: it grew as long as
    there was work. A single arena makes threads wait for each other. Other C libraries have no such setting."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _processes(settings: Settings) -> list[str]:
    """Names of the processes that make up the role."""
    requests = ["api"] if settings.workers == 1 else [f"api-{number}" for number in range(settings.workers)]
    return {"all": [*requests, "worker"], "api": requests, "worker": ["worker"]}[settings.role]


def _supervise(settings: Settings, names: Sequence[str], base: _Shared, metrics: Path) -> bool:
    """Each of ``names`` in a process of its own. base: what they have in common but for the signals among them.
    metrics: where they count."""
    supervisor = Supervisor(names)

    async def check_worker() -> str:
        if not supervisor.is_running("worker"):
            raise Unavailable("it died and is started again")
        return "runs"

    check = check_worker if "worker" in names else None
    shared = replace(base, attempts=PipeWakeSignal(), outbox=PipeWakeSignal(), check_worker=check)

    def part(name: str) -> Part:
        role: Literal["api", "worker"] = "worker" if name == "worker" else "api"
        own = settings.model_copy(update={"role": role})
        # Of the parent's, so that connections wait in it while the process is started again.
        socket = None if role == "worker" else _listen(settings, shared=settings.workers > 1)

        def run() -> None:
            share(metrics, name)
            asyncio.run(_serve(own, shared, socket, (STOP,)))

        return Part(name, run)

    return supervisor.run([part(name) for name in names])


def _listen(settings: Settings, *, shared: bool) -> socket.socket:
    """shared: with the other sockets of this service, among which the kernel deals out connections.

    Raises BadInput where the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise BadInput(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from error
    return listening


async def _serve(
    settings: Settings, shared: _Shared, listening: socket.socket | None, stop_signals: Sequence[signal.Signals]
) -> None:
    """The part of this process. A loop that fails for good takes the process down."""
    stopping = asyncio.Event()
    async with running(settings, stopping, shared) as app:
        if listening is None:
            for number in stop_signals:
                asyncio.get_running_loop().add_signal_handler(number, stopping.set)
            await stopping.wait()
            return
        config = uvicorn.Config(
            app,
            http=bounded(ConnectionLimits(settings.max_connections, settings.request_head_seconds)),
            ws="none",
            lifespan="off",  # ``running`` starts and ends what the application needs
            timeout_keep_alive=settings.keep_alive_seconds,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
            forwarded_allow_ips=trusted_proxies(settings),
        )
        server = _UvicornServer(config)
        _stop_on_signals(server, stopping, stop_signals)
        await server.serve(sockets=[listening])


@asynccontextmanager
async def running(settings: Settings, stopping: asyncio.Event, shared: _Shared | None = None) -> AsyncIterator[FastAPI]:
    """The application with its loops running around it; everything is closed at the end.

    shared: with other processes; without it all loops of the role run in this one.
    """
    shared = shared or _load(settings)
    async with AsyncExitStack() as stack:
        dependencies, loops = await _compose(settings, shared, stopping, stack)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in loops]
            yield create_health(dependencies) if settings.role == "worker" else create(dependencies)
            for task in tasks:
                task.cancel()


async def _compose(
    settings: Settings, shared: _Shared, stopping: asyncio.Event, stack: AsyncExitStack
) -> tuple[AppDependencies, list[Coroutine[None, None, None]]]:
    """Every part of the service, made once and straight down, and the loops that must run."""
    analyzer, clock, metrics = shared.analyzer, SteadyClock(), Metrics(CollectorRegistry())
    policy = analyzer.knowledge.policy
    metrics.up.set(clock())
    traces = open_traces(settings, clock)
    if traces:
        stack.push_async_callback(traces.close)
    trace = traces.note if traces else untraced

    # the world
    store = await open_store(settings.database_url)
    stack.push_async_callback(store.close)
    authentication.check_bind_address(settings, stored=bool(await store.tokens()) or await store.has_users())
    archive = open_archive(settings)
    if archive:
        stack.push_async_callback(archive.close)
    client = shared.client and await stack.enter_async_context(shared.client)
    senders = _senders(settings, store, clock, client) if client else {}
    endpoint = llm_factory.connected(settings, stack)
    model = llm_factory.guarded(settings, endpoint, metrics) if endpoint else None
    wakes = _wake_signals(settings, shared, stack)

    # reading logs
    registry = RuleRegistry(analyzer, store, clock, shared=settings.tenants_learn_together)
    await registry.refresh()
    logs = AttemptLogs(store, registry.compressor)
    mapping = load_mapping(settings)
    unplaced = UnplacedStreams(store, load_redactor(settings), metrics)
    ingest = IngestService(
        store,
        registry.compressor,
        metrics,
        pending_limit=settings.max_buffered_bytes,
        mapping=mapping,
        unplaced=unplaced,
        raw_bytes=RAW_BYTES if archive is None else sys.maxsize,
        trace=trace,
    )
    context, generalizer = DiagnosisContext(store, logs, clock, settings.baseline_retention_days), None
    if model and settings.filter_learning_enabled:
        generalizer = llm_factory.baseline_generalizer(settings, store, context, registry, model, metrics)
        context = replace(context, recorded=generalizer.note)

    # deciding, and learning from it
    confirmed_failures = llm_factory.confirmed_failures(settings, store, logs, policy, metrics, stack)
    planner = _planner(settings, analyzer, senders)
    commands = PlanCommands(policy, planner, settings.plan_lease_seconds, shared.node_queries)
    plans = PlanService(store, commands, metrics, wakes.outbox, trace)
    history = ReplayHistory(store, logs)
    lifecycle = llm_factory.rule_lifecycle(settings, history, registry, model, metrics)
    replayer = CaseReplayer(history, registry, clock, CaseReplayConfig(version("diagnoser")))

    is_watched = await store.change_mark() is not None
    poll = WATCHED_POLL_SECONDS if is_watched else POLL_SECONDS
    retention = Retention(store, clock, ages(settings), metrics, archive)
    worker = Worker(
        store=store,
        logs=logs,
        context=context,
        analysis=registry,
        confirmed_failures=confirmed_failures,
        planner=planner,
        shadow=ShadowEvaluator(store, registry, confirmed_failures),
        llm_stage=llm_factory.llm_stage(settings, model, analyzer.knowledge, confirmed_failures, metrics),
        plans=plans,
        maintenance=Maintenance(store, plans, clock, _retention(settings), retention),
        clock=clock,
        attempts_due=wakes.attempts,
        outbox=wakes.outbox,
        metrics=metrics,
        config=_worker_config(settings, poll),
        evidence=EvidenceCollection(store, clock, make_id),
        trace=trace,
    )
    jitter = Random()  # noqa: S311 - not a secret
    outbox = Outbox(store, senders, clock, wakes.outbox, jitter, metrics, _outbox_config(settings, poll), trace)
    sessions, provider = Sessions(store, clock, identity.session_limits(settings)), identity.open_provider(settings)
    authenticator = _authenticator(settings, store, clock, sessions, provider is not None)
    acts = settings.recovery_mode == "act" or (settings.recovery_mode == "policy" and policy.acts)
    access = {"access": partial(_check_access, authenticator)} if acts else {}
    log_indexes = LogIndexes(store, logs, clock)
    dependencies = AppDependencies(
        store=store,
        redact=load_redactor(settings),
        ingest=ingest,
        plans=plans,
        confirmed_failures=confirmed_failures.reading(KeptLogs(log_indexes)),
        logs=context,
        run_statuses=RunStatuses(store, registry.compressor, clock),
        log_indexes=log_indexes,
        lines=OriginalLines(store, archive),
        workbench=RuleWorkbench(history, registry, lifecycle, time.monotonic),
        metrics=metrics,
        clock=clock,
        make_id=make_id,
        authenticator=authenticator,
        sessions=sessions,
        sign_in=PasswordSignIn(store, Argon2Passwords(), clock),
        provider=provider,
        cookies=CookieRules(is_secure=settings.base_url.startswith("https:")),
        job_access=JobAccess(store, clock),
        attempts_due=wakes.attempts,
        news=NewsFeed(store, clock),
        stopping=stopping,
        config=_web_config(settings),
        health=HealthChecks(
            required={
                "writes": _write_check(store, ingest, clock, stack),
                **({"worker": shared.check_worker} if shared.check_worker else {}),
            },
            optional={
                **wakes.health,
                **llm_factory.health_check(endpoint, stack),
                **_archive_check(archive, stack),
                **access,
            },
        ),
        attribution=_attribution(settings, registry, stack),
        mapping=mapping,
        shipped_rules=lambda: analyzer.knowledge.engine.ruleset.rules,
        trace=trace,
    )
    if acts and settings.role != "worker" and await authenticator.is_open():
        structlog.get_logger().warning("no_tokens", why=NO_TOKENS)
    compaction = Compaction(store, registry.compressor, clock, metrics, archive)
    loops = list(wakes.loops)
    if settings.role != "worker":
        loops += [ingest.run(), unplaced.run(), dependencies.trends.run()]
    if settings.role == "api":
        loops.append(registry.follow())
    else:  # the worker keeps up with the rules by itself
        loops += [compaction.run(), worker.run(), outbox.run(), lifecycle.run(), replayer.run()]
        loops.append(BlindSpotWatch(store, VitalsReader(store, clock), planner, clock, wakes.outbox).run())
        loops.append(ScoreWatch(store, planner, clock, wakes.outbox).run())
        loops += [generalizer.run()] if generalizer else []
        loops += [_watch(store, wakes.attempts)] if is_watched else []
    return dependencies, loops


class _UvicornServer(uvicorn.Server):
    """A server that leaves signals to us: uvicorn raises them again at its end, before our own parts are closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _stop_on_signals(server: uvicorn.Server, stopping: asyncio.Event, numbers: Sequence[signal.Signals]) -> None:
    """The first signal ends live streams and waits for requests, the second does not wait. What still runs after the
    last second, such as the reading of a huge log, is handed over already, and ends with the process."""

    def stop() -> None:
        last = threading.Timer(LAST_SECONDS, os._exit, (os.EX_OK,))
        last.daemon = True
        last.start()
        server.force_exit = server.should_exit
        server.should_exit = True
        stopping.set()

    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop)


def make_id(now: float) -> str:
    """An id that sorts by time, and that nobody can guess."""
    return ids.id_of(now, secrets.randbits(ids.OTHER_BITS))


def _senders(
    settings: Settings, store: AlertThreadStore, clock: Clock, client: "httpx.AsyncClient"
) -> dict[MessageKind, Sender]:
    from diagnoser.adapters.slack import SlackAnswers
    from diagnoser.adapters.webhook import RecoveryWebhook

    senders: dict[MessageKind, Sender] = {}
    private = settings.allow_private_targets
    if settings.webhook_url:
        secret = settings.webhook_secret.get_secret_value()
        senders[MessageKind.RECOVERY] = RecoveryWebhook(
            settings.webhook_url, secret, client, time.time, allow_private=private
        )
    if channels := alerting.channels(settings, client):
        senders[MessageKind.ALERT] = AlertSender(channels, store, alerting.load_routing(settings), clock)
        senders[MessageKind.SLACK] = SlackAnswers(client, time.time, allow_private=private)
    return senders


def _planner(settings: Settings, analyzer: LogAnalyzer, senders: dict[MessageKind, Sender]) -> DecisionPlanner:
    return DecisionPlanner(
        policy=analyzer.knowledge.policy,
        make_id=make_id,
        mode=None if settings.recovery_mode == "policy" else Mode(settings.recovery_mode),
        webhook=MessageKind.RECOVERY in senders,
        alerts=alerting.load_routing(settings),
        base_url=settings.base_url.rstrip("/") or tls.address(settings),
        redact=load_outbound_redactor(settings),
    )


@dataclass(frozen=True)
class _WakeSignals:
    """loops: what carries them between replicas; health: its check."""

    attempts: WakeSignal
    outbox: WakeSignal
    loops: tuple[Coroutine[None, None, None], ...] = ()
    health: Mapping[str, HealthCheck] = field(default_factory=dict)


def _wake_signals(settings: Settings, shared: _Shared, stack: AsyncExitStack) -> _WakeSignals:
    """Of the processes of this service; with Redis, of all replicas."""
    attempts, outbox = shared.attempts, shared.outbox
    url = settings.redis_url.get_secret_value()
    if not url:
        return _WakeSignals(attempts, outbox)
    from diagnoser.adapters.redis import RedisWakeSignals  # loads for a while, and most sites have one replica

    redis = RedisWakeSignals(url, {"attempts": attempts, "outbox": outbox})
    stack.push_async_callback(redis.close)
    check = CachedHealthCheck(redis.ping, time.monotonic)
    stack.push_async_callback(check.close)
    return _WakeSignals(redis.wake("attempts"), redis.wake("outbox"), (redis.run(),), {"redis": check})


async def _watch(store: SqlStore, attempts_due: WakeSignal) -> None:
    """Notifies whenever anybody has changed the database. Where nothing happens, that is all that happens."""
    seen = None
    while True:
        with suppress(Unavailable):
            mark = await store.change_mark()
            if mark != seen:
                attempts_due.notify()
            seen = mark
        await asyncio.sleep(POLL_SECONDS)


def _worker_config(settings: Settings, poll: float) -> WorkerConfig:
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
        poll=poll,
        llm_deadline=settings.llm_deadline_seconds + 5,
        hang_check_idle=idle,
        hang_diagnosis_idle=max(idle, settings.hang_diagnosis_idle_seconds),
        hang_check_interval=min(0.5, idle),
    )


def _retention(settings: Settings) -> RetentionConfig:
    return RetentionConfig(
        node_log_hours=settings.node_log_retention_hours, baseline_hours=settings.baseline_retention_days * 24
    )


def _outbox_config(settings: Settings, poll: float) -> OutboxConfig:
    rates = {"slack": settings.slack_rate_limit, "webhook": settings.webhook_rate_limit}
    return OutboxConfig(poll=poll, lease=settings.claim_lease_seconds, rates=rates)


def _web_config(settings: Settings) -> WebConfig:
    size = settings.max_request_bytes
    return WebConfig(
        base_url=settings.base_url.rstrip("/"),
        limits=RequestLimits(size, size),
        allowed_hosts=allowed_hosts(settings),
        silent_seconds=settings.hang_diagnosis_idle_seconds,
        slack=SlackAccess(settings.slack_signing_secret.get_secret_value(), alerting.slack_operators(settings)),
    )


def _authenticator(
    settings: Settings, store: SqlStore, clock: Clock, sessions: Sessions, provider: bool
) -> Authenticator:
    required, tokens = not authentication.is_loopback(settings.host), authentication.tokens(settings)
    return Authenticator(store, tokens, clock, required=required, sessions=sessions, provider=provider)


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


def _archive_check(archive: Archive | None, stack: AsyncExitStack) -> dict[str, HealthCheck]:
    """While it does not answer, lines are taken and pile up in the database."""
    if archive is None:
        return {}

    async def check() -> str:
        await archive.objects("", 1)
        return "answers"

    cached = CachedHealthCheck(check, time.monotonic)
    stack.push_async_callback(cached.close)
    return {"archive": cached}


def _attribution(settings: Settings, registry: RuleRegistry, stack: AsyncExitStack) -> LogAttribution | None:
    if settings.ft_launcher_log_root is None:
        return None

    def analyse(log: BinaryIO) -> Diagnosis:
        analyzer = registry.analyzer
        return analyzer.diagnose_with_node_logs(analyzer.read(log).evidence, Facts())

    attribution = LogAttribution(log_root(settings.ft_launcher_log_root).open, analyse)
    stack.push_async_callback(attribution.close)
    return attribution


def _log_startup(settings: Settings, analyzer: LogAnalyzer) -> None:
    structlog.get_logger().info(
        "serving",
        url=tls.address(settings),
        database=settings.database_url.partition(":")[0],
        rules=len(analyzer.knowledge.engine.ruleset.rules),
        model=settings.llm_model if settings.llm_url else "none",
        webhook="on" if settings.webhook_url else "none",
        alerts=", ".join(alerting.receiver_names(settings)) or "none",
        processes=_processes(settings),
        recovery=settings.recovery_mode,
    )
    for scope in authentication.deprecated_scopes(settings):
        structlog.get_logger().warning(
            "deprecated_scope", setting="DIAGNOSER_TOKENS", was=scope, now=authentication.DEPRECATED[scope].value
        )
    sys.stderr.flush()
