"""How long requests take, by the template of their route: no path that a client makes up becomes a series."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from prometheus_client import Counter, Histogram
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diagnoser.observability.metrics import Metrics

UNKNOWN = "unknown"
"""The route of what no route takes."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NOT_TIMED = frozenset(
    {"/api/v1/plans/claim", "/api/v1/evidence-requests/claim", "/livez", "/readyz", "/metrics", "/static"}
)
"""Routes that answer when there is news, which says nothing about the service, and those that nobody waits for."""


class RequestMetrics:
    """Measures to the begin of the answer, so that a stream counts for what its client waited. Plain ASGI."""

    def __init__(self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = perf_counter) -> None:
        self.app = app
        self.metrics = metrics
        self.clock = clock
        self._plain: dict[Any, str] = {}
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram | None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, seconds = self.clock(), 500, 0.0

        async def watched(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], self.clock() - began
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            self._note(scope, status // 100, seconds or self.clock() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Looking up a series by its labels costs more than counting in it."""
        method = scope["method"]
        if method not in METHODS:
            method = "OTHER"
        key = method, self._template(scope), status
        series = self._series.get(key)
        if series is None:
            method, route, _ = key
            counter = self.metrics.requests.labels(method, route, f"{status}xx")
            histogram = None if route in NOT_TIMED else self.metrics.request_seconds.labels(method, route)
            series = self._series[key] = counter, histogram
        answered, duration = series
        answered.inc()
        if duration:
            duration.observe(seconds)

    def _template(self, scope: Scope) -> str:
        """The route as it is written in the code. Plain routes and mounts leave no more of themselves than what they
        call."""
        route = scope.get("route")
        if isinstance(route, Route):
            return route.path
        endpoint = scope.get("endpoint")
        if endpoint is None:
            return UNKNOWN
        if not self._plain:
            for plain in reversed(scope["app"].routes):
                if isinstance(plain, Route | Mount):
                    self._plain[plain.endpoint if isinstance(plain, Route) else plain.app] = plain.path
        return self._plain.get(endpoint, UNKNOWN)
