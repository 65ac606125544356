"""Reads series from Prometheus, or from a server that answers the same questions (Thanos, Mimir, VictoriaMetrics)."""

from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from diagnoser.adapters.http import bounded
from diagnoser.model.errors import TooLarge, Unavailable
from diagnoser.rules.node_metrics import STEP, MetricSeries

ANSWER_BYTES = 4 << 20
"""The largest answer that is read."""
SERIES = 2_000
"""Series of an answer that are read."""


class _Series(BaseModel):
    metric: dict[str, str]
    values: list[tuple[float, float]]


class _Data(BaseModel):
    result: list[_Series]


class _Answer(BaseModel):
    data: _Data


_ANSWER = TypeAdapter(_Answer)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """url: without the path of the API. token: a bearer token, "" for none. timeout: seconds for one answer."""

    url: str
    token: str
    client: httpx.AsyncClient
    timeout: float

    async def series(self, expression: str, since: float, until: float) -> Sequence[MetricSeries]:
        """Ask for a range (https://prometheus.io/docs/prometheus/latest/querying/api/#range-queries). Raises
        Unavailable, which never holds the address."""
        form = {"query": expression, "start": str(since), "end": str(until), "step": f"{STEP:.0f}"}
        form["timeout"] = f"{self.timeout:.0f}s"
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        address = f"{self.url.rstrip('/')}/api/v1/query_range"
        try:
            async with self.client.stream(
                "POST", address, data=form, headers=headers, timeout=self.timeout, follow_redirects=False
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise Unavailable(f"Prometheus answers {response.status_code}")
                body = await bounded(response, ANSWER_BYTES)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"Prometheus: {type(error).__name__}") from None
        except TooLarge as error:
            raise Unavailable(f"Prometheus: {error}") from None
        try:
            answer = _ANSWER.validate_json(body)
        except ValidationError:
            raise Unavailable("Prometheus answers something else than series") from None
        return [MetricSeries(series.metric, series.values) for series in answer.data.result[:SERIES]]
