"""Batches of OpenTelemetry's: many records, each below what they come from, in one line of JSON."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from diagnoser.records.json_values import flat

BEGINS = b'{"resourceLogs"'
_ERROR = 17
"""Number of the severity ERROR."""
_ERROR_NAMES = ("ERR", "FATAL", "CRIT")
_MOST = 4_096
"""Records of a batch that are read."""
_AROUND = len(b'{"resource":,"scopeLogs":[{"logRecords":[]}]},')


def records_in(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of each record of a batch, with those of its resource; empty where it is no batch.

    fields: of the line, by name in lower case.
    """
    resources = fields.get("resourcelogs")
    if not isinstance(resources, list):
        return []
    return [flat({**record, "resource": resource.get("resource", {})}) for resource, record in _walk(resources)][:_MOST]


def _walk(resources: list[Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(resource, record) of each record, in order."""
    for resource in filter(_is_object, resources):
        for scope in filter(_is_object, _listed(resource, "scopeLogs")):
            for record in filter(_is_object, _listed(scope, "logRecords")):
                yield resource, record


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _listed(item: Mapping[str, Any], name: str) -> list[Any]:
    value = item.get(name)
    return value if isinstance(value, list) else []


def shortened(line: bytes, most: int) -> bytes:
    """A batch in at most so many bytes: its errors come before its last records, and those before the others."""
    try:
        pairs = list(_walk(_listed(orjson.loads(line), "resourceLogs")))
    except (ValueError, AttributeError):
        return line
    order = sorted(range(len(pairs)), key=lambda place: (not _is_error(pairs[place][1]), -place))
    shown, size = list[int](), 0
    for place in order:
        resource, record = pairs[place]
        size += len(orjson.dumps(record)) + len(orjson.dumps(resource.get("resource"))) + _AROUND
        if size > most:
            break
        shown.append(place)
    return orjson.dumps({"resourceLogs": [_alone(*pairs[place]) for place in sorted(shown)]}) if shown else line


def _alone(resource: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    return {"resource": resource.get("resource"), "scopeLogs": [{"logRecords": [record]}]}


def _is_error(record: Mapping[str, Any]) -> bool:
    number, name = record.get("severityNumber"), str(record.get("severityText", "")).upper()
    return (isinstance(number, int) and number >= _ERROR) or name.startswith(_ERROR_NAMES)
