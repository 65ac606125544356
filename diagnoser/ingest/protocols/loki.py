"""Loki's push request, as protobuf and as JSON: streams of entries, each stream with its labels.

The structured metadata of an entry is read by the mapping like labels. An entry that cannot be used costs itself only.

Nobody publishes generated classes for Python; made at run time they take 0.7 µs for an entry of 100 bytes, this reader
0.6 µs, and they give up a whole request for one broken entry.
"""

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
import orjson

from diagnoser.ingest.batch import RECORDS_LIMIT, Batch, IngestReceipt, Labels, RecordDefaults, check_count, check_json
from diagnoser.ingest.encodings import decoder, unsnappy
from diagnoser.ingest.line_groups import YEAR_2000, YEAR_2100, LineGroup, LineGroups
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.ingest.protocols.protobuf_wire import LENGTH, VARINT, Malformed, fields, messages, packed, signed, varint
from diagnoser.ingest.protocols.protocol import (
    JSON,
    PLAIN_TEXT,
    PROTOBUF,
    Answer,
    BodyFormat,
    BodyReading,
    Description,
    Protocol,
    RequestHead,
    format_of,
)
from diagnoser.model.errors import TooLarge, Undecodable

STREAMS_LIMIT = 20_000
LABELS_REMEMBERED = 4096
LABELS_LENGTH = 4096
"""Bytes of a label set that is remembered once it has been read."""

STREAMS = 1  # of a push request
STREAM_LABELS, STREAM_ENTRIES = 1, 2
ENTRY_TIME, ENTRY_LINE, ENTRY_METADATA = 1, 2, 3
PAIR_NAME, PAIR_VALUE = 1, 2
TIME_SECONDS, TIME_NANOS = 1, 2

