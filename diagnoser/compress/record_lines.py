"""Kept lines as records: what a line states about itself, and which lines go on with the record before them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from diagnoser.compress.lines import body_of, clean
from diagnoser.dialects.prefixes import Prefix
from diagnoser.model import Line, Severity, Stream
from diagnoser.records import rich
from diagnoser.records.reader import head_of, read
from diagnoser.records.record import NO_RECORD, Record

_FAR = 64
"""Lines that were not kept, or of other voices, at most, between two of a record where nobody else speaks in its
voice."""
_START = re.compile(r"\s{0,8}(?:Exception Group )?Traceback \(most recent call last\)")
_CHAIN = re.compile(r"\s{0,8}(?:During handling of the above exception|The above exception was the direct cause)")
_FRAME = re.compile(r'\s{0,8}>? ?File "')
_INDENTED = re.compile(r" {0,3}\t|  ")
"""Some frameworks put one blank in front of each of their lines."""
_ERROR = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80}(?::|$)")


@dataclass(frozen=True, slots=True)
class OpenedLine:
    """prefix: in front of the line and of its message. carrier: the voice that the one in front of the line tells.

    texts: the message, line by line; at least one. record: what the line states itself.

    column, width: where the message of a logger with columns begins, and how wide it is; 0 for any other.
    """

    prefix: Prefix
    carrier: str
    texts: tuple[str, ...]
    record: Record = NO_RECORD
    column: int = 0
    width: int = 0

    @property
    def is_head(self) -> bool:
        """Whether a record begins here, so that no other goes on."""
        return self.record is not NO_RECORD


def record_texts(body: bytes) -> bytes:
    """The text lines of a record in JSON, blurred or not, as the lines of one text; empty where it is none."""
    if body[:2] != b'{"':
        return b""
    record = read(body.decode("latin-1"))
    return "\n".join(record.texts).encode("latin-1", "replace") if record else b""


def opened(prefix: Prefix, body: str) -> OpenedLine:
    """The message of a line that the job printed, taken apart."""
    record = read(body)
    if record is None:
        return _headed(prefix, body)
    if not record.texts:
        return OpenedLine(prefix, prefix.voice, (body,), record)
    inner, message = body_of(_plain(record.texts[0]).encode())
    return OpenedLine(within(prefix, inner), prefix.voice, (message.decode(), *map(_plain, record.texts[1:])), record)


def _headed(prefix: Prefix, body: str) -> OpenedLine:
    """The same where a head may stand in front. The head stays: many rules know a message by it."""
    record = head_of(body)
    if record is None:
        return OpenedLine(prefix, prefix.voice, (body,))
    column = rich.column_of(body)
    if not column:
        return OpenedLine(prefix, prefix.voice, (body,), record)
    text, width = rich.message_of(body, column)
    inner, message = body_of(text.encode())
    return OpenedLine(within(prefix, inner), prefix.voice, (message.decode(),), record, column, width)


def within(outer: Prefix, inner: Prefix) -> Prefix:
    """What a prefix and another one behind it say together; the inner one is nearer to who speaks."""
    if not inner.voice and not inner.node:
        return outer
    if not outer.voice:
        return inner._replace(node=inner.node or outer.node)
    rank = inner.rank if inner.rank >= 0 else outer.rank
    return outer._replace(rank=rank, node=inner.node or outer.node)


def _plain(text: str) -> str:
    """A text as a terminal would show it."""
    if "\x1b" in text or "\r" in text or "\0" in text:
        return clean(text.encode("utf-8", "replace")).lines[0].decode("utf-8", "replace")
    return text


class Spoken(NamedTuple):
    """line: a kept line. voice: of who prints it. carried: the voice that its prefix tells, "" without one."""

    line: Line
    voice: str
    carried: str
    opened: OpenedLine


class _OpenRecord:
    """A record of which more lines may follow. place: of its last line that says anything, among all lines."""

    def __init__(self, head: Spoken, place: int, reach: int) -> None:
        self.head, self.place, self.reach = head, place, reach
        self.last = head.line.number
        self.is_traceback = False

    def goes_on(self, number: int, text: str) -> bool:
        """Whether a line is the next one of the record."""
        if number - self.last > self.reach:
            return False
        if self.head.opened.column:
            return True
        if _START.match(text) or _FRAME.match(text):
            self.is_traceback = (self.head.line.severity or 0) >= Severity.WARNING
            return self.is_traceback
        if not text.strip() or _INDENTED.match(text):
            return True
        if not self.is_traceback:
            return False
        return any(form.match(text) for form in (_CHAIN, _ERROR))


class Continuations:
    """Gives lines that go on with a record what the record states, and takes the boxes off that rich draws."""

    def __init__(self) -> None:
        self._records: dict[tuple[Stream, str], _OpenRecord] = {}
        self._boxes: set[tuple[Stream, str]] = set()
        self._spoken: list[Spoken] = []
        self._shared: set[tuple[Stream, str]] = set()
        """Where several ranks speak, as their records state: only what stands right below a record is of it."""

    def read(self, spoken: Iterable[Spoken]) -> list[Spoken]:
        """The lines, one for each. They come in order of their numbers."""
        spoken = list(spoken)
        self._shared = _shared(spoken)
        for each in spoken:
            if each.line.part:
                self._spoken.append(each)
            else:
                self._read(each, (each.line.stream, each.carried))
        return self._spoken

    def _read(self, spoken: Spoken, key: tuple[Stream, str]) -> None:
        record = self._records.get(key)
        if spoken.opened.is_head:
            self._records[key] = _OpenRecord(spoken, len(self._spoken), 1 if key in self._shared else _FAR)
            self._spoken.append(spoken)
            return
        below = rich.below(spoken.line.body, record.head.opened.column if record else 0)
        text = self._unboxed(key, spoken.line.body if below is None else below)
        if record and below is not None and record.goes_on(spoken.line.number, text):
            self._go_on(record, spoken, text)
            return
        self._records.pop(key, None)
        self._spoken.append(spoken._replace(line=replace(spoken.line, body=text)))

    def _unboxed(self, key: tuple[Stream, str], text: str) -> str:
        if rich.begins_box(text):
            self._boxes.add(key)
        elif not rich.in_box(text):
            self._boxes.discard(key)
        if key not in self._boxes:
            return text
        if rich.ends_box(text):
            self._boxes.discard(key)
        return rich.unboxed(text)

    def _go_on(self, record: _OpenRecord, spoken: Spoken, text: str) -> None:
        """Add a line to the record. Where it is the rest of a line that had no room, that one gets it as well."""
        record.last = spoken.line.number
        before = self._spoken[record.place]
        if rich.wraps(before.line.body, text, record.head.opened.width):
            joined = replace(before.line, body=f"{before.line.body} {text}")
            self._spoken[record.place] = before._replace(line=joined)
            text = ""
        else:
            record.place = len(self._spoken)
        line, head = spoken.line, record.head.line
        rank = line.rank if line.rank >= 0 else head.rank
        line = replace(line, body=text, rank=rank, node=line.node or head.node, severity=head.severity)
        self._spoken.append(spoken._replace(line=line, voice=spoken.voice or record.head.voice))


def _shared(spoken: Iterable[Spoken]) -> set[tuple[Stream, str]]:
    ranks: dict[tuple[Stream, str], set[int]] = {}
    for each in spoken:
        if each.opened.is_head:
            ranks.setdefault((each.line.stream, each.carried), set()).add(each.line.rank)
    return {key for key, known in ranks.items() if len(known - {-1}) > 1}
