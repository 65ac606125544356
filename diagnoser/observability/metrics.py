"""Metrics, on a registry that is passed in. Label values come from closed lists."""

import os
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from diagnoser.compress import CompressorLimits, Losses, template_cache
from diagnoser.model import (
    Author,
    Cap,
    Diagnosis,
    FeedbackVerdict,
    LearnedState,
    MessageKind,
    ModelUse,
    PlanReason,
    TransitionResult,
    UnplacedReason,
)
from diagnoser.model.errors import ModelFailure
from diagnoser.model.taxonomy import FailureType, Outcome

DROPPED = (
    "attempts",
    "jobs",
    "diagnoses",
    "plans",
    "dumps",
    "messages",
    "node_events",
    "node_facts",
    "incidents",
    "archived",
    "sessions",
    "audit",
)
REFUSED = ("401", "403", "429")
DELIVERY_RESULTS = ("sent", "retried", "dead", "expired", "withheld", "deferred")


_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def share(folder: Path, process: str) -> None:
    """Before the first ``Metrics`` of a process: what it counts goes to ``folder``, and is shown as the sum of all
    processes that share it. process: its name there; one that is started again goes on counting where it ended."""
    os.environ[_FOLDER] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]


class RequestCounts(Protocol):
    """What the intake counted in one request."""

    @property
    def lines(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def cut(self) -> int: ...


class Metrics:
    """Everything that the service shows at /metrics. Every series exists at zero from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.bytes = Counter("diagnoser_ingested_bytes", "Bytes of log text committed", registry=registry)
        self.lines = Counter("diagnoser_ingested_lines", "Log lines by result", ["result"], registry=registry)
        self.unplaced_lines = Counter(
            "diagnoser_unplaced_lines", "Log lines that belong to no job, by reason", ["reason"], registry=registry
        )
        for reason in UnplacedReason:
            self.unplaced_lines.labels(reason)
        self.refused_requests = Counter(
            "diagnoser_refused_requests",
            "Requests refused by status: 401 no or a wrong token, 403 not within its scope, 429 too many wrong tokens",
            ["status"],
            registry=registry,
        )
        self.commits_failed = Counter("diagnoser_commits_failed", "Group commits that failed", registry=registry)
        self.diagnoses = Counter("diagnoser_diagnoses", "Diagnoses stored", ["outcome", "type"], registry=registry)
        self.diagnosis_seconds = Histogram(
            "diagnoser_diagnosis_duration_seconds",
            "Seconds from claiming an attempt to its stored verdict",
            registry=registry,
        )
        self.outbox_deliveries = Counter(
            "diagnoser_outbox_deliveries", "Attempts to deliver plans and alerts", ["kind", "result"], registry=registry
        )
        self.model_failures = Counter(
            "diagnoser_llm_failures",
            "Consultations of the model without a usable answer",
            ["reason"],
            registry=registry,
        )
        self.model_calls = Counter("diagnoser_llm_requests", "Requests sent to the model", registry=registry)
        self.model_tokens = Counter(
            "diagnoser_llm_tokens", "Tokens read and written by the model", ["direction"], registry=registry
        )
        self.embedding_failures = Counter(
            "diagnoser_embedding_failures",
            "Requests to the embedding server that gave no vectors",
            ["reason"],
            registry=registry,
        )
        self.feedback = Counter(
            "diagnoser_feedback",
            "Feedback by people, by the type of the original verdict",
            ["verdict", "type"],
            registry=registry,
        )
        self.plan_transitions = Counter(
            "diagnoser_plan_transitions",
            "Changes of a plan by reason, including plans that do nothing",
            ["reason"],
            registry=registry,
        )
        self.learned = Counter(
            "diagnoser_learned_rule_transitions",
            "Learned diagnosis rules by the state they entered",
            ["state"],
            registry=registry,
        )
        self.cut_lines = Counter(
            "diagnoser_compressor_truncated_lines", "Lines that were too long and lost their middle", registry=registry
        )
        self.cut_bytes = Counter(
            "diagnoser_compressor_truncated_bytes",
            "Bytes cut from the middle of long lines, or overwritten by progress bars",
            ["cause"],
            registry=registry,
        )
        self.caps = Counter(
            "diagnoser_compressor_limit_reached",
            "Commits and verdicts that reached a limit of what is kept of an attempt",
            ["limit", "stage"],
            registry=registry,
        )
        limits = Gauge(
            "diagnoser_compressor_limit",
            "Limits of what is kept of an attempt",
            ["limit"],
            registry=registry,
            multiprocess_mode="max",
        )
        for cap in Cap:
            limits.labels(cap).set(CompressorLimits().of(cap))
        limits.labels("cached_templates").set(template_cache.MOST)
        self.cached_templates = Gauge(
            "diagnoser_compressor_cached_templates",
            "Line shapes in the caches of all processes",
            registry=registry,
            multiprocess_mode="sum",
        )
        self.consumed_messages = Counter(
            "diagnoser_consumed_messages", "Messages of a topic whose lines are stored or left out", registry=registry
        )
        self.consumer_lag = Gauge(
            "diagnoser_consumer_lag_messages", "Messages at the brokers that are not stored yet", registry=registry
        )
        self.consumer_partitions = Gauge(
            "diagnoser_consumer_partitions", "Partitions that the group gave to this process", registry=registry
        )
        self.consumer_rewinds = Counter(
            "diagnoser_consumer_rewinds",
            "Batches thrown away because another member of the group had stored them",
            registry=registry,
        )
        self.dropped = Counter(
            "diagnoser_retention_dropped", "What was dropped because of its age or size", ["kind"], registry=registry
        )
        self.archived = Counter(
            "diagnoser_archived_bytes", "Bytes of original lines archived, compressed", registry=registry
        )
        self.up = Gauge(
            "diagnoser_start_time_seconds",
            "Start of the service, in seconds since the epoch",
            registry=registry,
            multiprocess_mode="min",
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        families: tuple[tuple[Counter, tuple[Iterable[str], ...]], ...] = (
            (self.lines, (("accepted", "duplicate", "rejected", "cut"),)),
            (self.refused_requests, (REFUSED,)),
            (self.diagnoses, (Outcome, FailureType)),
            (self.feedback, (FeedbackVerdict, FailureType)),
            (self.outbox_deliveries, (MessageKind, DELIVERY_RESULTS)),
            (self.dropped, (DROPPED,)),
            (self.cut_bytes, (("line_too_long", "carriage_return"),)),
            (self.caps, (Cap, ("commit", "verdict"))),
            (self.plan_transitions, (PlanReason,)),
            (self.model_failures, (ModelFailure,)),
            (self.embedding_failures, (ModelFailure,)),
            (self.model_tokens, (("in", "out"),)),
            (self.learned, (LearnedState,)),
        )
        for counter, labels in families:
            for combination in product(*labels):
                counter.labels(*combination)

    def exposition(self) -> bytes:
        """In Prometheus' format; of all processes, where they ``share``."""
        registry = self.registry
        if folder := os.environ.get(_FOLDER):
            registry = CollectorRegistry()
            MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def observe_ingest(self, receipt: RequestCounts, size: int) -> None:
        self.bytes.inc(size)
        self.lines.labels("accepted").inc(receipt.lines)
        self.lines.labels("duplicate").inc(receipt.duplicates)
        self.lines.labels("rejected").inc(receipt.rejected)
        self.lines.labels("cut").inc(receipt.cut)

    def observe_archived(self, size: int) -> None:
        self.archived.inc(size)

    def observe_losses(self, losses: Iterable[Losses]) -> None:
        """Count what a commit or a compaction did not keep."""
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
        self.diagnoses.labels(diagnosis.outcome, diagnosis.type).inc()
        self.diagnosis_seconds.observe(seconds)
        for cap in diagnosis.left_out.caps:
            self.caps.labels(cap, "verdict").inc()

    def observe_transition(self, result: TransitionResult) -> None:
        """Count a stored decision about a plan."""
        for reason in result.reasons:
            self.plan_transitions.labels(reason).inc()

    def observe_feedback(self, kind: FailureType, verdict: FeedbackVerdict) -> None:
        """Count a person's feedback on a verdict of this type."""
        self.feedback.labels(verdict, kind).inc()

    def observe_rule_writing(self, calls: int, author: Author) -> None:
        """Count what it cost to have a model write a rule."""
        self.model_calls.inc(calls)
        self.model_tokens.labels("in").inc(author.tokens_in)
        self.model_tokens.labels("out").inc(author.tokens_out)

    def observe_embedding_failure(self, reason: ModelFailure) -> None:
        self.embedding_failures.labels(reason).inc()

    def observe_consultation(self, use: ModelUse) -> None:
        """Count one consultation of the model."""
        self.model_calls.inc(use.calls)
        self.model_tokens.labels("in").inc(use.tokens_in)
        self.model_tokens.labels("out").inc(use.tokens_out)
        if use.failure:
            self.model_failures.labels(use.failure).inc()
