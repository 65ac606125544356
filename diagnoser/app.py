"""Composition root: makes every part of the service, and names the adapters. `processes.py` runs it."""

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from random import Random
from typing import TYPE_CHECKING, BinaryIO

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from diagnoser.adapters.clock import DatabaseClock, SteadyClock
from diagnoser.adapters.log_root import log_root
from diagnoser.adapters.passwords import Argon2Passwords
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.wake_signals import DatabaseChanges, LocalWakeSignal
from diagnoser.compress.routine import unfolded
from diagnoser.config import alerting, authentication, identity, llm_factory, tls
from diagnoser.config.allowed_hosts import allowed_hosts
from diagnoser.config.loader import load_analyzer, site_node_queries
from diagnoser.config.settings import Settings
from diagnoser.config.shown_settings import shown_settings
from diagnoser.config.site_files import load_mapping, load_outbound_redactor, load_redactor
from diagnoser.config.storage import open_archive, retention_ages
from diagnoser.config.tracing import open_traces
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.diagnosis.line_search import LineSearch
from diagnoser.diagnosis.llm_stage import LLMStage
from diagnoser.diagnosis.log_indexes import KeptLogs, LogIndexes
from diagnoser.diagnosis.original_lines import OriginalLines
from diagnoser.diagnosis.run_status import RunStatuses
from diagnoser.failure_agent.guarded_model import GuardedModel
from diagnoser.ingest.job_access import JobAccess
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.ingest.service import RAW_BYTES, IngestService
from diagnoser.ingest.unattributed import UnattributedStreams
from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.learning.case_replay import CaseReplayer
from diagnoser.learning.log_agent import FilterRegistry, LogAgent
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_lifecycle import RuleLifecycle
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.shadow_evaluation import ShadowEvaluator
from diagnoser.learning.workbench import RuleWorkbench
from diagnoser.model import Diagnosis, Facts, MessageKind, Mode, ids
from diagnoser.model.errors import DiagnoserError
from diagnoser.model.work import Timing
from diagnoser.notifications.routing import AlertRouting
from diagnoser.observability.health import CachedHealthCheck
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace, untraced
from diagnoser.observability.vitals import VitalsReader
from diagnoser.planning.plan_service import PlanService
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import Archive, Clock, Sender, WakeSignal
from diagnoser.recovery.node_query import NodeQueryTable
from diagnoser.redaction.redact import without_secrets
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures
from diagnoser.web.http.authenticator import Authenticator
from diagnoser.web.http.services import (
    CoreServices,
    HealthCheck,
    HealthChecks,
    IntakeServices,
    LiveServices,
    LogServices,
    PeopleServices,
    ScopedServices,
    ViewerScopes,
    WebConfig,
    WebServices,
)
from diagnoser.web.http.sessions import CookieRules, Sessions
from diagnoser.web.http.sign_in import PasswordSignIn
from diagnoser.web.server import create, create_health
from diagnoser.worker import blind_spots, idle_gpus, metric_watch, score_alerts
from diagnoser.worker.alerts import AlertSender, AnswerSender
from diagnoser.worker.blind_spots import alert_blind_spots
from diagnoser.worker.compaction import Compaction
from diagnoser.worker.idle_gpus import alert_idle_gpus
from diagnoser.worker.maintenance import Maintenance
from diagnoser.worker.metric_watch import MetricWatch
from diagnoser.worker.node_metrics import NodeMetricWatch
from diagnoser.worker.outbox import Outbox, OutboxConfig
from diagnoser.worker.repeat import repeat
from diagnoser.worker.retention import Retention
from diagnoser.worker.score_alerts import alert_score_drops
from diagnoser.worker.straggler_looks import StragglerLooks
from diagnoser.worker.worker import Worker, WorkerConfig

if TYPE_CHECKING:
    import httpx

    from diagnoser.adapters.openai import OpenAIModel

