"""Loki's range query (``/loki/api/v1/query_range``). Structured metadata comes among the labels of a stream."""

from typing import Any

import orjson

from diagnoser.adapters.line_sources.store_client import StoreClient
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.ports import SourceLine

PATH = "/loki/api/v1/query_range"


async def read_loki(client: StoreClient, query: str, start: int, end: int, limit: int) -> list[SourceLine]:
    """query: LogQL that selects lines, such as ``{job=~".+"}``."""
    asked: dict[str, str | int] = {"query": query, "start": start, "end": end, "limit": limit, "direction": "forward"}
    answer = await client.get(PATH, asked)
    try:
        data = orjson.loads(answer)["data"]
        is_lines = data["resultType"] == "streams"
        lines = _lines(data["result"]) if is_lines else []
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"not an answer of Loki: {error!r}") from None
    if not is_lines:
        raise BadInput(f"the query selects no lines: {query}")
    return lines


def _lines(streams: list[Any]) -> list[SourceLine]:
    lines = []
    for stream in streams:
        labels = tuple((name, value.encode()) for name, value in stream["stream"].items())
        for stamp, text, *_ in stream["values"]:
            lines.append(SourceLine(int(stamp), text.encode(), labels))
    return lines
