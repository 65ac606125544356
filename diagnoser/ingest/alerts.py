"""What Alertmanager tells a webhook of nodes, in its format version 4: alerts that are shown, and lines of node logs.

Pure. Which node an alert is about say its labels, by the same names as those of shippers (``mapping``); where they name
none, the host in ``instance``. Alerts about nothing of ours, and those that this service pushed itself, are left out.
"""

import ipaddress
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from diagnoser.ingest.batch import Batch, RecordDefaults, Target
from diagnoser.ingest.mapping import FieldMapping, value_of
from diagnoser.model import ALERTS, LineBlock, NodeAlert, Provenance, Stream, node_log_id
from diagnoser.model.lines import printable

VERSION = "4"
ALERTS_LIMIT = 10_000
LABELS_KEPT = 40
NAME_LENGTH, TEXT_LENGTH, LINE_LENGTH = 200, 500, 2_000
NODE_LENGTH = 253
OURS = ("service", "diagnoser")
"""The label of alerts that this service pushes (``channels.alertmanager``): fed back, they would confirm what they
were made from."""
SHOWN_APART = frozenset({"alertname", "severity"})


def _text(value: object) -> object:
    if isinstance(value, str):
        return value
    raise ValueError("a time is text")


Written = Annotated[datetime, BeforeValidator(_text)]
"""A time as RFC 3339 writes it; a number is none."""


class WebhookAlert(BaseModel):
    """One alert. endsAt: of one that fires, when it will count as resolved."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    status: str = Field(pattern="^(?:firing|resolved)$")
    labels: dict[str, str] = Field(max_length=1_000)
    annotations: dict[str, str] = Field(default_factory=dict, max_length=1_000)
    startsAt: Written  # noqa: N815 - as Alertmanager spells it
    endsAt: Written | None = None  # noqa: N815
    fingerprint: str = Field("", max_length=NAME_LENGTH)


class WebhookMessage(BaseModel):
    """What Alertmanager posts (https://prometheus.io/docs/alerting/latest/configuration/#webhook_config)."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    version: str = Field(pattern=f"^{VERSION}$", description="Version of the format")
    alerts: list[WebhookAlert] = Field(max_length=ALERTS_LIMIT)


def node_alerts(
    message: WebhookMessage, mapping: FieldMapping, *, cluster: str, by: str, received: float
) -> tuple[list[NodeAlert], int]:
    """The alerts about nodes, and how many others there were. cluster: of all of them; "" where their labels say it."""
    told = list[NodeAlert]()
    for alert in message.alerts:
        if found := _node_alert(alert, mapping, cluster, by, received):
            told.append(found)
    return told, len(message.alerts) - len(told)


def node_lines(alerts: Iterable[NodeAlert]) -> Batch:
    """A line for each alert, in the log of its node and dated when it began to fire."""
    batch = Batch()
    for alert in sorted(alerts, key=lambda alert: (alert.cluster, alert.node, alert.started)):
        stream = Stream(ALERTS, alert.node, -1, Provenance.NODE)
        block = LineBlock(stream, f"{_line(alert)}\n".encode(), 0, (alert.started,), alert.received)
        batch.add(Target(node_log_id(alert.cluster, alert.node), None), block)
    return batch


def _node_alert(alert: WebhookAlert, mapping: FieldMapping, cluster: str, by: str, received: float) -> NodeAlert | None:
    """None for an alert of ours, and for one that names no node."""
    name, value = OURS
    if alert.labels.get(name) == value:
        return None
    labels = {_clean(key, NAME_LENGTH): _clean(text, TEXT_LENGTH) for key, text in sorted(alert.labels.items())}
    decided = mapping.trace(tuple(labels.items()), RecordDefaults())
    node = value_of(decided.get("node")) or _host(labels.get("instance", ""))
    if not _is_node_name(node):
        return None
    started, ended = _span(alert, received)
    summary = alert.annotations.get("summary") or alert.annotations.get("description") or ""
    return NodeAlert(
        cluster=cluster or value_of(decided.get("cluster")),
        node=node,
        fingerprint=_clean(alert.fingerprint, NAME_LENGTH) or labels.get("alertname", ""),
        name=labels.get("alertname", "") or "alert",
        started=started,
        received=received,
        ended=ended,
        severity=labels.get("severity", ""),
        summary=_clean(summary, TEXT_LENGTH),
        labels=dict(list(labels.items())[:LABELS_KEPT]),
        by=by,
    )


def _is_node_name(name: str) -> bool:
    return 0 < len(name) <= NODE_LENGTH and not any(map(str.isspace, name))


def _span(alert: WebhookAlert, received: float) -> tuple[float, float | None]:
    """(when it began to fire, when it ended: None while it fires). Nothing of it lies after ``received``."""
    started = min(alert.startsAt.timestamp(), received)
    ended = alert.endsAt.timestamp() if alert.endsAt else received
    if alert.status != "resolved":
        return max(started, 0.0), None
    return max(started, 0.0), max(started, min(ended, received))


def _line(alert: NodeAlert) -> str:
    """``Alertmanager: GpuXid (critical): GPU 3 reports Xid 79 {gpu="3", xid="79"}``."""
    told = alert.name
    if alert.severity:
        told += f" ({alert.severity})"
    if alert.summary:
        told += f": {alert.summary}"
    rest = ", ".join(f'{name}="{value}"' for name, value in alert.labels.items() if name not in SHOWN_APART)
    return f"Alertmanager: {told} {{{rest}}}"[:LINE_LENGTH]


def _host(instance: str) -> str:
    """``gpu-017:9400`` -> ``gpu-017``; "" for an address, which names no node."""
    host = instance.rpartition(":")[0] or instance
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host
    return ""


def _clean(text: str, length: int) -> str:
    return printable(text)[:length].strip()
