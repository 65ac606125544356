"""Prometheus' Alertmanager: alerts in its words (API v2), so that a site keeps its routing, silences and on-call there.

What ends an incident resolves its alerts there.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson

from diagnoser.model.alerts import Alert, AlertKind, AlertThread
from diagnoser.model.record_json import fields_of
from diagnoser.notifications.text import body
from diagnoser.ports import Clock

if TYPE_CHECKING:
    import httpx

TIMEOUT = 10.0
FIRING_SECONDS = 24 * 3600.0
"""An alert that nobody resolves ends by itself."""
_NAMES = {
    AlertKind.FAILURE: "TrainingFailure",
    AlertKind.DECISION: "RecoveryNeedsDecision",
    AlertKind.ESCALATION: "IncidentEscalated",
    AlertKind.BLIND_SPOT: "DiagnoserBlindSpot",
    AlertKind.METRIC: "TrainingMetric",
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
        **fields_of(alert, ("cluster", "category", "type", "node")),
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


class Alertmanager:
    """An AlertChannel. url: of Alertmanager itself, such as ``http://alertmanager:9093``: a private address as a rule,
    so that it may be one. Repeating, silencing and grouping are its own: nothing is held back from it."""

    threaded = True
    resolves = True

    def __init__(self, url: str, client: "httpx.AsyncClient", clock: Clock) -> None:
        from diagnoser.adapters.http import poster  # loads for a while

        self._poster = poster(url.rstrip("/") + "/api/v2/alerts", client, clock, TIMEOUT, allow_private=True)
        self._clock = clock

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """The handle is a JSON array: the labels of each alert that fires."""
        fires = orjson.loads(thread.handle) if thread and thread.handle else []
        if alert.kind is AlertKind.RECOVERED:
            if fires:
                await self._poster.post(resolved(fires, self._clock()), {})
            return "[]"
        await self._poster.post(firing(alert, self._clock()), {})
        labels = labels_of(alert)
        return orjson.dumps([*(other for other in fires if other != labels), labels]).decode()
