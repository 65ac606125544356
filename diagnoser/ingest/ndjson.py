"""JSON records, one per line (`application/x-ndjson`) or in an array: what most log shippers send.

A record is a string or an object. The line is its ``message`` (also: log, line, msg, text, body); job, attempt, node
(also: host, hostname), rank, source (also: stream), cluster and time (also: timestamp, ts, @timestamp, date) override
the query. What a shipper adds about the place, nested or not (``kubernetes.pod_name``), is read by the mapping.
A record that cannot be used is counted and reported; the others are kept.
"""

import math
from collections.abc import Iterable
from typing import Any

import orjson

from diagnoser.ingest.batch import RECORDS_LIMIT, Batch, Place, RecordDefaults, Unattributed, check_count, check_json
from diagnoser.ingest.line_groups import SAMPLE_BYTES
from diagnoser.ingest.mapping import DEFAULT, FieldMapping
from diagnoser.ingest.records import MESSAGE, RecordPlaces, text_of, time_of
from diagnoser.model import UnplacedReason
from diagnoser.model.errors import BadInput, Undecodable

NO_JOB = "no job: name it in the record or in the query (a node's own log needs source, node and an agent's token)"


class _Reject(Exception):
    """This record cannot be used; the message says why."""


def parse_ndjson(body: bytes, defaults: RecordDefaults, received: float, mapping: FieldMapping = DEFAULT) -> Batch:
    """One record per line; blank lines are skipped. Raises BadInput when an offset cannot apply, TooLarge for too
    many records or lines in them.
    """
    check_count(body.count(b"\n"), RECORDS_LIMIT, "records")
    check_json(body)
    rows = ((number, row) for number, row in enumerate(body.split(b"\n"), 1) if row.strip())
    return _collect("line", rows, defaults, received, mapping)


def parse_array(body: bytes, defaults: RecordDefaults, received: float, mapping: FieldMapping = DEFAULT) -> Batch:
    """A JSON array of records, or one record; or records one per line, which Fluent Bit also calls JSON. Raises
    Undecodable when the body is none of these, TooLarge for too many records or lines in them.
    """
    check_json(body)
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if body[:1] == b"{":
            return parse_ndjson(body, defaults, received, mapping)
        raise Undecodable(f"the body is not JSON: {error}") from None
    records = data if isinstance(data, list) else [data]
    check_count(len(records), RECORDS_LIMIT, "records")
    return _collect("record", enumerate(records, 1), defaults, received, mapping)


def _collect(
    unit: str, rows: Iterable[tuple[int, Any]], defaults: RecordDefaults, received: float, mapping: FieldMapping
) -> Batch:
    batch, places, odd_times = Batch(), RecordPlaces(defaults, mapping), 0
    for number, row in rows:
        try:
            record, text = _record(row)
            time, line = time_of(record), text.encode()
            placed = places.of(record)
            if isinstance(placed, Unattributed):
                batch.leave_out(placed, 1, _sample(row))
                raise _Reject(NO_JOB if placed.reason is UnplacedReason.NO_JOB else placed.detail)
            group = placed[1]
        except _Reject as reason:
            batch.reject(f"{unit} {number}: {reason}")
            if defaults.first is None:
                continue
            # The shipper counted this record as a line: an empty one keeps the numbers of those behind it.
            group, line, time = places.groups.at(Place(defaults.target, defaults.stream)), b"", math.nan
        if time == math.inf:
            odd_times, time = odd_times + 1, math.nan
        group.texts.append(line)
        group.times.append(time)
    if odd_times:
        batch.errors.append(f"{odd_times} records carry an unusable time; the time of arrival is used for them")
    places.groups.into(batch, received, first=_first_line(defaults, places))
    return batch


def _first_line(defaults: RecordDefaults, places: RecordPlaces) -> int:
    """The offset of the request, 0 without one. Raises BadInput where its lines are of several streams."""
    if defaults.first is None:
        return 0
    if len(places.groups) > 1:
        raise BadInput("an offset needs all records of the request to be of one job, attempt, node, rank and source")
    return defaults.first


def _sample(row: Any) -> str:
    """The record as it came: what else it holds may tell a person whose it is."""
    text = row if isinstance(row, bytes) else orjson.dumps(row)
    return text[:SAMPLE_BYTES].decode("utf-8", "replace")


def _record(row: Any) -> tuple[dict[str, Any], str]:
    """A record and its text. Raises _Reject."""
    if type(row) is bytes:
        try:
            row = orjson.loads(row)
        except orjson.JSONDecodeError as error:
            raise _Reject(f"not JSON: {error}") from None
    if type(row) is dict:
        text = text_of(row)
        if text is None:
            raise _Reject("no message: a record needs one of " + ", ".join(MESSAGE))
        return row, text
    if type(row) is str:
        return {}, row
    raise _Reject("neither an object nor a string")
