"""Alerts in the words of Prometheus' Alertmanager (API v2), so that a site keeps its routing, silences and on-call
there."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import orjson

from diagnoser.model.alerts import Alert, AlertKind
from diagnoser.notifications.text import body

FIRING_SECONDS = 24 * 3600.0
"""An alert that nobody resolves ends by itself."""
_NAMES = {
    AlertKind.FAILURE: "TrainingFailure",
    AlertKind.DECISION: "RecoveryNeedsDecision",
    AlertKind.BLIND_SPOT: "DiagnoserBlindSpot",
    AlertKind.SCORE_DROP: "EvaluationScoreDropped",
}

Labels = Mapping[str, str]


def labels_of(alert: Alert) -> Labels:
    """What identifies an alert, and what a site routes by: nothing that differs from job to job of an incident."""
    labels = {
        "alertname": _NAMES[alert.kind],
        "service": "diagnoser",
        "incident": alert.incident,
        "severity": alert.severity.value,
        "cluster": alert.cluster,
        "category": alert.category,
        "type": alert.type,
        "node": alert.node,
    }
    return {name: value for name, value in labels.items() if value}


def firing(alert: Alert, now: float) -> bytes:
    """Body of ``POST /api/v2/alerts``."""
    event = {
        "labels": labels_of(alert),
        "annotations": {"summary": alert.title, "description": body(alert), "job": alert.job},
        "startsAt": _time(now),
        "endsAt": _time(now + FIRING_SECONDS),
    }
    return orjson.dumps([event | ({"generatorURL": alert.link} if alert.link else {})])


def resolved(alerts: Sequence[Labels], now: float) -> bytes:
    """The same for alerts that have ended: equal labels name the same alert."""
    return orjson.dumps([{"labels": labels, "endsAt": _time(now)} for labels in alerts])


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
