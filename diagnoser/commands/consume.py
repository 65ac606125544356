"""`consume`: lines of a Kafka topic, as one member of a consumer group, straight into the database."""

import asyncio
import signal
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
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
    from diagnoser.ports import MessageSource
    from diagnoser.web.http.access import JobAccess

STOP_SECONDS = 10.0


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Key(StrEnum):
    JOB = "job"
    IGNORE = "ignore"


def consume(
    topic: Annotated[str, typer.Option(help="Topic to read.")],
    group: Annotated[str, typer.Option(help="Consumer group. Several processes of one group share the topic.")],
    brokers: Annotated[str, typer.Option(help="HOST:PORT of brokers to begin with, comma separated.")] = "",
    format: Annotated[
        Format,
        typer.Option(help="text: a message is lines. json: it is a record, an array of records, or one a line."),
    ] = Format.TEXT,
    key: Annotated[Key, typer.Option(help="Whether the key of a message is its job.")] = Key.JOB,
    cluster: Annotated[
        str, typer.Option(help="Cluster that the topic is of: lines of jobs and nodes of another are left out.")
    ] = "",
    vouch: Annotated[
        bool,
        typer.Option(
            "--vouch",
            help="No job can write to this topic: believe its lines of nodes and of the scheduler. Without it, all "
            "lines are what a job says.",
        ),
    ] = False,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for /metrics, on DIAGNOSER_HOST. 0: none.")
    ] = 0,
) -> None:
    """Read the lines of a Kafka topic into the database; each message counts once. Needs the extra `kafka`."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise BadInput("reading from Kafka needs its client: pip install 'diagnoser[kafka]'") from None
    from diagnoser.adapters.kafka import KafkaSource
    from diagnoser.config import kafka
    from diagnoser.observability import logging

    settings = site()
    logging.set_up(as_json=settings.log_format == "json", level=settings.log_level)
    source = KafkaSource(kafka.properties(settings, brokers=brokers, group=group), topic)
    asyncio.run(_run(settings, source, credential(topic, cluster, vouch=vouch), format, key, metrics_port))


def credential(topic: str, cluster: str, *, vouch: bool) -> Credential:
    """Who the lines of the topic are from: what a token would say, the operator's options say here."""
    return Credential(f"kafka:{topic}", Scope.AGENT if vouch else Scope.INGEST, cluster)


async def _run(
    settings: Settings, source: "MessageSource", sender: Credential, format: Format, key: Key, port: int
) -> None:
    """Everything that stores lines, made once and straight down, until a signal."""
    from prometheus_client import CollectorRegistry, start_http_server

    from diagnoser.adapters.clock import SteadyClock
    from diagnoser.adapters.sql.store import open_store
    from diagnoser.config.field_mapping import load_mapping
    from diagnoser.config.loader import load_analyzer
    from diagnoser.config.redaction import load_redactor
    from diagnoser.config.tracing import open_traces
    from diagnoser.ingest import RecordDefaults
    from diagnoser.ingest.consumer import LogConsumer
    from diagnoser.ingest.messages import MessageReader
    from diagnoser.ingest.service import IngestService
    from diagnoser.ingest.unattributed import UnattributedStreams
    from diagnoser.learning.rule_registry import RuleRegistry
    from diagnoser.observability.metrics import Metrics
    from diagnoser.observability.tracing import untraced
    from diagnoser.web.http.access import JobAccess

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
        unplaced = UnattributedStreams(store.unplaced, load_redactor(settings), metrics)
        may_not = partial(refused, JobAccess(store.jobs, clock), sender)
        consumer = LogConsumer(source, ingest, store.logs, reader, unplaced, may_not, clock, metrics)
        if port:
            server, _ = start_http_server(port, settings.host, metrics.registry)
            stack.callback(server.shutdown)
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        beside = [asyncio.create_task(loop) for loop in (ingest.run(), registry.follow(), unplaced.run())]
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
    """Jobs, and logs of nodes, that the topic may not speak of, each with the reason."""
    reasons = await access.refused(sender, jobs)
    if sender.vouches:
        return reasons
    why = "a node's own log: only a topic that no job can write to brings one (--vouch)"
    return {**reasons, **{job: why for job in jobs if job.startswith(NODE_LOG)}}
