"""Kept lines as records: what a line states about itself, and which lines go on with the record before them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from diagnoser.compress.lines import body_of, clean
from diagnoser.dialects import prefixes
from diagnoser.dialects.prefixes import Prefix
from diagnoser.model import Line, Severity, Stream
from diagnoser.records import learned_prefixes, rich, wrappings
from diagnoser.records.learned_prefixes import Behind, LearnedPrefix
from diagnoser.records.reader import head_of, read
from diagnoser.records.record import NO_RECORD, Record
from diagnoser.records.wrappings import UNWRAPPED, Wrapping

_FAR = 64
"""Lines that were not kept, or of other voices, at most, between two of a record where nobody else speaks in its
voice."""
_START = re.compile(r"\s{0,8}(?:Exception Group )?Traceback \(most recent call last\)")
_BEGUN = re.compile(r"\bTraceback \(most recent call last\):$")
_FRAME = re.compile(r'\s{0,8}>? ?File "')
_BELOW = re.compile(r" {0,3}\t|  |[-*•] ")
"""Indented, or an item of a list. Some frameworks put one blank in front of each of their lines."""
_OF_TRACEBACK = re.compile(
    r"\s{0,8}(?:During handling of the above exception|The above exception was the direct cause)"
    r"|(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80}(?::|$)"
)
"""What joins two exceptions, and what was raised."""


@dataclass(frozen=True, slots=True)
class OpenedLine:
    """prefix: in front of the line and of its message. carrier: the voice in front of all lines of a record.

    texts: the message, line by line; at least one. record: what the line states itself.

    column, width: where the message of a logger with columns begins, and how wide it is; 0 for any other.
    begins: the prefix is the head of a record.
    more: the other records of a batch.
    """

    prefix: Prefix
    carrier: str
    texts: tuple[str, ...]
    record: Record = NO_RECORD
    column: int = 0
    width: int = 0
    begins: bool = False
    more: tuple["OpenedLine", ...] = ()

    @property
    def rank(self) -> int:
        """As the line itself tells it; -1 where it does not."""
        return self.prefix.rank if self.prefix.rank >= 0 else self.record.rank

    @property
    def instance(self) -> str:
        """The pod, service or container that printed it."""
        return self.prefix.pod or self.record.instance

    @property
    def learned_name(self) -> str:
        """What a learned prefix calls who printed it; "" without one."""
        return self.prefix.voice if self.prefix.voice.startswith("w") else ""

    @property
    def process(self) -> str:
        """The process that printed it, by its number on its machine; "" where that is unknown."""
        if self.prefix.pid >= 0:
            return f"p{self.prefix.pid}@{self.prefix.node}"
        return self.record.process

    @property
    def is_head(self) -> bool:
        """Whether a record begins here, so that no other goes on."""
        return self.begins or (self.record is not NO_RECORD and not self.record.is_carrier)


def record_texts(body: bytes) -> bytes:
    """The text lines of a record in JSON, blurred or not, as the lines of one text; empty where it is none."""
    if body[:2] != b'{"':
        return b""
    texts = chain.from_iterable(record.texts for record in read(body.decode("latin-1")))
    return "\n".join(texts).encode("latin-1", "replace")


@dataclass(frozen=True, slots=True)
class LineReader:
    """Takes the lines of a stream apart.

    learned: the prefix that no dialect knows.
    is_logged: one logger carries all lines.
    """

    learned: LearnedPrefix | None = None
    is_logged: bool = False
    wrapping: Wrapping = UNWRAPPED

    def split(self, text: str) -> OpenedLine:
        """The line without its prefix, whatever record it may be."""
        prefix, body = parted(text, is_logged=self.is_logged)
        return OpenedLine(prefix, prefix.voice, (body,))

    def open(self, text: str) -> OpenedLine:
        """The line with all of its records."""
        outer, body = parted(text, is_logged=self.is_logged)
        behind = self._behind(outer, body)
        records = read(behind.body)
        if not records:
            return replace(_headed(behind.prefix, behind.body), carrier=behind.carrier, begins=behind.begins)
        first, *others = (self._record(behind, record) for record in records)
        return replace(first, more=tuple(others)) if others else first

    def _behind(self, outer: Prefix, body: str) -> Behind:
        """The message behind the learned prefix and within the wrapping, where there are any, and who speaks."""
        behind = self.learned.split(body) if self.learned else None
        if behind and behind.begins:
            prefix, carrier = outer.around(behind.prefix), outer.around(Prefix(voice=behind.carrier)).voice
            return Behind(prefix, behind.body, carrier, begins=True)
        if behind:
            inner, body = parted(behind.body)
            outer = outer.around(behind.prefix).around(inner)
        around, message = self.wrapping.split(body)
        if message != body:
            inner, body = parted(message)
            outer = outer.around(around).around(inner)
        return Behind(outer, body, outer.voice)

    def peeled(self, text: str) -> str:
        """A line without the prefixes of dialects and the learned one."""
        return self._behind(*parted(text)).body

    def _record(self, outer: Behind, record: Record) -> OpenedLine:
        carrier = outer.carrier or record.instance
        if outer.prefix.node and record.host and not record.is_carrier:
            # the process itself knows better where it runs than who carries its lines
            outer = outer._replace(prefix=outer.prefix._replace(node=record.host))
        if not record.texts:
            return OpenedLine(outer.prefix, carrier, (outer.body,), record)
        inner, message = parted(_plain(record.texts[0]))
        behind = Behind(outer.prefix.around(inner), message)
        if record.is_carrier:
            behind = self._behind(behind.prefix, message)
        texts = (behind.body, *map(_plain, record.texts[1:]))
        return OpenedLine(behind.prefix, carrier, texts, record, begins=behind.begins)


def has_one_logger(texts: Iterable[str]) -> bool:
    """Whether one logger carries all lines of a stream."""
    return prefixes.are_of_one_logger(text for text in texts if text.strip())


def learned_reader(texts: Sequence[str]) -> LineReader:
    """The reader of a stream."""
    logged = has_one_logger(texts)
    parts = [_carried(text, is_logged=logged) for text in texts]
    voices = {voice for voice, _ in parts} - {""}
    messages = [message for _, message in parts]
    learned = learned_prefixes.learn(messages, _peeled, are_parted=len(voices) > 1)
    reader = LineReader(learned, logged)
    return replace(reader, wrapping=wrappings.learn(messages, reader.peeled))


def _carried(text: str, *, is_logged: bool) -> tuple[str, str]:
    """Who prints a line, by its prefix or shipper, and the line as it was before a shipper carried it."""
    prefix, body = parted(text, is_logged=is_logged)
    records = read(body) if body[:1] == "{" else ()
    if not records or not records[0].is_carrier:
        return prefix.voice, body
    inner, message = parted(_plain(records[0].texts[0]))
    return prefix.around(inner).voice or records[0].voice, message


def message_of(text: str) -> str:
    """A line as it was before a shipper carried it, without the prefixes of dialects."""
    return _carried(text, is_logged=False)[1]


def _peeled(message: str) -> tuple[int, str]:
    """The rank that a known prefix, or a record, names, and what stands behind the prefix."""
    prefix, body = parted(message)
    if prefix.rank >= 0 or body[:1] != "{":
        return prefix.rank, body
    return next((record.rank for record in read(body)), -1), body


def parted(text: str, *, is_logged: bool = False) -> tuple[Prefix, str]:
    """Prefix and message of a line, by the dialects. is_logged: behind the head of a logger that carries all lines."""
    head = prefixes.LOGGER.match(text) if is_logged else None
    prefix, body = body_of(text[head.end() :].encode() if head else text.encode())
    return prefix, body.decode()


def _headed(prefix: Prefix, body: str) -> OpenedLine:
    """A line where a head may stand in front. The head stays: many rules know a message by it."""
    record = head_of(body)
    if record is None:
        return OpenedLine(prefix, prefix.voice, (body,))
    column = rich.column_of(body)
    if not column:
        return OpenedLine(prefix, prefix.voice, (body,), record)
    text, width = rich.message_of(body, column)
    inner, message = parted(text)
    return OpenedLine(prefix.around(inner), prefix.voice, (message,), record, column, width)


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

    def __init__(self, head: Spoken, place: int) -> None:
        self.head, self.place = head, place
        self.last = head.line.number
        self.is_traceback = _BEGUN.search(head.line.body) is not None

    def goes_on(self, number: int, text: str) -> bool:
        """Whether a line is the next one of the record."""
        if number - self.last > _FAR:
            return False
        if self.head.opened.column:
            return True
        if _START.match(text) or _FRAME.match(text):
            self.is_traceback |= (self.head.line.severity or 0) >= Severity.WARNING
            return self.is_traceback
        if not text.strip():
            return True
        if _BELOW.match(text):
            return True
        return self.is_traceback and _OF_TRACEBACK.match(text) is not None


class Continuations:
    """Gives lines that go on with a record what the record states, and takes the boxes off that rich draws."""

    def __init__(self) -> None:
        self._records: dict[tuple[Stream, str], _OpenRecord] = {}
        self._boxes: set[tuple[Stream, str]] = set()
        self._spoken: list[Spoken] = []

    def read(self, spoken: Iterable[Spoken]) -> list[Spoken]:
        """The lines, one for each. They come in order of their numbers."""
        for each in spoken:
            if each.line.part:
                self._spoken.append(each)
            else:
                self._read(each, (each.line.stream, each.carried))
        return self._spoken

    def _read(self, spoken: Spoken, key: tuple[Stream, str]) -> None:
        record = self._records.get(key)
        if spoken.opened.is_head:
            self._records[key] = _OpenRecord(spoken, len(self._spoken))
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
        label = line.label or head.label
        line = replace(line, body=text, rank=rank, node=line.node or head.node, severity=head.severity, label=label)
        self._spoken.append(spoken._replace(line=line, voice=spoken.voice or record.head.voice))
