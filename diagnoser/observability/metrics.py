"""Metrics, on a registry that is passed in. Label values come from closed lists."""

import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from diagnoser.compress import CompressorLimits, Losses, template_cache
from diagnoser.model import (
    Author,
    Cap,
    CheckpointPhase,
    Diagnosis,
    Event,
    EventKind,
    FeedbackVerdict,
    LearnedState,
    MessageKind,
    ModelUse,
    PlanReason,
    TransitionResult,
    UnplacedReason,
)
from diagnoser.model.errors import ModelFailure
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of

_ENDING = ".pid"
MAIN = "main"
"""Name of the process where there is only one."""


class ProcessFigures(Collector):
    """``process_...``, as every Prometheus client names it, with the name of the process as a label.

    folder: where processes were noted; None for this process alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, process in sorted(self._processes().items()):
            for family in ProcessCollector(pid=lambda process=process: process, registry=None).collect():  # type: ignore[misc]
                joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    joined.add_sample(sample.name, {**sample.labels, "process": name}, sample.value)
        yield from families.values()

    def _processes(self) -> dict[str, int]:
        if self._folder is None:
            return {MAIN: os.getpid()}
        return {path.stem: int(path.read_text()) for path in self._folder.glob(f"*{_ENDING}")}


DROPPED = (
    "attempts",
    "jobs",
    "diagnoses",
    "plans",
    "dumps",
    "messages",
    "node_events",
    "node_facts",
    "trials",
    "incidents",
    "archived",
    "sessions",
    "audit",
)
REFUSED = ("401", "403", "429")
REQUEST_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
"""Buckets by which a request is quick, slow, or a fault. Few: each route that is called has its own."""
COMMIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
MODEL_SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
VERDICT_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DELIVERY_RESULTS = ("sent", "retried", "dead", "expired", "withheld", "deferred")


_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def share(folder: Path, process: str) -> None:
    """Before the first ``Metrics`` of a process: what it counts goes to ``folder``, and is shown as the sum of all
    processes that share it. process: its name there; one that is started again goes on counting where it ended."""
    os.environ[_FOLDER] = str(folder)
    (folder / f"{process}{_ENDING}").write_text(str(os.getpid()))
    values.ValueClass = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]


class Metrics:
    """What the service counts, of all its processes. Every series exists at zero from the start, but for those of
    requests and of embeddings, which are there once there was one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, that nothing asks for
        self.registry = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.requests = counter("diagnoser_http_requests", "Requests answered", ["method", "route", "status"])
        self.request_seconds = histogram(
            "diagnoser_http_request_duration_seconds",
            "Seconds from a request to the begin of its answer, without those that wait for news (long poll, streams)",
            ["method", "route"],
            buckets=REQUEST_SECONDS,
        )
        self.commit_seconds = histogram(
            "diagnoser_ingest_commit_duration_seconds",
            "Seconds from a parsed request with log lines to its commit, which is when it is acknowledged",
            buckets=COMMIT_SECONDS,
        )
        self.bytes = counter("diagnoser_ingested_bytes", "Bytes of log text committed")
        self.lines = counter("diagnoser_ingested_lines", "Log lines by result", ["result"])
        self.unplaced_lines = counter(
            "diagnoser_unplaced_lines", "Log lines that belong to no job, by reason", ["reason"]
        )
        for reason in UnplacedReason:
            self.unplaced_lines.labels(reason)
        self.refused_requests = counter(
            "diagnoser_refused_requests",
            "Requests refused by status: 401 no or a wrong token, 403 not within its scope, 429 too many wrong tokens",
            ["status"],
        )
        self.commits_failed = counter("diagnoser_commits_failed", "Group commits that failed")
        self.diagnoses = counter("diagnoser_diagnoses", "Diagnoses stored", ["outcome"])
        self.failures = counter("diagnoser_failures", "Diagnoses stored that say failed or hung", ["category", "type"])
        self.diagnosis_seconds = histogram(
            "diagnoser_diagnosis_duration_seconds",
            "Seconds from claiming an attempt to its stored verdict",
            buckets=VERDICT_SECONDS,
        )
        self.outbox_deliveries = counter(
            "diagnoser_outbox_deliveries", "Attempts to deliver plans and alerts", ["kind", "result"]
        )
        self.model_failures = counter(
            "diagnoser_llm_failures", "Consultations of the model without a usable answer", ["reason"]
        )
        self.model_calls = counter("diagnoser_llm_requests", "Requests sent to the model")
        self.model_tokens = counter("diagnoser_llm_tokens", "Tokens read and written by the model", ["direction"])
        self.model_seconds = histogram(
            "diagnoser_llm_request_duration_seconds",
            "Seconds until the model answered, or failed to",
            buckets=MODEL_SECONDS,
        )
        self.model_limits = gauge(
            "diagnoser_llm_hourly_limit",
            "Most that the model may read and write in an hour; 0 for no limit",
            ["of"],
            multiprocess_mode="max",
        )
        self.model_rests = gauge(
            "diagnoser_llm_breaker_open",
            "1 after the model's server failed repeatedly, until it has answered again",
            multiprocess_mode="mostrecent",
        )
        self.embedding_failures = counter(
            "diagnoser_embedding_failures", "Requests to the embedding server that gave no vectors", ["reason"]
        )
        self.feedback = counter(
            "diagnoser_feedback", "Feedback by people, by the category of the original verdict", ["verdict", "category"]
        )
        self.plan_transitions = counter(
            "diagnoser_plan_transitions", "Changes of a plan by reason, including plans that do nothing", ["reason"]
        )
        self.learned = counter(
            "diagnoser_learned_rule_transitions", "Learned diagnosis rules by the state they entered", ["state"]
        )
        self.cut_lines = counter(
            "diagnoser_compressor_truncated_lines", "Lines that were too long and lost their middle"
        )
        self.cut_bytes = counter(
            "diagnoser_compressor_truncated_bytes",
            "Bytes cut from the middle of long lines, or overwritten by progress bars",
            ["cause"],
        )
        self.caps = counter(
            "diagnoser_compressor_limit_reached",
            "Commits and verdicts that reached a limit of what is kept of an attempt",
            ["limit", "stage"],
        )
        limits = gauge(
            "diagnoser_compressor_limit", "Limits of what is kept of an attempt", ["limit"], multiprocess_mode="max"
        )
        for cap in Cap:
            limits.labels(cap).set(CompressorLimits().of(cap))
        limits.labels("cached_templates").set(template_cache.MOST)
        self.cached_templates = gauge(
            "diagnoser_compressor_cached_templates",
            "Line shapes in the caches of all processes",
            multiprocess_mode="sum",
        )
        self.consumed_messages = counter(
            "diagnoser_consumed_messages", "Messages of a topic whose lines are stored or left out"
        )
        self.consumer_lag = gauge("diagnoser_consumer_lag_messages", "Messages at the brokers that are not stored yet")
        self.consumer_partitions = gauge(
            "diagnoser_consumer_partitions", "Partitions that the group gave to this process"
        )
        self.consumer_rewinds = counter(
            "diagnoser_consumer_rewinds", "Batches thrown away because another member of the group had stored them"
        )
        self.checkpoints = counter(
            "diagnoser_checkpoints", "Reports of checkpoints by jobs, by what they say", ["phase"]
        )
        self.checkpoint_blocked = counter(
            "diagnoser_checkpoint_blocked_seconds",
            "Seconds for which training stood still to save checkpoints, as jobs report them",
        )
        self.dropped = counter("diagnoser_retention_dropped", "What was dropped because of its age or size", ["kind"])
        self.retention_refused = counter("diagnoser_retention_refused", "Looks at which the clock was not trusted")
        self.clock_skew = gauge(
            "diagnoser_clock_skew_seconds",
            "This machine's clock less the database's, which the service goes by",
            multiprocess_mode="mostrecent",
        )
        self.archived = counter("diagnoser_archived_bytes", "Bytes of original lines archived, compressed")
        self.up = gauge(
            "diagnoser_start_time_seconds", "Start of the service, in seconds since the epoch", multiprocess_mode="min"
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        families: tuple[tuple[Counter, tuple[Iterable[str], ...]], ...] = (
            (self.lines, (("accepted", "duplicate", "rejected", "cut"),)),
            (self.refused_requests, (REFUSED,)),
            (self.diagnoses, (Outcome,)),
            (self.feedback, (FeedbackVerdict, Category)),
            (self.outbox_deliveries, (MessageKind, DELIVERY_RESULTS)),
            (self.dropped, (DROPPED,)),
            (self.cut_bytes, (("line_too_long", "carriage_return"),)),
            (self.caps, (Cap, ("commit", "verdict"))),
            (self.plan_transitions, (PlanReason,)),
            (self.model_failures, (ModelFailure,)),
            (self.model_tokens, (("in", "out"),)),
            (self.learned, (LearnedState,)),
            (self.checkpoints, (CheckpointPhase,)),
        )
        for counter, labels in families:
            for combination in product(*labels):
                counter.labels(*combination)
        for kind in FailureType:
            self.failures.labels(category_of(kind), kind)
        self.model_limits.labels("tokens")

    def exposition(self, *now: Collector) -> bytes:
        """In Prometheus' format; what was counted is of all processes, where they ``share``. now: what is measured at
        this moment."""
        registry, folder = self.registry, os.environ.get(_FOLDER)
        if folder:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
        measured = CollectorRegistry()
        for collector in (ProcessFigures(Path(folder) if folder else None), *now):
            measured.register(collector)
        return generate_latest(registry) + generate_latest(measured)

    def observe_ingest(self, size: int, **lines: int) -> None:
        """Count a request. size: bytes of its log text. lines: by result."""
        self.bytes.inc(size)
        for result, count in lines.items():
            self.lines.labels(result).inc(count)

    def observe_losses(self, losses: Iterable[Losses]) -> None:
        self.cached_templates.set(template_cache.held())
        for loss in losses:
            self.cut_lines.inc(loss.cut_lines)
            self.cut_bytes.labels("line_too_long").inc(loss.cut_bytes)
            self.cut_bytes.labels("carriage_return").inc(loss.painted)
            for cap in loss.caps:
                self.caps.labels(cap, "commit").inc()

    def observe_failed_commit(self, error: Exception) -> None:
        self.commits_failed.inc()
        structlog.get_logger().error("commit_failed", error=str(error), error_class=type(error).__name__)

    def observe_diagnosis(self, diagnosis: Diagnosis, seconds: float) -> None:
        self.diagnoses.labels(diagnosis.outcome).inc()
        if diagnosis.outcome in (Outcome.FAILED, Outcome.HUNG):
            self.failures.labels(category_of(diagnosis.type), diagnosis.type).inc()
        self.diagnosis_seconds.observe(seconds)
        for cap in diagnosis.left_out.caps:
            self.caps.labels(cap, "verdict").inc()

    def observe_event(self, event: Event) -> None:
        """Count a new event of an attempt: so far those of checkpoints are."""
        if event.kind is EventKind.CHECKPOINT:
            self.checkpoints.labels(event.phase or CheckpointPhase.DURABLE).inc()
            self.checkpoint_blocked.inc((event.blocked_ms or 0.0) / 1000.0)

    def observe_transition(self, result: TransitionResult) -> None:
        for reason in result.reasons:
            self.plan_transitions.labels(reason).inc()

    def observe_calls(self, spent: Author | ModelUse) -> None:
        """Count what the model was asked, and what that took."""
        self.model_calls.inc(spent.calls)
        self.model_tokens.labels("in").inc(spent.tokens_in)
        self.model_tokens.labels("out").inc(spent.tokens_out)

    def observe_model(self, seconds: float, *, rests: bool) -> None:
        """Count one request to the model, answered or not. rests: whether its server gets a rest now."""
        self.model_seconds.observe(seconds)
        self.model_rests.set(rests)

    def observe_consultation(self, use: ModelUse) -> None:
        self.observe_calls(use)
        if use.failure:
            self.model_failures.labels(use.failure).inc()
