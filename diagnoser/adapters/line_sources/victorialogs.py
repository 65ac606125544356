"""VictoriaLogs' query (``/select/logsql/query``): one JSON object a line, whose fields are strings."""

from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

from diagnoser.adapters.line_sources.store_client import StoreClient
from diagnoser.model.errors import Unavailable
from diagnoser.ports import SourceLine

PATH = "/select/logsql/query"
_NOT_LABELS = frozenset({"_time", "_msg", "_stream", "_stream_id"})
_BILLION = 1_000_000_000


async def read_victorialogs(client: StoreClient, query: str, start: int, end: int, limit: int) -> list[SourceLine]:
    """query: LogsQL that selects lines, such as ``{job!=""}``."""
    times: dict[str, str | int] = {"start": _written(start), "end": _written(end)}
    answer = await client.get(PATH, {"query": query, "limit": limit, **times})
    try:
        return [_line(orjson.loads(row)) for row in answer.split(b"\n") if row]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"not an answer of VictoriaLogs: {error!r}") from None


def _line(fields: Mapping[str, str]) -> SourceLine:
    labels = tuple((name, value.encode()) for name, value in fields.items() if name not in _NOT_LABELS)
    return SourceLine(_read(fields["_time"]), fields.get("_msg", "").encode(), labels)


def _read(time: str) -> int:
    """RFC 3339 with up to nine digits behind the point, of which ``datetime`` reads six."""
    seconds, point, rest = time.partition(".")
    digits = rest.rstrip("Z")
    if not point:
        seconds = seconds.rstrip("Z")
    whole = int(datetime.fromisoformat(seconds).replace(tzinfo=UTC).timestamp())
    return whole * _BILLION + int(digits.ljust(9, "0")[:9])


def _written(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, _BILLION)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
