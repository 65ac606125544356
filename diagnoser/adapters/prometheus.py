"""Reads series from Prometheus, or from a server that answers the same questions (Thanos, Mimir, VictoriaMetrics)."""

from collections.abc import Sequence

import httpx
from pydantic import BaseModel, ValidationError

from diagnoser.adapters.http import bounded
from diagnoser.model.errors import TooLarge, Unavailable
from diagnoser.rules.node_metrics import STEP, MetricSeries

ANSWER_SECONDS = 5.0
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


async def read_series(
    client: httpx.AsyncClient, url: str, token: str, expression: str, since: float, until: float
) -> Sequence[MetricSeries]:
    """Ask for a range (https://prometheus.io/docs/prometheus/latest/querying/api/#range-queries). url: without the path
    of the API. token: a bearer token, "" for none. Raises Unavailable, which never holds the address."""
    form = {"query": expression, "start": str(since), "end": str(until), "step": f"{STEP:.0f}"}
    form["timeout"] = f"{ANSWER_SECONDS:.0f}s"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    address = f"{url.rstrip('/')}/api/v1/query_range"
    try:
        async with client.stream(
            "POST", address, data=form, headers=headers, timeout=ANSWER_SECONDS, follow_redirects=False
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise Unavailable(f"Prometheus answers {response.status_code}")
            body = await bounded(response, ANSWER_BYTES)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"Prometheus: {type(error).__name__}") from None
    except TooLarge as error:
        raise Unavailable(f"Prometheus: {error}") from None
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError:
        raise Unavailable("Prometheus answers something else than series") from None
    return [MetricSeries(series.metric, series.values) for series in answer.data.result[:SERIES]]