CLOCK_SECONDS = 2.0
"""Between two looks at the database's clock."""
POLL_SECONDS = 0.5
WATCHED_POLL_SECONDS = 2.0
"""Of a database that tells cheaply whether it changed: what is due by time alone may be so much late."""
CATCH_UP = 5.0
"""Times the shortest silence: longer than `diagnoser.client` pauses between two tries to send."""
EXIT_GRACE_AFTER_FATAL = 0.3
"""Seconds to wait for late lines where the log holds a fatal line already; later ones revise the diagnosis."""
FATAL_DEBOUNCE_MAX = 60.0
"""Seconds from a fatal line to its diagnosis while lines keep coming; at least the quiet that a site asks for."""
BASELINE_DAYS = 30
"""Days that clean runs of a job family are remembered: one that rests for longer runs other code when it is back."""
WEBHOOKS_PER_SECOND = 20.0
"""A receiver of plans is a small service of the site's own."""
NO_TOKENS = (
    "plans may act, and there are neither tokens nor users: everybody who can connect is believed to be an agent and "
    "an operator, also any user of this machine; create tokens (diagnoser token create, or DIAGNOSER_TOKENS)"
)


@dataclass(frozen=True)
class Shared:
    """What the processes of one machine have in common: made before the fork.

    alerts: who is notified of what.
    client: for receivers of webhooks and alerts, where there are any; it has no open connection at the fork.
    attempts, outbox: wake whoever diagnoses and whoever delivers.
    check_worker: fails while the worker's process does not run; None where none shall run.
    """

    analyzer: LogAnalyzer
    node_queries: NodeQueryTable
    alerts: AlertRouting
    client: "httpx.AsyncClient | None"
    attempts: WakeSignal = field(default_factory=LocalWakeSignal)
    outbox: WakeSignal = field(default_factory=LocalWakeSignal)
    check_worker: HealthCheck | None = None


def load_shared(settings: Settings) -> Shared:
    """Load the rules, the table of alerts and the client of webhooks. Raises RuleFaults, BadInput."""
    client, alerts = None, alerting.load_routing(settings)
    if any((settings.webhook_url, settings.prometheus_url, alerts.receivers)):
        from diagnoser.adapters.http import create_client  # with its certificates, it loads for a while

        client = create_client()
    queries = site_node_queries(settings, tested=settings.rules_dir is None)
    without_secrets("")  # compiles the search for secrets, once for all processes
    return Shared(load_analyzer(settings), queries, alerts, client)


@asynccontextmanager
async def running(settings: Settings, stopping: asyncio.Event, shared: Shared | None = None) -> AsyncIterator[FastAPI]:
    """The application with its loops running around it; everything is closed at the end.

    shared: with other processes; without it all loops of the role run in this one.
    """
    shared = shared or load_shared(settings)
    async with AsyncExitStack() as stack:
        world = await open_world(settings, shared, stack)
        service = await compose(settings, shared, world, stopping, stack)
        async with asyncio.TaskGroup() as group:
            tasks = list(map(group.create_task, await _loops(settings, shared, service)))
            yield create_health(service.web) if settings.role == "worker" else create(service.web)
            for task in tasks:
                task.cancel()


@dataclass(frozen=True)
class World:
    """The outside of the process. model: None where none is configured; archive: None where lines are not archived."""

    store: SqlStore
    archive: Archive | None
    senders: dict[MessageKind, Sender]
    endpoint: "OpenAIModel | None"
    model: GuardedModel | None
    wakes: "WakeSignals"
    clock: Clock
    metrics: Metrics
    trace: Trace


@dataclass(frozen=True)
class Reading:
    """The parts that turn lines into evidence."""

    registry: RuleRegistry
    filters: FilterRegistry
    logs: AttemptLogs
    mapping: FieldMapping
    unplaced: UnattributedStreams
    ingest: IngestService
    context: DiagnosisContext


@dataclass(frozen=True)
class Deciding:
    """The parts that turn a verdict into plans, and people's judgement into rules."""

    planner: DecisionPlanner
    plans: PlanService
    confirmed_failures: ConfirmedFailures
    history: ReplayHistory
    lifecycle: RuleLifecycle
    log_agent: LogAgent | None
    llm_stage: LLMStage | None


@dataclass(frozen=True)
class Service:
    """Every part of the service, made once."""

    world: World
    reading: Reading
    deciding: Deciding
    web: WebServices


