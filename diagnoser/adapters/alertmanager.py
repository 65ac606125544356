"""Alerts pushed to Prometheus' Alertmanager. What ends an incident resolves its alerts there."""

import httpx
import orjson

from diagnoser.adapters.http import poster
from diagnoser.model.alerts import Alert, AlertKind, AlertThread
from diagnoser.notifications import alertmanager
from diagnoser.ports import Clock

TIMEOUT = 10.0


class Alertmanager:
    """An AlertChannel. url: of Alertmanager itself, such as ``http://alertmanager:9093``: a private address as a rule,
    so that it may be one. Repeating, silencing and grouping are its own: nothing is held back from it."""

    threaded = True

    def __init__(self, url: str, client: httpx.AsyncClient, clock: Clock, *, timeout: float = TIMEOUT) -> None:
        self._poster = poster(url.rstrip("/") + "/api/v2/alerts", client, clock, timeout, allow_private=True)
        self._clock = clock

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """The handle is a JSON array: the labels of each alert that fires."""
        fires = orjson.loads(thread.handle) if thread and thread.handle else []
        if alert.kind is AlertKind.RECOVERED:
            if fires:
                await self._poster.post(alertmanager.resolved(fires, self._clock()), {})
            return "[]"
        await self._poster.post(alertmanager.firing(alert, self._clock()), {})
        labels = alertmanager.labels_of(alert)
        return orjson.dumps([*(other for other in fires if other != labels), labels]).decode()