_FIRST_BYTE = bytes((STREAMS << 3 | LENGTH,))  # of a request that is not compressed
_ENTRY_KEY = STREAM_ENTRIES << 3 | LENGTH
_TIME_KEY = ENTRY_TIME << 3 | LENGTH
_LINE_KEY = ENTRY_LINE << 3 | LENGTH
_SECONDS_KEY = TIME_SECONDS << 3 | VARINT
_NANOS_KEY = TIME_NANOS << 3 | VARINT
_TIME_BYTES = 12  # two keys, five bytes of seconds from 1978 on, up to five of nanoseconds
_LABEL = re.compile(r'\s*([a-zA-Z_][\w.:-]*)\s*=\s*("(?:[^"\\]|\\.)*"|`[^`]*`)\s*(?:,|$)', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def parse_loki(body: bytes, defaults: RecordDefaults, received: float, mapping: FieldMapping) -> Batch:
    """The protobuf form, decompressed. Raises Undecodable when it is none, TooLarge for too many streams, entries or
    lines in them."""
    push = _Push(defaults, mapping)
    try:
        for start, stop in messages(body, 0, len(body), STREAMS):
            push.read_stream(body, start, stop)
    except (Malformed, IndexError) as error:
        raise Undecodable(f"the body is not a push request of Loki: {error}") from None
    push.groups.into(push.batch, received, read_times=_read_times)
    return push.batch


def parse_loki_json(body: bytes, defaults: RecordDefaults, received: float, mapping: FieldMapping) -> Batch:
    """The JSON form. Raises as ``parse_loki``."""
    check_json(body)
    try:
        streams = orjson.loads(body)["streams"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        raise Undecodable(f"the body is not a push request of Loki: {error}") from None
    if not isinstance(streams, list):
        raise Undecodable("the body is not a push request of Loki: streams is not a list")
    push = _Push(defaults, mapping)
    for stream in streams:
        push.read_json_stream(stream)
    push.groups.into(push.batch, received)
    return push.batch


class _Push:
    """A request while it is read. groups: in the protobuf form, times are Timestamp messages."""

    def __init__(self, defaults: RecordDefaults, mapping: FieldMapping) -> None:
        self.batch = Batch()
        self.groups = LineGroups()
        self._defaults = defaults
        self._mapping = mapping
        self._streams = self._entries = 0

    def read_stream(self, body: bytes, start: int, stop: int) -> None:
        """Raises Malformed or IndexError where a length leads out of the stream; TooLarge."""
        self._count_stream()
        try:
            first = next(messages(body, start, stop, STREAM_LABELS), (start, start))
            labels = _read_labels(body[slice(*first)])
        except ValueError as error:
            entries = sum(field.number == STREAM_ENTRIES for field in fields(body, start, stop))
            self.batch.reject(f"stream {self._streams}: {error}", entries)
        else:
            self._read_entries(body, start, stop, labels)

    def _read_entries(self, body: bytes, start: int, stop: int, labels: Labels) -> None:
        plain = self._group(labels)
        by_metadata: dict[bytes, LineGroup] = {}
        for begin, end in packed(body, start, stop, _ENTRY_KEY):
            line, rest = _line_in_place(body, begin, end)
            group = (plain if rest == end else by_metadata.get(body[rest:end])) if line else None
            if group is None:
                self._read_entry(body, begin, end, labels, by_metadata)
                continue
            group.texts.append(body[line:rest])
            group.times.append(body[begin + 2 : begin + 2 + body[begin + 1]])
            self._entries += 1
        check_count(self._entries, RECORDS_LIMIT, "records")

    def _read_entry(
        self, body: bytes, start: int, stop: int, labels: Labels, by_metadata: dict[bytes, LineGroup]
    ) -> None:
        """An entry of any form; with metadata that was not seen before, mostly."""
        self._entries += 1
        check_count(self._entries, RECORDS_LIMIT, "records")
        time = line = b""
        metadata: list[tuple[str, str]] = []
        line_stop = start
        try:
            for number, kind, begin, end in fields(body, start, stop):
                if kind != LENGTH:
                    continue
                if number == ENTRY_TIME:
                    time = body[begin:end]
                elif number == ENTRY_LINE:
                    line, line_stop = body[begin:end], end
                elif number == ENTRY_METADATA:
                    metadata.append(_pair(body, begin, end))
        except Malformed as error:
            self.batch.reject(f"stream {self._streams}, entry {self._entries}: {error}")
            return
        group = self._group(labels, metadata)
        group.texts.append(line)
        group.times.append(time)
        by_metadata[body[line_stop:stop]] = group

    def read_json_stream(self, stream: Any) -> None:
        """Raises TooLarge."""
        self._count_stream()
        values = stream.get("values") if isinstance(stream, dict) else None
        if not isinstance(values, list):
            self.batch.reject(f"stream {self._streams}: no list of values")
            return
        check_count(self._entries + len(values), RECORDS_LIMIT, "records")
        labels = stream.get("stream")
        if not _is_label_set(labels):
            self.batch.reject(f"stream {self._streams}: its labels are not an object of strings", len(values))
            return
        own = tuple(labels.items())
        plain = self._group(own)
        for entry in values:
            self._entries += 1
            match entry:
                case [str() | int() as stamp, str() as line, *more] if (time := _read_nanos(stamp)) is not None:
                    group = plain
                    if more and more[0] and _is_label_set(more[0]):
                        group = self._group(own, more[0].items())
                    group.texts.append(line.encode())
                    group.times.append(time)
                case _:
                    why = "an entry is a list of nanoseconds, as a string, and the line"
                    self.batch.reject(f"stream {self._streams}, entry {self._entries}: {why}")

    def _group(self, labels: Labels, metadata: Iterable[tuple[str, str]] = ()) -> LineGroup:
        """The lines of a stream that carry this metadata. What the mapping does not read of it tells them not apart."""
        read = tuple(pair for pair in metadata if self._mapping.name(pair[0]))
        return self.groups.at(self._mapping.attribute(labels + read, self._defaults))

    def _count_stream(self) -> None:
        self._streams += 1
        check_count(self._streams, STREAMS_LIMIT, "streams")


def _read_nanos(stamp: str | int) -> float | None:
    """Seconds; NaN where no line can be of then, None for what is no number."""
    try:
        time = int(stamp) * 1e-9
    except (ValueError, OverflowError):
        return None
    return _of_a_line(time)


def _of_a_line(time: float) -> float:
    """NaN for a time of which no line can be."""
    if YEAR_2000 <= time < YEAR_2100:
        return time
    return math.nan


def _is_label_set(value: Any) -> TypeGuard[dict[str, str]]:
    if not isinstance(value, dict):
        return False
    return all(isinstance(text, str) for text in value.values())


def _line_in_place(body: bytes, start: int, end: int) -> tuple[int, int]:
    """(where the line of an entry begins, where it ends); (0, 0) unless the entry begins with a time and then a line,
    as nearly all do."""
    line_key = start + 2 + body[start + 1] if end - start > 2 else end
    if line_key + 2 > end or body[start] != _TIME_KEY or body[line_key] != _LINE_KEY:
        return 0, 0
    size, line = body[line_key + 1], line_key + 2
    if size > 0x7F and line < end:
        size, line = size & 0x7F | body[line] << 7, line + 1
    rest = line + size
    # Lines whose length takes three bytes are rare, and read by the way that reads everything.
    return (line, rest) if size < 0x4000 and rest <= end else (0, 0)


def _pair(body: bytes, start: int, stop: int) -> tuple[str, str]:
    """A label pair, or a field of one that is missing as "". Raises Malformed."""
    pair = {PAIR_NAME: b"", PAIR_VALUE: b""}
    for number, kind, begin, end in fields(body, start, stop):
        if number in pair and kind == LENGTH:
            pair[number] = body[begin:end]
    return pair[PAIR_NAME].decode("utf-8", "replace"), pair[PAIR_VALUE].decode("utf-8", "replace")


def _read_labels(text: bytes) -> Labels:
    """``{app="a", pod="b"}``. Raises ValueError."""
    if len(text) > LABELS_LENGTH:
        return read_labels(text)
    return _known_labels(text)


def read_labels(text: bytes) -> Labels:
    """A label set as Prometheus and Loki write it: ``{app="a", pod="b"}``. Raises ValueError."""
    words = text.decode("utf-8", "replace").strip()
    if not (words.startswith("{") and words.endswith("}")):
        raise ValueError(f"not a label set: {words[:60]!r}")
    labels, position, stop = [], 1, len(words) - 1
    while words[position:stop].strip():
        match = _LABEL.match(words, position, stop)
        if not match:
            raise ValueError(f"not a label set: {words[:60]!r}, at character {position}")
        labels.append((match[1], _unquoted(match[2])))
        position = match.end()
    return tuple(labels)


_known_labels = lru_cache(LABELS_REMEMBERED)(read_labels)


def _unquoted(quoted: str) -> str:
    """A string as Go writes it."""
    inner = quoted[1:-1]
    if quoted[0] == "`":
        return inner
    if "\\" not in inner:
        return inner
    return _ESCAPE.sub(_unescaped, inner)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        return _LETTERS.get(match[4], match[4])
    number = int(code, 16)
    if number >= 0x110000:
        return "\ufffd"
    if 0xD800 <= number < 0xE000:  # half of a pair
        return "\ufffd"
    return chr(number)


def _read_times(stamps: list[bytes]) -> list[float]:
    """Timestamp messages to seconds, those of the usual form all at once."""
    joined = b"".join([stamp.ljust(_TIME_BYTES, b"\0") for stamp in stamps])
    if len(joined) != _TIME_BYTES * len(stamps):
        return list(map(_read_time, stamps))
    rows = np.frombuffer(joined, np.uint8).reshape(-1, _TIME_BYTES)
    goes_on, digits = rows > 0x7F, (rows & 0x7F).astype(np.int64)
    is_usual = (
        (rows[:, 0] == _SECONDS_KEY)
        & goes_on[:, 1:5].all(1)
        & ~goes_on[:, 5]
        & ((rows[:, 6] == _NANOS_KEY) | ~rows[:, 6:].any(1))
        & (goes_on[:, 7:11] | (rows[:, 8:12] == 0)).all(1)
        & ~goes_on[:, 11]
    )
    places = np.array([1 << 7 * place for place in range(5)])
    times = digits[:, 1:6] @ places + (digits[:, 7:12] @ places) * 1e-9
    times[(times < YEAR_2000) | (times >= YEAR_2100)] = math.nan
    seconds: list[float] = times.tolist()
    if not is_usual.all():
        for index in np.flatnonzero(~is_usual):
            seconds[index] = _read_time(stamps[index])
    return seconds


def _read_time(stamp: bytes) -> float:
    seconds = nanos = 0
    try:
        for number, kind, begin, end in fields(stamp, 0, len(stamp)):
            if kind != VARINT:
                continue
            if number == TIME_SECONDS:
                seconds = signed(varint(stamp, begin, end)[0])
            elif number == TIME_NANOS:
                nanos = signed(varint(stamp, begin, end)[0])
    except Malformed:
        return math.nan
    return _of_a_line(seconds + nanos * 1e-9)


HINT = "Add a label: diagnoser_job=NAME (external_labels in Alloy and Promtail, labels in Fluent Bit)"
FORMATS = {JSON: BodyFormat("loki-json", parse_loki_json, HINT), PROTOBUF: BodyFormat("loki", parse_loki, HINT)}


def _choose(head: RequestHead) -> BodyReading:
    """Protobuf is compressed with snappy, whatever the header says, and mostly also within another encoding."""
    chosen = format_of(FORMATS, head.content_type or PROTOBUF)
    if chosen is FORMATS[JSON]:
        return BodyReading(chosen, decoder(head.encoding))
    if head.encoding in (None, "", "snappy"):
        return BodyReading(chosen, unsnappy)
    outer = decoder(head.encoding)

    def unwrap(raw: bytes, limit: int) -> bytes:
        body = outer(raw, limit) if outer else raw
        try:
            return unsnappy(body, limit)
        except (Undecodable, TooLarge):
            if body.startswith(_FIRST_BYTE):
                return body
            raise

    return BodyReading(chosen, unwrap)


def _answer(_batch: Batch, receipt: IngestReceipt, _head: RequestHead) -> Answer:
    if not receipt.rejected:
        return Answer()
    why = "\n".join(receipt.errors) or "entries cannot be used"
    return _text(400, f"{receipt.rejected} of the entries were not taken:\n{why}")


def _refuse(_head: RequestHead, status: int, why: str) -> Answer:
    """Shippers print what Loki says: plain text."""
    return _text(status, why)


def _text(status: int, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode(), PLAIN_TEXT)


def _shown_labels(text: str) -> Labels | None:
    return read_labels(text.encode()) if text.startswith("{") else None


PROTOCOL = Protocol(
    name="loki",
    paths=("/loki/api/v1/push",),
    formats=FORMATS,
    choose=_choose,
    answer=_answer,
    refuse=_refuse,
    labels_of=_shown_labels,
    description=Description(
        summary="Send lines as to Loki",
        text="Labels and structured metadata say where entries belong. Loki's way with faulty entries: 400 names them, "
        "the\nothers are committed. Streams that belong to no job are counted and shown, and no error.",
        body="A push request. `Content-Encoding` may be gzip, deflate, zstd or snappy. Protobuf is "
        "compressed with snappy, whatever the header says.",
        content={
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["streams"],
                    "properties": {"streams": {"type": "array", "items": {"type": "object"}}},
                },
                "example": {
                    "streams": [
                        {"stream": {"job": "llm-7b", "rank": "0"}, "values": [["1790000000000000000", "step 1"]]}
                    ]
                },
            },
            PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
        },
        answers={204: {"description": "All entries are committed, but for streams that belong to no job"}},
        errors={PLAIN_TEXT: {"schema": {"type": "string"}}},
    ),
    samples=(
        b'{"streams": [{"stream": {"job": "j"}, "values": '
        b'[["1790000000000000000", "a", {"rank": "1"}], ["0", "b\\n"]]}]}',
    ),
)