async def compose(
    settings: Settings, shared: Shared, world: World, stopping: asyncio.Event, stack: AsyncExitStack
) -> Service:
    reading = await _open_reading(settings, shared, world)
    deciding = _open_deciding(settings, shared, world, reading, stack)
    people = _open_people(settings, world)
    if _acts(settings, shared) and settings.role != "worker" and await people.authenticator.is_open():
        structlog.get_logger().warning("no_tokens", why=NO_TOKENS)
    web = WebServices(
        scopes=ViewerScopes(world.store, _scope_opener(settings, world, reading, deciding, stopping)),
        intake=IntakeServices(
            ingest=reading.ingest,
            job_access=JobAccess(world.store.jobs, world.clock),
            mapping=reading.mapping,
            attempts_due=world.wakes.attempts,
            trace=world.trace,
        ),
        people=people,
        plans=deciding.plans,
        workbench=RuleWorkbench(deciding.history, reading.registry, deciding.lifecycle, time.monotonic),
        shipped_rules=lambda: shared.analyzer.knowledge.engine.ruleset.rules,
        health=_health_checks(settings, shared, world, reading.ingest, people.authenticator, stack),
        attribution=_attribution(settings, reading.registry, stack),
        inquiries=llm_factory.inquiries(settings, world.model, deciding.llm_stage),
    )
    return Service(world, reading, deciding, web)


async def _loops(settings: Settings, shared: Shared, service: Service) -> list[Coroutine[None, None, None]]:
    """What must run for the role of this process."""
    reading, database = service.reading, service.world.store.db
    loops = list(service.world.wakes.loops)
    if isinstance(service.world.clock, DatabaseClock):
        loops.append(repeat(service.world.clock.compare, CLOCK_SECONDS, "database_clock_not_read"))
    changes = DatabaseChanges(database.change_mark, is_watched=await database.change_mark() is not None)
    if changes.is_watched:
        loops.append(changes.run(POLL_SECONDS))
    if settings.role != "worker":
        loops += [reading.ingest.run(), reading.unplaced.run()]
    if settings.role == "api":
        loops.append(reading.registry.follow(changes.pause()))
    else:  # the worker keeps up with the rules by itself
        loops += _worker_loops(settings, shared, service, changes)
    return loops


async def open_world(settings: Settings, shared: Shared, stack: AsyncExitStack) -> World:
    """Connect to everything outside of the process; ``stack`` closes it."""
    metrics = Metrics(CollectorRegistry())
    store = await open_store(settings.database_url)
    stack.push_async_callback(store.close)
    clock = await _open_clock(store, metrics)
    metrics.up.set(clock())
    traces = open_traces(settings, clock)
    if traces:
        stack.push_async_callback(traces.close)
    authentication.check_bind_address(
        settings, stored=bool(await store.tokens.list_all()) or await store.users.has_users()
    )
    client = shared.client and await stack.enter_async_context(shared.client)
    endpoint = llm_factory.connected(settings, stack)
    return World(
        store=store,
        archive=open_archive(settings),
        senders=_senders(settings, shared.alerts, store, clock, client) if client else {},
        endpoint=endpoint,
        model=llm_factory.guarded(settings, endpoint, metrics) if endpoint else None,
        wakes=_wake_signals(settings, shared, stack),
        clock=clock,
        metrics=metrics,
        trace=traces.note if traces else untraced,
    )


async def _open_clock(store: SqlStore, metrics: Metrics) -> Clock:
    """Choose the clock of the service: the database's, where replicas on several machines share one."""
    if not store.db.has_clock:
        return SteadyClock()
    clock = DatabaseClock(store.db.clock, metrics.clock_skew.set)
    await clock.compare()
    return clock


async def _open_reading(settings: Settings, shared: Shared, world: World) -> Reading:
    store, metrics = world.store, world.metrics
    registry = RuleRegistry(shared.analyzer, store.rules, world.clock, shared=settings.tenants_learn_together)
    await registry.refresh()
    filters, mapping = FilterRegistry(registry, store.jobs), load_mapping(settings)
    folding = filters.folding if settings.log_agent else unfolded
    logs = AttemptLogs(store, registry.compressor, folding)
    unplaced = UnattributedStreams(store.unplaced.record_unplaced, load_redactor(settings), metrics)
    ingest = IngestService(
        store.logs,
        registry.compressor,
        metrics,
        mapping=mapping,
        unplaced=unplaced,
        raw_bytes=RAW_BYTES if world.archive is None else sys.maxsize,
        trace=world.trace,
    )
    context = DiagnosisContext(store, logs, world.clock, BASELINE_DAYS, bool(settings.prometheus_url))
    return Reading(registry, filters, logs, mapping, unplaced, ingest, context)


