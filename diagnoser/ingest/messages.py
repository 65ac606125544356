"""Messages of a queue -> blocks of whole lines, each with the attempt and stream it belongs to.

The key of a message is the job. Headers are labels as the mapping reads them, and so are the fields of a JSON record,
which come before them. What cannot be used is left out with its reason, and its neighbours stay.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import orjson

from diagnoser.ingest.batch import Batch, Labels, Place, RecordDefaults, Unattributed
from diagnoser.ingest.line_groups import SAMPLE_BYTES, LineGroups
from diagnoser.ingest.mapping import FieldMapping, value_of
from diagnoser.ingest.ndjson import parse_ndjson
from diagnoser.model import JOB_ID, Stream, UnplacedReason
from diagnoser.ports import Message

MessageFormat = Literal["text", "json"]

KEY_LABEL = "message key"


@dataclass(slots=True)
class _Origin:
    """Messages with one key and the same headers. labels: what they say, with a key that is no job. where: their place,
    once it is known."""

    labels: Labels
    defaults: RecordDefaults
    where: Place | Unattributed | None = None
    messages: list[Message] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MessageReader:
    """What the operator says about a topic.

    defaults: about all of its lines. They vouch only where it is declared that no job can write to the topic.
    key_is_job: where not, the key says nothing.
    """

    mapping: FieldMapping
    format: MessageFormat
    defaults: RecordDefaults
    key_is_job: bool = True

    def read(self, messages: Sequence[Message], received: float) -> Batch:
        """The order within a partition is the order within a stream. Messages without a value, as compacted topics have
        them, say nothing. Raises BadInput when they hold too much for one batch."""
        batch = Batch()
        groups = LineGroups()
        origins: dict[tuple[bytes, tuple[tuple[str, bytes], ...]], _Origin] = {}
        for message in messages:
            if message.value:
                pair = (message.key, message.headers)
                origin = origins.get(pair)
                if origin is None:
                    origin = origins[pair] = self._origin(message)
                if self.format == "text":
                    self._read_text(batch, groups, origin, message)
                else:
                    origin.messages.append(message)
        groups.into(batch, received)
        for origin in origins.values():
            if origin.messages:
                self._read_json(batch, origin, received)
        return batch

    def without(self, message: Message, reason: UnplacedReason, detail: str) -> Batch:
        """An empty batch that says why this message is not in it."""
        batch = Batch()
        leave_out(batch, Unattributed(reason, detail, self._origin(message).labels), message.value)
        return batch

    def _origin(self, message: Message) -> _Origin:
        key = message.key.decode(errors="replace")
        headers = tuple((name, value.decode(errors="replace")) for name, value in message.headers)
        if not (key and self.key_is_job):
            return _Origin(headers, self.defaults)
        if re.fullmatch(JOB_ID, key):
            return _Origin(headers, replace(self.defaults, job=key))
        return _Origin((*headers, (KEY_LABEL, key)), self.defaults)

    def _read_text(self, batch: Batch, groups: LineGroups, origin: _Origin, message: Message) -> None:
        """A message is lines, and its time is theirs. Those of one stream stay in their order, also where they differ
        in headers that say nothing of their place."""
        if origin.where is None:
            origin.where = self.mapping.attribute(origin.labels, origin.defaults)
        if isinstance(origin.where, Unattributed):
            leave_out(batch, _with_key(origin.where), message.value)
            return
        group = groups.at(origin.where)
        group.texts.append(message.value)
        group.times.append(message.time)

    def _read_json(self, batch: Batch, origin: _Origin, received: float) -> None:
        rows = [row for message in origin.messages for row in _rows(message.value)]
        records = parse_ndjson(b"\n".join(rows), self._with_headers(origin), received, self.mapping)
        for target, blocks in records.blocks.items():
            for block in blocks:
                batch.add(target, block)
        batch.rejected += records.rejected
        for unplaced, (lines, sample) in records.unplaced.items():
            labels = tuple(dict((*origin.labels, *unplaced.labels)).items())
            batch.leave_out(_with_key(unplaced._replace(labels=labels)), lines, sample)
        if records.rejected > records.unplaced_lines:
            unreadable = Unattributed(UnplacedReason.UNREADABLE, records.errors[0], origin.labels)
            faulty = next((row for row in rows if not _is_object(row)), rows[0])
            sample = faulty[:SAMPLE_BYTES].decode(errors="replace")
            batch.leave_out(unreadable, records.rejected - records.unplaced_lines, sample)

    def _with_headers(self, origin: _Origin) -> RecordDefaults:
        """What the headers say of records that do not say it themselves."""
        where = self.mapping.attribute(origin.labels, origin.defaults)
        if not isinstance(where, Place):
            return origin.defaults
        decisions = self.mapping.trace(origin.labels, origin.defaults)
        return replace(
            origin.defaults,
            job=value_of(decisions.get("job")),
            attempt=where.target.attempt,
            stream=Stream(where.stream.source, where.stream.node, where.stream.rank),
            cluster=value_of(decisions.get("cluster")),
        )


def leave_out(batch: Batch, unplaced: Unattributed, text: bytes) -> None:
    """Count lines that are not stored, with the first of them as a sample."""
    lines = text.removesuffix(b"\n").count(b"\n") + 1
    batch.rejected += lines
    batch.leave_out(unplaced, lines, text[:SAMPLE_BYTES].partition(b"\n")[0].decode(errors="replace"))


def _with_key(unplaced: Unattributed) -> Unattributed:
    """Where nothing else names a job, the key that cannot be one is the reason."""
    if unplaced.reason is not UnplacedReason.NO_JOB:
        return unplaced
    key = dict(unplaced.labels).get(KEY_LABEL)
    if key is None:
        return unplaced
    return unplaced._replace(reason=UnplacedReason.NOT_A_JOB_ID, detail=f"the key is not a job id: {key[:40]!r}")


def _rows(value: bytes) -> Iterator[bytes]:
    """The records of a message, one a row: it may hold one, an array of them, or one a line."""
    if b"\n" not in value and not value.lstrip().startswith(b"["):
        yield value
        return
    try:
        data = orjson.loads(value)
    except orjson.JSONDecodeError:
        yield from value.split(b"\n")
        return
    yield from map(orjson.dumps, data if isinstance(data, list) else [data])


def _is_object(row: bytes) -> bool:
    try:
        return isinstance(orjson.loads(row), dict | str)
    except orjson.JSONDecodeError:
        return not row.strip()
