"""`consume`: lines of a Kafka topic, or of a log store that a site has already, straight into the database."""

import asyncio
import signal
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from diagnoser.commands.terminal import site
from diagnoser.config.settings import Settings
from diagnoser.model import NODE_LOG
from diagnoser.model.access import Credential, Scope
from diagnoser.model.errors import BadInput

if TYPE_CHECKING:
    from diagnoser.ingest.job_access import JobAccess
    from diagnoser.ports import MessageSource

STOP_SECONDS = 10.0


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Key(StrEnum):
    JOB = "job"
    IGNORE = "ignore"


class Origin(StrEnum):
    KAFKA = "kafka"
    LOKI = "loki"
    VICTORIALOGS = "victorialogs"


def consume(
    group: Annotated[
        str,
        typer.Option(help="Name under which it is stored how far is read. Several processes of a group share a topic."),
    ],
    origin: Annotated[Origin, typer.Option("--from", help="What is read.")] = Origin.KAFKA,
    topic: Annotated[str, typer.Option(help="Kafka: topic to read.")] = "",
    brokers: Annotated[str, typer.Option(help="Kafka: HOST:PORT of brokers to begin with, comma separated.")] = "",
    format: Annotated[
        Format,
        typer.Option(help="text: a message is lines. json: it is a record, an array of records, or one a line."),
    ] = Format.TEXT,
    key: Annotated[Key, typer.Option(help="Kafka: whether the key of a message is its job.")] = Key.JOB,
    url: Annotated[str, typer.Option(help="Log store: its address, such as http://loki:3100.")] = "",
    query: Annotated[str, typer.Option(help="Log store: which lines, in LogQL or LogsQL.")] = "",
    tenant: Annotated[str, typer.Option(help="Loki: tenant, as X-Scope-OrgID has it.")] = "",
    since: Annotated[
        float, typer.Option(min=0, help="Log store: hours before now from which on a new group reads.")
    ] = 1.0,
    delay: Annotated[
        float, typer.Option(min=0, help="Log store: seconds that a line may take into it; what comes later is missed.")
    ] = 10.0,
    cluster: Annotated[
        str, typer.Option(help="Cluster that the lines are of: those of jobs and nodes of another are left out.")
    ] = "",
    vouch: Annotated[
        bool,
        typer.Option(
            "--vouch",
            help="No job can write to this topic or store: believe its lines of nodes and of the scheduler. Without "
            "it, all lines are what a job says.",
        ),
    ] = False,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for /metrics, on DIAGNOSER_HOST. 0: none.")
    ] = 0,
) -> None:
    """Read lines of Kafka, Loki or VictoriaLogs into the database.

    Each counts once. Kafka needs the extra `kafka`.
    """
    from diagnoser.observability import logging

    settings = site()
    logging.set_up(as_json=settings.log_format == "json", level=settings.log_level)
    if origin is Origin.KAFKA:
        source = _topic(settings, topic, brokers, group)
        sender = credential(topic, cluster, vouch=vouch)
    else:
        window = timedelta(hours=since), timedelta(seconds=delay)
        source = _tail(settings, origin, url, query, group, tenant, window)
        sender = credential(group, cluster, vouch=vouch, origin=origin)
        key = Key.IGNORE
    asyncio.run(_run(settings, origin, source, sender, format, key, metrics_port))


def _topic(settings: Settings, topic: str, brokers: str, group: str) -> "MessageSource":
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise BadInput("reading from Kafka needs its client: pip install 'diagnoser[kafka]'") from None
    from diagnoser.adapters.kafka import KafkaSource
    from diagnoser.config import kafka

    if not topic:
        raise BadInput("no topic: name it with --topic, or another source with --from")
    return KafkaSource(kafka.properties(settings, brokers=brokers, group=group), topic)


