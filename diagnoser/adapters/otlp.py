"""Sends traces to an OpenTelemetry receiver over OTLP/HTTP, with OpenTelemetry's own SDK.

Spans wait in a bounded queue for a thread of the SDK: a receiver that is slow or away costs spans, never time.
"""

import asyncio
import logging
import os
import secrets
import socket
import threading

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from diagnoser.model import AttemptKey
from diagnoser.model.recent import Recent
from diagnoser.observability.tracing import TraceStep, diagnosis_span_id, root_span_id, trace_id
from diagnoser.ports import Clock
from diagnoser.redaction.redact import Redact, masked_entry, redact

PATH = "/v1/traces"
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
CLOSE_SECONDS = 1.0
"""For what still waits when the process stops."""
REPEATED = frozenset({TraceStep.INGEST, TraceStep.EVENT})
"""Steps that a failing attempt may take a thousand times."""
REPEATED_SECONDS = 60.0
"""One of them is noted in so many seconds, by each process."""
ATTEMPTS_KNOWN = 10_000
COMPLAINT_SECONDS = 60.0


class OtlpTraces:
    """``note`` is a ``Trace``."""

    def __init__(self, endpoint: str, version: str, role: str, clock: Clock, redact: Redact = redact) -> None:
        """endpoint: address of the receiver, without ``PATH``. Everything else is as OpenTelemetry's environment
        variables say: headers, certificates, time limit, size of the queue."""
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [_Complaints(logging.ERROR)], False
        own = {
            "service.name": "diagnoser",
            "service.version": version,
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
            "diagnoser.role": role,
        }
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("diagnoser", version)
        self._clock = clock
        self._redact = redact
        self._repeated = Recent[tuple[TraceStep, AttemptKey], float](ATTEMPTS_KNOWN)
        self._spans = BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}{PATH}"))

    def note(
        self,
        step: TraceStep,
        attempt: AttemptKey,
        since: float,
        *,
        diagnosis: str = "",
        error: str = "",
        **facts: str | float,
    ) -> None:
        now = self._clock()
        if step in REPEATED and not self._is_first(step, attempt, now):
            return
        span, parent = _span_and_parent(step, attempt, diagnosis)
        trace = trace_id(attempt)
        about: dict[str, str | float] = {"job": attempt.job, "attempt": attempt.number, **facts}
        if diagnosis:
            about["diagnosis"] = diagnosis
        shown = {f"diagnoser.{name}": masked_entry(name, value, self._redact) for name, value in about.items()}
        self._spans.on_end(
            ReadableSpan(
                name=step.value,
                context=SpanContext(trace, span, is_remote=False, trace_flags=SAMPLED),
                parent=SpanContext(trace, parent, is_remote=True, trace_flags=SAMPLED) if parent else None,
                resource=self._resource,
                instrumentation_scope=self._scope,
                attributes=shown,
                status=Status(StatusCode.ERROR, self._redact(error)) if error else Status(),
                start_time=_nanoseconds(min(since, now)),
                end_time=_nanoseconds(now),
            )
        )

    async def close(self) -> None:
        """Sends what waits, for a moment: the SDK would try for half a minute."""
        closing = threading.Thread(target=self._spans.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)

    def _is_first(self, step: TraceStep, attempt: AttemptKey, now: float) -> bool:
        if now - self._repeated.get((step, attempt), float("-inf")) < REPEATED_SECONDS:
            return False
        self._repeated[step, attempt] = now
        return True


class _Complaints(logging.Handler):
    """What the SDK has to say, in the service's own log, and not again and again."""

    next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if record.created >= self.next:
            self.next = record.created + COMPLAINT_SECONDS
            structlog.get_logger().warning("traces_not_sent", why=record.getMessage())


def _span_and_parent(step: TraceStep, attempt: AttemptKey, diagnosis: str) -> tuple[int, int]:
    """Ids of the span and of the one above it; 0: none.

    The attempt is the root. Its diagnoses are below it, and the other steps below their diagnosis, if they have one.
    """
    root = root_span_id(attempt)
    above = diagnosis_span_id(diagnosis) if diagnosis else root
    if step is TraceStep.ATTEMPT:
        return root, 0
    if step is TraceStep.DIAGNOSE:
        return above, root
    return secrets.randbits(63) + 1, above


def _nanoseconds(time: float) -> int:
    return int(time * 1e9)
