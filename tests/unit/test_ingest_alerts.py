"""Alertmanager's webhook: which node an alert is about, and what becomes a line of its log."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from diagnoser.compress import to_bytes
from diagnoser.diagnosis.node_faults import find_faults, proofs
from diagnoser.diagnosis.node_logs import kept_lines
from diagnoser.ingest.alerts import LINE_LENGTH, WebhookMessage, node_alerts, node_lines
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.model import NodeAlert, Provenance
from tests.rule_files import ANALYZER

NOW = 1_790_000_000.0
XID = {
    "status": "firing",
    "labels": {"alertname": "GpuXid", "Hostname": "gpu-017", "gpu": "3", "severity": "critical"},
    "annotations": {"summary": "GPU 3 reports Xid 79"},
    "startsAt": "2026-09-21T14:13:10.123456789Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://prometheus/graph",
    "fingerprint": "d52b6a1f8a1c2c2e",
}


def message(*alerts: dict[str, Any], **fields: Any) -> WebhookMessage:
    return WebhookMessage.model_validate({"version": "4", "groupKey": "{}", "alerts": list(alerts)} | fields)


def told(*alerts: dict[str, Any], cluster: str = "") -> tuple[list[NodeAlert], int]:
    return node_alerts(message(*alerts), DEFAULT, cluster=cluster, by="am", received=NOW)


def labelled(**labels: str) -> dict[str, Any]:
    return XID | {"labels": {"alertname": "A", **labels}}


def test_an_alert_about_a_node() -> None:
    """With its node, its times, what it says, and who told it."""
    (alert,), left_out = told(XID)
    assert (alert.cluster, alert.node, alert.name, alert.severity) == ("", "gpu-017", "GpuXid", "critical")
    assert (alert.started, alert.ended, alert.received, alert.by) == (1_789_999_990.123456, None, NOW, "am")
    assert (alert.summary, alert.fingerprint, left_out) == ("GPU 3 reports Xid 79", "d52b6a1f8a1c2c2e", 0)


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"node": "gpu-1", "instance": "10.0.0.1:8080"}, "gpu-1"),
        ({"kubernetes_node": "x", "nodename": "gpu-2"}, "gpu-2"),
        ({"instance": "gpu-3:9400"}, "gpu-3"),
        ({"instance": "gpu-4.lab"}, "gpu-4.lab"),
        ({"instance": "10.0.0.1:9400"}, ""),
        ({"instance": "[fe80::1]:9400"}, ""),
        ({"job": "prometheus"}, ""),
        ({"node": "gpu-1", "service": "diagnoser"}, ""),
        ({"node": "a b"}, ""),
    ],
)
def test_which_node_it_is_about(labels: dict[str, str], node: str) -> None:
    """By the names that shippers use, else the host that is scraped; never an address, and never what this service
    pushed itself, which would confirm what it was made from."""
    alerts, left_out = told(labelled(**labels))
    assert ([alert.node for alert in alerts], left_out) == (([node], 0) if node else ([], 1))


def test_the_cluster_is_that_of_the_credential() -> None:
    """Only where that is of none, the label says it."""
    assert told(labelled(node="n", cluster="west"))[0][0].cluster == "west"
    assert told(labelled(node="n", cluster="west"), cluster="east")[0][0].cluster == "east"


def test_an_end_is_taken_and_bounded() -> None:
    """A resolved alert ends not before it began, and not in the future."""
    (alert,), _ = told(XID | {"status": "resolved", "endsAt": "2026-09-21T14:13:15Z"})
    assert alert.ended == 1_789_999_995.0
    (early,), _ = told(XID | {"status": "resolved"})
    assert early.ended == early.started
    (late,), _ = told(
        XID | {"status": "resolved", "endsAt": "2099-01-01T00:00:00Z", "startsAt": "2098-01-01T00:00:00Z"}
    )
    assert (late.started, late.ended) == (NOW, NOW)


@pytest.mark.parametrize(
    "fields", [{"version": "3"}, {"alerts": "none"}, {"alerts": [{"labels": {}}]}, {"alerts": [XID | {"status": "?"}]}]
)
def test_what_is_not_the_format_is_refused(fields: dict[str, Any]) -> None:
    """A version of the format that is not known, or no alerts."""
    with pytest.raises(ValidationError):
        message(XID, **fields)


def test_hostile_labels_are_bounded_and_stay_on_one_line() -> None:
    """Whatever a label holds, it is one line of the node's log, and no longer than a line."""
    (alert,), _ = told(labelled(node="n1", text="a\nkernel: NVRM: Xid 79\x1b[31m" + "x" * 10_000, **{"k" * 900: "v"}))
    ((block,),) = node_lines([alert]).blocks.values()
    assert block.data.count(b"\n") == 1
    assert len(block.data) <= LINE_LENGTH + 1
    assert b"\x1b" not in block.data


def test_a_line_is_dated_by_its_alert_and_is_the_nodes_own() -> None:
    """In the log of the node under its short name, as monitoring's word."""
    (alert,), _ = told(XID, cluster="east")
    batch = node_lines([alert])
    ((target, (block,)),) = batch.blocks.items()
    assert (target.job, target.attempt) == ("~node/east/gpu-017", None)
    assert block.data.decode() == (
        'Alertmanager: GpuXid (critical): GPU 3 reports Xid 79 {Hostname="gpu-017", gpu="3"}\n'
    )
    assert (block.times, block.stream.provenance) == ((alert.started,), Provenance.NODE)


def test_an_alert_is_a_fault_of_its_node_and_proves_nothing() -> None:
    """Rules read it as they read a kernel log; whether the node goes is for the node itself to prove."""
    (alert,), _ = told(XID)
    ((block,),) = node_lines([alert]).blocks.values()
    made = ANALYZER.compressor()
    made.feed(replace(block, first=1))
    lines = kept_lines("gpu-017", [to_bytes(made.take())])
    knowledge = ANALYZER.knowledge
    (fault,) = find_faults(lines, ["gpu-017"], knowledge)
    assert (fault.node, fault.type, fault.line.time) == ("gpu-017", "gpu_lost", alert.started)
    assert proofs([fault], knowledge) == ()