def _tail(
    settings: Settings,
    origin: Origin,
    url: str,
    query: str,
    group: str,
    tenant: str,
    window: tuple[timedelta, timedelta],
) -> "MessageSource":
    """window: how long ago a new group begins, and how long a line may take."""
    from diagnoser.adapters.clock import SteadyClock
    from diagnoser.adapters.line_sources import SOURCES
    from diagnoser.adapters.line_sources.store_client import StoreClient
    from diagnoser.adapters.line_sources.tail import LineTail
    from diagnoser.model.logs import Partition

    if not (url and query):
        raise BadInput(f"reading from {origin} needs its address and a query: --url and --query")
    headers = {}
    if secret := settings.line_source_authorization.get_secret_value():
        headers["Authorization"] = secret
    if tenant:
        headers["X-Scope-OrgID"] = tenant
    client, partition = StoreClient(url, headers), Partition(url, group, query, 0)
    since, delay = window[0].total_seconds(), window[1].total_seconds()
    return LineTail(client, SOURCES[origin], partition, SteadyClock(), since=since, delay=delay)


def credential(name: str, cluster: str, *, vouch: bool, origin: Origin = Origin.KAFKA) -> Credential:
    """Who the lines are from: what a token would say, the operator's options say here. name: of the topic, or of who
    reads a store."""
    return Credential(f"{origin}:{name}", Scope.AGENT if vouch else Scope.INGEST, cluster)


async def _run(
    settings: Settings,
    origin: Origin,
    source: "MessageSource",
    sender: Credential,
    format: Format,
    key: Key,
    port: int,
) -> None:
    """Everything that stores lines, made once and straight down, until a signal."""
    from prometheus_client import CollectorRegistry, start_http_server

    from diagnoser.adapters.clock import SteadyClock
    from diagnoser.adapters.sql.store import open_store
    from diagnoser.config.loader import load_analyzer
    from diagnoser.config.site_files import load_mapping, load_redactor
    from diagnoser.config.tracing import open_traces
    from diagnoser.ingest import RecordDefaults
    from diagnoser.ingest.consumer import LogConsumer
    from diagnoser.ingest.job_access import JobAccess
    from diagnoser.ingest.messages import MessageReader
    from diagnoser.ingest.service import IngestService
    from diagnoser.ingest.unattributed import UnattributedStreams
    from diagnoser.learning.rule_registry import RuleRegistry
    from diagnoser.observability.metrics import Metrics
    from diagnoser.observability.tracing import untraced

    defaults = RecordDefaults(cluster=sender.cluster, vouched=sender.vouches, sender=sender.name)
    reader = MessageReader(load_mapping(settings), format.value, defaults, key_is_job=key is Key.JOB)
    clock, metrics = SteadyClock(), Metrics(CollectorRegistry())
    metrics.up.set(clock())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(source.close)
        store = await open_store(settings.database_url)
        stack.push_async_callback(store.close)
        registry = RuleRegistry(load_analyzer(settings), store.rules, clock)
        await registry.refresh()
        traces = open_traces(settings, clock)
        if traces:
            stack.push_async_callback(traces.close)
        ingest = IngestService(store.logs, registry.compressor, metrics, trace=traces.note if traces else untraced)
        unplaced = UnattributedStreams(store.unplaced.record_unplaced, load_redactor(settings), metrics)
        may_not = partial(refused, JobAccess(store.jobs, clock), sender)
        consumer = LogConsumer(source, origin, ingest, store.logs, reader, unplaced, may_not, clock, metrics)
        if port:
            server, _ = start_http_server(port, settings.host, metrics.registry)
            stack.callback(server.shutdown)
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        beside = list(map(asyncio.create_task, (ingest.run(), registry.follow(), unplaced.run())))
        try:
            await _until_stopped(asyncio.create_task(consumer.run(stopping)), stopping)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _until_stopped(consuming: asyncio.Task[None], stopping: asyncio.Event) -> None:
    """Run until a signal; the batch under way then has ``STOP_SECONDS`` to be stored, else it is read again later."""
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait([consuming, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not consuming.done():
        await asyncio.wait([consuming], timeout=STOP_SECONDS)
    waiting.cancel()
    if not consuming.done():
        consuming.cancel()
        return
    consuming.result()


async def refused(access: "JobAccess", sender: Credential, jobs: Collection[str]) -> Mapping[str, str]:
    """Jobs, and logs of nodes, that the sender may not speak of, each with the reason."""
    reasons = await access.refused(sender, jobs)
    if sender.vouches:
        return reasons
    why = "a node's own log: only what no job can write to brings one (--vouch)"
    return {**reasons, **{job: why for job in jobs if job.startswith(NODE_LOG)}}
