"""Kept lines as records: what each says and about itself, and which lines go on with the record before them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from diagnoser.compress.lines import body_of, clean
from diagnoser.dialects.prefixes import Prefix
from diagnoser.model import Line, Severity, Stream
from diagnoser.records import rich
from diagnoser.records.reader import head_of, read
from diagnoser.records.record import Record

_FAR = 64
"""Lines of other voices, at most, within a record whose lines carry a prefix."""
_START = re.compile(r"^\s*(?:Exception Group )?Traceback \(most recent call last\)")
_CHAIN = re.compile(r"^\s*(?:During handling of the above exception|The above exception was the direct cause)")
_ERROR = re.compile(r"^\s*(?:[A-Za-z_]\w*\.){0,12}[A-Za-z_]\w*(?::|$)")
_NO_RECORD = Record()


@dataclass(frozen=True, slots=True)
class OpenedLine:
    """texts: the message, line by line; at least one. prefix: of the launcher; record: what the line states itself.

    severity: of the record; None where it is of none.
    """

    prefix: Prefix
    texts: tuple[str, ...]
    record: Record
    severity: Severity | None = None
    column: int = 0
    """Where the message begins, for a logger that indents all lines of it so far."""


def opened(text: str, carrier: str, *, of_job: bool) -> OpenedLine:
    """A line taken apart. of_job: the job printed it; others print no records that count."""
    prefix, raw = body_of(text.encode(), carrier)
    body = raw.decode()
    record = read(body) if of_job else None
    if record is None:
        return _with_head(prefix, body)
    if not record.texts:
        return OpenedLine(prefix, (body,), record)
    first = _plain(record.texts[0]).encode()
    inner, message = body_of(first)
    texts = (message.decode(), *map(_plain, record.texts[1:]))
    return OpenedLine(_joined(prefix, inner), texts, record, record.severity)


def _with_head(prefix: Prefix, body: str) -> OpenedLine:
    head = head_of(body)
    if head is None:
        return OpenedLine(prefix, (body,), _NO_RECORD)
    column = rich.column_of(body)
    if column:
        inner, message = body_of(rich.message_of(body, column).encode())
        return OpenedLine(_joined(prefix, inner), (message.decode(),), head, head.severity, column)
    return OpenedLine(prefix, (body,), head, head.severity)


def _plain(text: str) -> str:
    """A text as a terminal would show it."""
    if "\x1b" in text or "\r" in text or "\0" in text:
        return clean(text.encode("utf-8", "replace")).lines[0].decode("utf-8", "replace")
    return text


def _joined(outer: Prefix, inner: Prefix) -> Prefix:
    """What both say; the inner one knows better who speaks, and the outer one names who carries it."""
    if not inner.voice and not inner.node:
        return outer
    if not outer.voice:
        return inner._replace(node=inner.node or outer.node)
    return outer._replace(rank=inner.rank if inner.rank >= 0 else outer.rank, node=outer.node or inner.node)


class Spoken(NamedTuple):
    """line: a kept line. voice: who prints it. prefix: the voice that only its prefix tells. column: of its record."""

    line: Line
    voice: str
    prefix: str
    is_head: bool = False
    column: int = 0


class _OpenRecord:
    """A record of which more lines may follow."""

    def __init__(self, spoken: Spoken) -> None:
        self.head = spoken
        self.last = spoken.line.number
        self.is_traceback = False
        self.box = False


class Continuations:
    """Gives the lines that go on with a record what the record states. Takes lines in order of number."""

    def __init__(self) -> None:
        self._open: dict[tuple[Stream, str], _OpenRecord] = {}

    def read(self, spoken: Iterable[Spoken]) -> Iterator[Spoken]:
        for each in spoken:
            yield self._read(each)

    def _read(self, spoken: Spoken) -> Spoken:
        key = spoken.line.stream, spoken.prefix
        if spoken.is_head:
            self._open[key] = _OpenRecord(spoken)
            return spoken
        record = self._open.get(key)
        if record is None:
            return spoken
        if spoken.line.part:
            return spoken
        reach = _FAR if spoken.prefix else 1
        text = rich.within(spoken.line.body, record.head.column)
        if spoken.line.number - record.last > reach or not _goes_on(record, text):
            del self._open[key]
            return spoken
        record.last = spoken.line.number
        return _of_record(spoken, record.head, text)


def _goes_on(record: _OpenRecord, text: str | None) -> bool:
    if text is None:
        return False
    if record.head.column:
        return True
    if _START.match(text):
        record.is_traceback = (record.head.line.severity or 0) >= Severity.WARNING
        return record.is_traceback
    if not text.strip() or text[:1].isspace():
        return True
    if not record.is_traceback:
        return False
    if _CHAIN.match(text):
        return True
    return _ERROR.match(text) is not None


def _of_record(spoken: Spoken, head: Spoken, text: str) -> Spoken:
    line = spoken.line
    rank = line.rank if line.rank >= 0 else head.line.rank
    node = line.node or head.line.node
    line = replace(line, body=text, rank=rank, node=node, severity=head.line.severity)
    return spoken._replace(line=line, voice=spoken.voice or head.voice)