def _open_deciding(
    settings: Settings, shared: Shared, world: World, reading: Reading, stack: AsyncExitStack
) -> Deciding:
    store, policy = world.store, shared.analyzer.knowledge.policy
    planner = _planner(settings, shared, world.senders)
    commands = PlanCommands(policy, planner, queries=shared.node_queries)
    history, log_agent, stage = ReplayHistory(store, reading.logs), None, None
    if settings.log_agent:
        log_agent = llm_factory.log_agent(settings, reading.filters, history, world.model)
    failures = llm_factory.confirmed_failures(settings, store.feedback, reading.logs, policy, world.metrics, stack)
    if world.model:
        agent = llm_factory.failure_agent(settings, world.model, policy, world.metrics)
        stage = LLMStage(agent, failures, store.cases, shared.analyzer.knowledge, store.plans)
    return Deciding(
        planner=planner,
        plans=PlanService(store, commands, world.metrics, world.wakes.outbox, world.trace),
        confirmed_failures=failures,
        history=history,
        lifecycle=llm_factory.rule_lifecycle(settings, history, reading.registry, world.model, world.metrics),
        log_agent=log_agent,
        llm_stage=stage,
    )


def _open_people(settings: Settings, world: World) -> PeopleServices:
    store, clock = world.store, world.clock
    sessions, provider = Sessions(store.users, clock), identity.open_provider(settings)
    authenticator = Authenticator(
        store,
        authentication.tokens(settings),
        clock,
        required=not authentication.is_loopback(settings.host),
        sessions=sessions,
        provider=provider is not None,
    )
    return PeopleServices(
        authenticator=authenticator,
        sessions=sessions,
        sign_in=PasswordSignIn(store, Argon2Passwords(), clock),
        cookies=CookieRules(is_secure=settings.base_url.startswith("https:")),
        provider=provider,
    )


def _scope_opener(
    settings: Settings, world: World, reading: Reading, deciding: Deciding, stopping: asyncio.Event
) -> Callable[[SqlStore], ScopedServices]:
    """Makes the parts that read over a store, which may be narrowed to a viewer. They share the indexes of logs and
    the memory of confirmed failures."""
    clock, compressor, config = world.clock, reading.registry.compressor, _web_config(settings)
    all_indexes, redact = LogIndexes(world.store, reading.logs, time.monotonic), load_redactor(settings)

    def open_scope(store: SqlStore) -> ScopedServices:
        indexes = all_indexes.with_store(store)
        logs = LogServices(
            context=replace(reading.context, store=store, logs=replace(reading.logs, store=store)),
            indexes=indexes,
            lines=OriginalLines(store, world.archive),
            search=LineSearch(store, world.archive),
            run_statuses=RunStatuses(store, compressor, clock),
        )
        core = CoreServices(store, clock, config, world.metrics, make_id, redact, stopping)
        confirmed_failures = deciding.confirmed_failures.reading(KeptLogs(indexes))
        return ScopedServices(core, logs, LiveServices.of_store(store, clock), confirmed_failures)

    return open_scope


def _worker_loops(
    settings: Settings, shared: Shared, service: Service, changes: DatabaseChanges
) -> list[Coroutine[None, None, None]]:
    """What runs behind the requests: diagnosis, delivery, compaction, learning, and the watch for blind spots."""
    world, deciding, registry = service.world, service.deciding, service.reading.registry
    store, clock, metrics, wakes = world.store, world.clock, world.metrics, world.wakes
    changes.wake(wakes.attempts)
    poll = WATCHED_POLL_SECONDS if changes.is_watched else POLL_SECONDS
    jitter = Random()  # noqa: S311 - not a secret
    rates = {**alerting.rates(), "webhook": WEBHOOKS_PER_SECOND}
    config = OutboxConfig(poll=poll, lease=settings.claim_lease_seconds, rates=rates)
    outbox = Outbox(store.outbox, world.senders, clock, wakes.outbox, jitter, metrics, config, world.trace)
    vitals, planner = VitalsReader(store.vitals.read, clock), deciding.planner
    look_for_spots = partial(alert_blind_spots, store.vitals, vitals, planner, clock, wakes.outbox)
    look_for_drops = partial(alert_score_drops, store, planner, clock, wakes.outbox)
    look_for_idle = partial(alert_idle_gpus, store, planner, clock, wakes.outbox)
    replayer = CaseReplayer(deciding.history, registry, clock, version("diagnoser"))
    looks = StragglerLooks(store, EvidenceCollection(store.evidence, clock, make_id), clock)
    watch = MetricWatch(store, registry.compressor, planner, clock, wakes.attempts, wakes.outbox, looks)
    loops = [
        Compaction(
            store.logs, registry.compressor, clock, metrics, world.archive, folding=service.reading.logs.folding
        ).run(changes.pause()),
        repeat(watch.step, metric_watch.PERIOD, "metrics_not_watched", changes.pause()),
        _worker(settings, service, poll, watch).run(),
        outbox.run(),
        deciding.lifecycle.run(changes.pause()),
        replayer.run(),
        repeat(look_for_spots, blind_spots.PERIOD, "blind_spots_not_checked"),
        repeat(look_for_drops, score_alerts.PERIOD, "scores_not_checked"),
        repeat(look_for_idle, idle_gpus.PERIOD, "idle_gpus_not_checked"),
    ]
    if settings.prometheus_url and shared.client:
        loops.append(_node_metrics(settings, shared, world, shared.client))
    if deciding.log_agent:
        loops.append(deciding.log_agent.run())
    return loops


