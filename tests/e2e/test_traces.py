"""Traces, as a receiver of OTLP over HTTP gets them."""

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.e2e.service import (
    DEMO_LOG,
    SECRET,
    diagnosis_of,
    node_fault,
    receiver,
    send,
    service,
    until,
)
from tests.ports import free_port
from tests.receiver import Handler, Receiver, running

LINES = DEMO_LOG.read_bytes().splitlines(keepends=True)
HAS_SDK = importlib.util.find_spec("opentelemetry.exporter") is not None
pytestmark = pytest.mark.skipif(not HAS_SDK, reason="no OpenTelemetry SDK: install diagnoser[otel]")


class Traces(Handler):
    """A receiver of OTLP, which reads with the protocol's own classes."""

    def answer(self, status: int, headers: dict[str, str]) -> None:
        found = {"/v1/traces": 200}.get(self.path, 404)
        super().answer(found, {"content-type": "application/x-protobuf"})


def spans_in(receiver: Receiver) -> list[dict[str, Any]]:
    """Each with its attributes, and those of its process, in the order of their begin."""
    found = []
    for headers, body in list(receiver.requests):
        assert headers["content-type"] == "application/x-protobuf"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in (one for scope in resource.scope_spans for one in scope.spans):
                found.append(
                    {
                        "trace": span.trace_id,
                        "id": span.span_id,
                        "parent": span.parent_span_id,
                        "name": span.name,
                        "times": (span.start_time_unix_nano, span.end_time_unix_nano),
                        "about": _values(span.attributes),
                        "process": _values(resource.resource.attributes),
                    }
                )
    return sorted(found, key=lambda span: span["times"])


def _values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in attributes}


def test_from_the_line_to_the_effect_is_one_trace(tmp_path: Path) -> None:
    """Of an attempt whose lines two processes take, that a third diagnoses, whose plan the webhook is told of and an
    agent carries out, with a restart in between. No text of its log is in it; another attempt is another trace."""
    collector = Receiver(Traces)
    with receiver() as hook, running(collector):
        settings = {
            "DIAGNOSER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "DIAGNOSER_WORKERS": "2",
            "DIAGNOSER_WEBHOOK_URL": hook.url,
            "DIAGNOSER_WEBHOOK_SECRET": SECRET,
            "DIAGNOSER_ALLOW_PRIVATE_TARGETS": "true",
            "DIAGNOSER_RECOVERY_MODE": "act",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=lab",
        }
        with service(tmp_path, **settings) as started:
            client = started.start()
            client.post("/api/v1/jobs", json={"id": "j", "nodes": ["gpu-011", "gpu-017"]}).raise_for_status()
            send(client, LINES, 0, len(LINES))
            node_fault(client, "gpu-017")
            client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
            diagnosis = diagnosis_of(client, lines=len(LINES))
            until(lambda: "deliver" in {span["name"] for span in spans_in(collector)}, "the span of the webhook")
            client.post("/api/v1/jobs/other/events", json={"kind": "cancelled"}).raise_for_status()
            assert hook.requests and started.stop() == 0
            client = started.start()
            claimed = client.post("/api/v1/plans/claim", json={"executor": "slurm-1"}).json()
            report = {"token": claimed["token"], "state": "reached", "drained": ["gpu-017"]}
            client.post(f"/api/v1/plans/{claimed['plan']['id']}/report", json=report).raise_for_status()
            assert started.stop() == 0
        spans = spans_in(collector)
    mine = [span for span in spans if span["about"]["diagnoser.job"] == "j"]
    others = [span["trace"] for span in spans if span["about"]["diagnoser.job"] == "other"]
    assert len({span["trace"] for span in mine}) == 1 and mine[0]["trace"] not in others
    names = [span["name"] for span in mine]
    assert {*names} == {"attempt", "ingest", "event", "diagnose", "plan", "deliver", "carry_out"}
    assert names.count("attempt") == 1
    root = next(span for span in mine if span["name"] == "attempt")
    assert diagnosis["id"] in {span["about"].get("diagnoser.diagnosis") for span in mine}
    parents = {span["name"]: span["parent"] for span in mine}
    assert parents["attempt"] == b""
    assert parents["ingest"] == parents["event"] == parents["diagnose"] == root["id"]
    assert parents["plan"] == parents["deliver"] == parents["carry_out"]
    assert parents["plan"] in {span["id"] for span in mine if span["name"] == "diagnose"}
    assert all(start <= end for start, end in (span["times"] for span in mine))
    assert {span["process"]["diagnoser.role"] for span in mine} == {"api", "worker"}
    assert {span["process"]["service.name"] for span in mine} == {"diagnoser"}
    assert {span["process"]["deployment.environment.name"] for span in mine} == {"lab"}
    assert all(b"NVRM" not in body and b"ECC error" not in body for _, body in collector.requests)


def test_a_receiver_that_is_away_delays_nothing(tmp_path: Path) -> None:
    """Verdicts come as they do, the service ends as it does, and its log says what is lost, once."""
    settings = {
        "DIAGNOSER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "DIAGNOSER_LOG_FORMAT": "json",
    }
    with service(tmp_path, **settings) as started:
        client = started.start()
        send(client, LINES, 0, len(LINES))
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        assert diagnosis_of(client)["type"] == "ecc_error"
        until(lambda: "traces_not_sent" in started.log(), "a word about it")
        assert started.stop() == 0
    told = [json.loads(line) for line in started.log().splitlines() if line.startswith("{")]
    assert not [line for line in started.log().splitlines() if not line.startswith("{")]
    assert 1 <= sum(one["event"] == "traces_not_sent" for one in told) <= 2
