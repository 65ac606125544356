"""JSON records, one per line (`application/x-ndjson`) or in an array: what most log shippers send.

A record is a string or an object. The line is its ``message`` (also: log, line, msg, text, body); job, attempt, node
(also: host, hostname), rank, source (also: stream), cluster and time (also: timestamp, ts, @timestamp) override the
query.
A record that cannot be used is counted and reported; the others are kept.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from diagnoser.ingest.batch import (
    ERRORS_TOLD,
    LINES_LIMIT,
    RECORDS_LIMIT,
    Batch,
    RecordDefaults,
    Target,
    check_count,
    target,
)
from diagnoser.model import JOB_ID, LineBlock, Stream
from diagnoser.model.errors import BadInput, Undecodable

MESSAGE = ("message", "log", "line", "msg", "text", "body")
NODE = ("node", "host", "hostname")
SOURCE = ("source", "stream")
TIME = ("time", "timestamp", "ts", "@timestamp")
PARTS_LIMIT = 20 * RECORDS_LIMIT
NAME_LENGTH = 253  # of a host name
YEAR_2000, YEAR_2100 = 946_684_800.0, 4_102_444_800.0
_PLACE = ("job", "attempt", "rank", "cluster", *NODE, *SOURCE)
_TICKS = (1.0, 1e3, 1e6, 1e9)  # numbers count seconds, milli-, micro- or nanoseconds: the size of the number tells


class _Reject(Exception):
    """This record cannot be used; the message says why."""


@dataclass(slots=True)
class _Lines:
    """Lines of one stream on their way to a block."""

    lines: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, text: str, time: float) -> None:
        if "\n" not in text:
            self.lines.append(text.encode())
            self.times.append(time)
            return
        lines = text.removesuffix("\n").encode().split(b"\n")
        self.lines += lines
        self.times += [time] * len(lines)

    def block(self, stream: Stream, first: int, received: float) -> LineBlock:
        times = None if all(map(math.isnan, self.times)) else tuple(self.times)
        return LineBlock(stream, b"\n".join(self.lines), first, times, received)


class _Groups:
    """The lines of each stream. Records that name their place in the same words are read once for all."""

    def __init__(self, defaults: RecordDefaults) -> None:
        self.lines: dict[tuple[Target, Stream], _Lines] = {}
        self._defaults = defaults
        self._places: dict[tuple[Any, ...], _Lines] = {}

    def of(self, record: dict[str, Any]) -> _Lines:
        """Raises _Reject."""
        place = tuple(map(record.get, _PLACE))
        try:
            return self._places[place]
        except KeyError:
            lines = self._places[place] = self.at(*_place(record, self._defaults))
            return lines
        except TypeError:  # a value that is no name: the place tells which
            return self.at(*_place(record, self._defaults))

    def at(self, destination: Target, stream: Stream) -> _Lines:
        return self.lines.setdefault((destination, stream), _Lines())


def parse_ndjson(body: bytes, defaults: RecordDefaults, received: float) -> Batch:
    """One record per line; blank lines are skipped. Raises BadInput when an offset cannot apply, TooLarge for too
    many records or lines in them.
    """
    check_count(body.count(b"\n"), RECORDS_LIMIT, "records")
    _check_parts(body)
    rows = ((number, row) for number, row in enumerate(body.split(b"\n"), 1) if row.strip())
    return _collect(((f"line {number}", row) for number, row in rows), defaults, received)


def parse_array(body: bytes, defaults: RecordDefaults, received: float) -> Batch:
    """A JSON array of records, or one record. Raises Undecodable when the body is not JSON, TooLarge for too many
    records or lines in them.
    """
    _check_parts(body)
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Undecodable(f"the body is not JSON: {error}") from None
    records = data if isinstance(data, list) else [data]
    check_count(len(records), RECORDS_LIMIT, "records")
    return _collect(((f"record {number}", record) for number, record in enumerate(records, 1)), defaults, received)


def _check_parts(body: bytes) -> None:
    """Before anything is built: two bytes of nested JSON become an object of sixty."""
    check_count(body.count(b"\\n"), LINES_LIMIT, "lines")
    check_count(body.count(b"{") + body.count(b"["), PARTS_LIMIT, "nested objects and arrays")


def _collect(rows: Iterable[tuple[str, Any]], defaults: RecordDefaults, received: float) -> Batch:
    batch, groups, odd_times = Batch(), _Groups(defaults), 0
    for label, row in rows:
        try:
            record = _record(row)
            text, time = _text(record), _time(record)
            lines = groups.of(record)
        except _Reject as reason:
            batch.rejected += 1
            if len(batch.errors) < ERRORS_TOLD:
                batch.errors.append(f"{label}: {reason}")
            if defaults.first is None:
                continue
            # The shipper counted this record as a line: an empty one keeps the numbers of those behind it.
            lines, text, time = groups.at(defaults.target, defaults.stream), "", math.nan
        if time == math.inf:
            odd_times, time = odd_times + 1, math.nan
        lines.add(text, time)
    if odd_times:
        batch.errors.append(f"{odd_times} records carry an unusable time; the time of arrival is used for them")
    if defaults.first is not None and len(groups.lines) > 1:
        raise BadInput("an offset needs all records of the request to be of one job, attempt, node, rank and source")
    for (destination, stream), lines in groups.lines.items():
        batch.add(destination, lines.block(stream, defaults.first or 0, received))
    return batch


def _text(record: dict[str, Any]) -> str:
    text = record.get("message")
    if text is None:
        text = _first(record, MESSAGE)
    if not isinstance(text, str):
        raise _Reject("no message: a record needs one of " + ", ".join(MESSAGE))
    return text


def _place(record: dict[str, Any], defaults: RecordDefaults) -> tuple[Target, Stream]:
    attempt = _whole(record.get("attempt"), "attempt", 1)
    rank = _whole(record.get("rank"), "rank", -1)
    source = _name(_first(record, SOURCE), "source", defaults.stream.source)
    node = _name(_first(record, NODE), "node", defaults.stream.node)
    stream = defaults.stream_of(source, node, defaults.stream.rank if rank is None else rank)
    return _target(record, defaults.attempt if attempt is None else attempt, stream, defaults), stream


def _target(record: dict[str, Any], attempt: int | None, stream: Stream, defaults: RecordDefaults) -> Target:
    job = defaults.job if record.get("job") is None else record["job"]
    if job and not (isinstance(job, str) and re.fullmatch(JOB_ID, job)):
        raise _Reject(f"not a job id: {str(job)[:40]!r}")
    destination = target(job or "", attempt, _name(record.get("cluster"), "cluster", defaults.cluster), stream)
    if not destination.job:
        raise _Reject(
            "no job: name it in the record or in the query (a node's own log needs source, node and an agent's token)"
        )
    return destination


def _record(row: Any) -> dict[str, Any]:
    if isinstance(row, bytes):
        try:
            row = orjson.loads(row)
        except orjson.JSONDecodeError as error:
            raise _Reject(f"not JSON: {error}") from None
    if isinstance(row, str):
        return {"message": row}
    if not isinstance(row, dict):
        raise _Reject("neither an object nor a string")
    return row


def _first(record: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if (value := record.get(name)) is not None:
            return value
    return None


def _name(value: Any, name: str, default: str) -> str:
    if value is None:
        return default
    text = str(value)
    if not text.isprintable() or len(text) > NAME_LENGTH:
        raise _Reject(f"{name} is not a name: {text[:40]!r}")
    return text


def _whole(value: Any, name: str, least: int) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise _Reject(f"{name} is not a whole number: {str(value)[:40]!r}") from None
    if not least <= number < 1 << 31:
        raise _Reject(f"{name} is out of range: {number}")
    return number


def _time(record: dict[str, Any]) -> float:
    """Seconds since the epoch; NaN when absent, infinity when unusable."""
    value = record.get("time")
    if value is None and (value := _first(record, TIME)) is None:
        return math.nan
    if isinstance(value, str):
        value = _iso(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        for ticks in _TICKS:
            if YEAR_2000 <= value / ticks < YEAR_2100:
                return float(value / ticks)
    return math.inf


def _iso(text: str) -> float | str:
    """ISO 8601 or a number in a string; a time without a zone is UTC."""
    try:
        if text[4:5] != "-":
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
