"""Traces: which steps become spans, and what may not cost the service anything."""

import sys
import time
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from diagnoser.config.settings import load
from diagnoser.config.tracing import open_traces
from diagnoser.model import AttemptKey, MessageKind, OutboxMessage
from diagnoser.model.errors import BadInput
from diagnoser.observability.tracing import TraceStep, diagnosis_span_id, root_span_id, trace_id
from diagnoser.worker.outbox import subject

KEY = AttemptKey("j", 1)


def test_ids_follow_from_the_attempt_and_the_diagnosis() -> None:
    """The same in each process and for ever, of the sizes that OpenTelemetry asks for, and another for each."""
    assert trace_id(KEY) == trace_id(AttemptKey("j")) == 0x2C689E3CFD25E1C2735E3FA90E836DD2
    assert len({trace_id(KEY), trace_id(AttemptKey("j", 2)), trace_id(AttemptKey("j1", 1))}) == 3
    assert 0 < trace_id(KEY) < 1 << 128
    assert 0 < root_span_id(KEY) < 1 << 64 and 0 < diagnosis_span_id("01") < 1 << 64
    assert root_span_id(KEY) != trace_id(KEY) >> 64


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (MessageKind.ALERT, {"job": "j", "attempt": 2, "diagnosis": "d"}, (AttemptKey("j", 2), "d")),
        (MessageKind.ALERT, {"job": "", "attempt": 0, "diagnosis": ""}, None),
        (MessageKind.RECOVERY, {"data": {"job": "j", "attempt": 1, "diagnosis": {"id": "d"}}}, (KEY, "d")),
        (MessageKind.RECOVERY, {"data": {"job": "j"}}, None),
        (MessageKind.ANSWER, {"text": "done"}, None),
        (MessageKind.ANSWER, [], None),
    ],
)
def test_whom_a_message_is_about(kind: MessageKind, body: object, expected: object) -> None:
    """Its body tells; what is about no attempt belongs to no trace."""
    assert subject(OutboxMessage("k", kind, "slack", orjson.dumps(body), 0.0, 1.0)) == expected


def test_traces_are_off_by_default() -> None:
    """And on with either variable, of which ours wins."""
    assert open_traces(load({}), time.time) is None
    standard = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://standard:4318"}
    assert load(standard).otlp_endpoint == "http://standard:4318"
    assert load(standard | {"DIAGNOSER_OTLP_ENDPOINT": "http://ours:4318"}).otlp_endpoint == "http://ours:4318"


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http://", "http://[::1", "x"])
def test_what_is_no_address_stops_the_start(endpoint: str) -> None:
    """With the name of the setting."""
    with pytest.raises(BadInput, match="DIAGNOSER_OTLP_ENDPOINT"):
        open_traces(load({"DIAGNOSER_OTLP_ENDPOINT": endpoint}), time.time)


def test_a_missing_package_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is named."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(BadInput, match=r"diagnoser\[otel\]"):
        open_traces(load({"DIAGNOSER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}), time.time)


def test_of_what_repeats_one_span_a_minute_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each attempt: a thousand ranks that fail fill no trace, and no verdict is left out."""
    otlp = pytest.importorskip("diagnoser.adapters.otlp", reason="no OpenTelemetry SDK: install diagnoser[otel]")
    spans: list[Any] = []
    monkeypatch.setattr(otlp, "BatchSpanProcessor", lambda _: SimpleNamespace(on_end=spans.append))
    now = 1000.0
    traces = otlp.OtlpTraces("http://127.0.0.1:9", "1", "all", lambda: now)
    for _ in range(1000):
        traces.note(TraceStep.INGEST, KEY, now)
        traces.note(TraceStep.DELIVER, KEY, now, diagnosis="d", error="refused")
    traces.note(TraceStep.INGEST, AttemptKey("other"), now)
    now += otlp.REPEATED_SECONDS
    traces.note(TraceStep.INGEST, KEY, now)
    assert sum(span.name == "ingest" for span in spans) == 3
    assert sum(span.name == "deliver" and not span.status.is_ok for span in spans) == 1000