def _node_metrics(
    settings: Settings, shared: Shared, world: World, client: "httpx.AsyncClient"
) -> Coroutine[None, None, None]:
    from diagnoser.adapters.prometheus import read_series

    token = settings.prometheus_token.get_secret_value()
    read = partial(read_series, client, settings.prometheus_url, token)
    table = shared.analyzer.knowledge.node_metrics
    return NodeMetricWatch(world.store, read, table, world.clock, world.wakes.attempts).run()


def _worker(settings: Settings, service: Service, poll: float, watch: MetricWatch) -> Worker:
    world, deciding, registry = service.world, service.deciding, service.reading.registry
    store, clock, metrics = world.store, world.clock, world.metrics
    failures, plans = deciding.confirmed_failures, deciding.plans
    machine = SteadyClock()  # nothing old goes unless it agrees with the database's
    retention = Retention(store, machine, retention_ages(settings), metrics, world.archive)
    return Worker(
        store=store.work,
        logs=service.reading.logs,
        context=service.reading.context,
        analysis=registry,
        confirmed_failures=failures,
        planner=deciding.planner,
        shadow=ShadowEvaluator(store, registry, failures, deciding.log_agent),
        llm_stage=deciding.llm_stage,
        plans=plans,
        maintenance=Maintenance(store, plans, clock, BASELINE_DAYS * 24, retention),
        clock=clock,
        attempts_due=world.wakes.attempts,
        outbox=world.wakes.outbox,
        metrics=metrics,
        config=_worker_config(settings, poll),
        evidence=EvidenceCollection(store.evidence, clock, make_id),
        watch=watch,
        trace=world.trace,
    )


def _acts(settings: Settings, shared: Shared) -> bool:
    """Whether plans may move machines without a person."""
    by_policy = settings.recovery_mode == "policy" and shared.analyzer.knowledge.policy.acts
    return settings.recovery_mode == "act" or by_policy


def _health_checks(
    settings: Settings,
    shared: Shared,
    world: World,
    ingest: IngestService,
    authenticator: Authenticator,
    stack: AsyncExitStack,
) -> HealthChecks:
    """required: without them no request is taken; the others are only shown."""
    required = {"writes": _write_check(world.store, ingest, world.clock, stack)}
    if shared.check_worker:
        required["worker"] = shared.check_worker
    optional = dict(world.wakes.health)
    if world.endpoint:  # without the model's server the rules decide alone
        optional["model"] = CachedHealthCheck.closed_by(stack, world.endpoint.ping)
    if world.archive:
        optional["archive"] = _archive_check(world.archive, stack)
    if _acts(settings, shared):
        optional["access"] = partial(_check_access, authenticator)
    return HealthChecks(required=required, optional=optional)


def make_id(now: float) -> str:
    """An id that sorts by time, and that nobody can guess."""
    return ids.id_of(now, secrets.randbits(ids.OTHER_BITS))


def _senders(
    settings: Settings, routes: AlertRouting, store: SqlStore, clock: Clock, client: "httpx.AsyncClient"
) -> dict[MessageKind, Sender]:
    from diagnoser.adapters.webhook import RecoveryWebhook

    senders: dict[MessageKind, Sender] = {}
    private = settings.allow_private_targets
    if settings.webhook_url:
        secret = settings.webhook_secret.get_secret_value()
        senders[MessageKind.RECOVERY] = RecoveryWebhook(
            settings.webhook_url, secret, client, time.time, allow_private=private
        )
    if receivers := alerting.open_receivers(settings, client):
        senders[MessageKind.ALERT] = AlertSender(receivers, store.alerts, store.incidents, routes, clock)
        senders[MessageKind.ANSWER] = AnswerSender(alerting.answer_senders(settings, client))
    return senders


