"""Samples of what a shipper sends, as a person has them at hand -> labels, as the mapping is told them."""

import shlex
from collections.abc import Iterator
from typing import Any

import orjson

from diagnoser.ingest import protocols
from diagnoser.ingest.batch import Labels, RecordDefaults
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.ingest.protocols.protocol import Protocol
from diagnoser.ingest.records import RecordPlaces
from diagnoser.model.errors import BadInput


def read_samples(text: str, mapping: FieldMapping) -> Iterator[tuple[str, Labels]]:
    """(sample, its labels) of each: JSON records in one document or one a line, ``{name="value"}`` as Loki shows it, or
    ``name=value``. Raises BadInput."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        for line in filter(str.strip, text.splitlines()):
            yield line.strip(), _labels(line.strip(), mapping)
        return
    for record in document if isinstance(document, list) else [document]:
        yield orjson.dumps(record).decode(), _of_record(record, mapping)


def _labels(line: str, mapping: FieldMapping) -> Labels:
    if line.startswith("{"):
        try:
            return _of_record(orjson.loads(line), mapping)
        except orjson.JSONDecodeError:
            pass
    for protocol in protocols.PROTOCOLS:
        labels = _labels_by(protocol, line)
        if labels is not None:
            return labels
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise BadInput(f"not name=value: {line[:60]!r} ({error})") from None
    pairs = list[tuple[str, str]]()
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadInput(f'not a JSON record, {{name="value"}} or name=value: {line[:60]!r}')
        pairs.append((name, value))
    return tuple(pairs)


def _labels_by(protocol: Protocol, line: str) -> Labels | None:
    """None where the line is no sample of this protocol. Raises BadInput."""
    if protocol.labels_of is None:
        return None
    try:
        return protocol.labels_of(line)
    except ValueError as error:
        raise BadInput(str(error)) from None


def _of_record(record: Any, mapping: FieldMapping) -> Labels:
    if not isinstance(record, dict):
        raise BadInput(f"not a record: {orjson.dumps(record).decode()[:60]}")
    return RecordPlaces(RecordDefaults(), mapping).labels(record)