def _planner(settings: Settings, shared: Shared, senders: dict[MessageKind, Sender]) -> DecisionPlanner:
    return DecisionPlanner(
        policy=shared.analyzer.knowledge.policy,
        make_id=make_id,
        mode=None if settings.recovery_mode == "policy" else Mode(settings.recovery_mode),
        webhook=MessageKind.RECOVERY in senders,
        alerts=shared.alerts,
        base_url=tls.public_address(settings),
        redact=load_outbound_redactor(settings),
    )


@dataclass(frozen=True)
class WakeSignals:
    """loops: what carries them between replicas; health: its check."""

    attempts: WakeSignal
    outbox: WakeSignal
    loops: tuple[Coroutine[None, None, None], ...] = ()
    health: Mapping[str, HealthCheck] = field(default_factory=dict)


def _wake_signals(settings: Settings, shared: Shared, stack: AsyncExitStack) -> WakeSignals:
    """Of the processes of this service; with Redis, of all replicas."""
    attempts, outbox = shared.attempts, shared.outbox
    url = settings.redis_url.get_secret_value()
    if not url:
        return WakeSignals(attempts, outbox)
    from diagnoser.adapters.redis import RedisWakeSignals  # loads for a while, and most sites have one replica

    redis = RedisWakeSignals(url, {"attempts": attempts, "outbox": outbox})
    stack.push_async_callback(redis.close)
    check = CachedHealthCheck.closed_by(stack, redis.ping)
    return WakeSignals(redis.wake("attempts"), redis.wake("outbox"), (redis.run(),), {"redis": check})


def _worker_config(settings: Settings, poll: float) -> WorkerConfig:
    grace, idle = settings.exit_grace_seconds, settings.hang_check_idle_seconds
    timing = Timing(
        exit_grace=grace,
        fatal_debounce=settings.fatal_debounce_seconds,
        fatal_debounce_max=max(FATAL_DEBOUNCE_MAX, settings.fatal_debounce_seconds),
        exit_grace_after_fatal=min(grace, EXIT_GRACE_AFTER_FATAL),
    )
    return WorkerConfig(
        timing=timing,
        lease=settings.claim_lease_seconds,
        poll=poll,
        llm_deadline=settings.llm_deadline_seconds + 5,
        hang_check_idle=idle,
        hang_diagnosis_idle=max(idle, settings.hang_diagnosis_idle_seconds),
        hang_check_interval=min(0.5, idle),
        catch_up=CATCH_UP * idle,
    )


def _web_config(settings: Settings) -> WebConfig:
    return WebConfig(
        base_url=settings.base_url.rstrip("/"),
        allowed_hosts=allowed_hosts(settings),
        silent_seconds=settings.hang_diagnosis_idle_seconds,
        channel_routes=[] if settings.role == "worker" else alerting.routes(settings),  # it takes no requests
        settings=shown_settings(settings),
    )


async def _check_access(authenticator: Authenticator) -> str:
    """Raises DiagnoserError while everybody may move a machine."""
    if await authenticator.is_open():
        raise DiagnoserError(NO_TOKENS)
    return "tokens are needed"


def _write_check(store: SqlStore, ingest: IngestService, clock: Clock, stack: AsyncExitStack) -> HealthCheck:
    async def check() -> str:
        ingest.check_commits()
        await store.db.check_write(clock())
        return "work"

    return CachedHealthCheck.closed_by(stack, check, is_needed=True)


def _archive_check(archive: Archive, stack: AsyncExitStack) -> HealthCheck:
    """While it does not answer, lines are taken and pile up in the database."""

    async def check() -> str:
        await archive.objects("", 1)
        return "answers"

    return CachedHealthCheck.closed_by(stack, check)


def _attribution(settings: Settings, registry: RuleRegistry, stack: AsyncExitStack) -> LogAttribution | None:
    if settings.ft_launcher_log_root is None:
        return None

    def analyse(log: BinaryIO) -> Diagnosis:
        analyzer = registry.analyzer
        return analyzer.diagnose_with_node_logs(analyzer.read(log).evidence, Facts())

    attribution = LogAttribution(log_root(settings.ft_launcher_log_root).open, analyse)
    stack.push_async_callback(attribution.close)
    return attribution
