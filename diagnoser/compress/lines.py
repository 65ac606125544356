"""One line as a terminal would show it, and what launchers put in front of it.

Blocks are cleaned as a whole where C can do it, line by line only where a line carries ``\\r`` or is very long.
"""

import re
from collections.abc import Iterable
from itertools import filterfalse
from typing import NamedTuple

import numpy as np
import orjson

from diagnoser.compress.line_masking import bare
from diagnoser.compress.pattern_masking import blur
from diagnoser.dialects import Dialect, Prefix, prefixes
from diagnoser.records import batches

LONGEST = 8192
"""Most bytes read and kept of a line; the middle of longer ones is cut, and the cut is counted."""

_FEW = 8
"""Up to this many states of a line, looking for equal ones is not worth it."""

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_METER = (
    rb"[ \d]{0,4}\d%\|[^|\n]{0,300}\|[^\[\n]{0,60}\[[^\]\n]{0,160}\]"
    rb"|(?<!\d)\d+(?:it|ba|files?|examples) ?\[[\d:]+, [^\]\n]{0,60}\]"
)
"""A tqdm bar of known or unknown length."""
_BARS = re.compile(_METER)
_RETURNS = re.compile(rb"\r{2,}")
_COUNT = re.compile(rb"[^\n:|%]{1,80}: ?\d{1,9}/\d{1,9}")
_TITLE = re.compile(rb"\s*(?:[^\n:|%]{0,80}:)?\s*")
"""What stands in front of a bar."""


def measure(data: bytes) -> tuple[int, int]:
    """(lines, how many of them are longer than ``LONGEST``), a last one without its newline included."""
    if not has_long_line(data):
        return count_lines(data), 0
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    lengths = np.diff(ends, prepend=-1, append=len(data)) - 1
    return count_lines(data), int(np.count_nonzero(lengths > LONGEST))


def count_lines(data: bytes) -> int:
    """The lines of a block, a last one without its newline included."""
    unended = not data.endswith(b"\n")
    if len(data) <= LONGEST:
        return data.count(b"\n") + unended
    # in a tenth of the time that ``count`` takes
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n"))) + unended


def has_long_line(data: bytes) -> bool:
    """Whether a line is longer than ``LONGEST``. Each step goes on behind the last line end within reach."""
    start = 0
    while len(data) - start > LONGEST:
        start = data.rfind(b"\n", start, start + LONGEST + 1) + 1
        if not start:
            return True
    return False


class Cleaned(NamedTuple):
    """lines: without ANSI codes, NULs, overwritten bar states and over-long middles, text: the same as one.

    cut_lines, cut_bytes: long lines and what was taken from their middles. painted: bytes of states that others
    painted over.
    """

    lines: list[bytes]
    cut_lines: int
    cut_bytes: int
    painted: int
    text: bytes


def clean(data: bytes) -> Cleaned:
    """The lines of a block, one for each ``\\n``-separated line of ``data``, in order."""
    data = _without_codes(data.removesuffix(b"\n"))
    first_return = data.find(b"\r")
    if data[first_return + 1 : first_return + 2] == b"\n":
        data = data.replace(b"\r\n", b"\n")
        first_return = data.find(b"\r")
    lines = data.split(b"\n")
    painted = _paint(data, first_return, lines) if first_return >= 0 else 0
    cut_lines = cut_bytes = 0
    if has_long_line(data):
        for index, line in enumerate(lines):
            if len(line) > LONGEST:
                lines[index], missing = cut(line)
                cut_lines, cut_bytes = cut_lines + 1, cut_bytes + missing
    return Cleaned(lines, cut_lines, cut_bytes, painted, b"\n".join(lines) if cut_lines or first_return >= 0 else data)


def clean_text(data: bytes) -> bytes:
    """The text of ``clean`` alone, which mostly needs no list of lines."""
    text = _without_codes(data.removesuffix(b"\n"))
    if b"\r" in text or has_long_line(text):
        return clean(data).text
    return text


def _without_codes(data: bytes) -> bytes:
    """Remove what no terminal shows. A search in C decides whether a pattern has to be run at all."""
    if b'"log":' in data:
        data = _RECORD.sub(_opened, data)
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\0" in data:
        data = data.replace(b"\0", b"")
    return data


_RECORD = re.compile(rb'(?m)^\{(?=[^\n]{0,200}"log": ?")[^\n]+\}\r?$')
_RECORD_FIELDS = frozenset({"log", "stream", "time", "attrs"})
"""A shipper's record says more: who printed the line."""
_RECORD_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:?\d\d)")


def _opened(record: re.Match[bytes]) -> bytes:
    """A record of docker's JSON log driver as the container runtime interface writes the same line."""
    try:
        fields = orjson.loads(record[0])
        printed, stream, time = str(fields.get("log", "")), str(fields.get("stream", "")), str(fields.get("time", ""))
    except ValueError:
        return record[0]
    if stream not in ("stdout", "stderr") or not fields.keys() <= _RECORD_FIELDS:
        return record[0]
    if not _RECORD_TIME.fullmatch(time):
        return record[0]
    whole = "F" if printed.endswith("\n") else "P"
    printed = printed.removesuffix("\n").removesuffix("\r").replace("\n", " ")
    return f"{time} {stream} {whole} {printed}".encode("utf-8", "surrogatepass")


def _paint(data: bytes, position: int, lines: list[bytes]) -> int:
    """Overwrite those of ``lines`` that carry a carriage return, the first of which is at ``at``; bytes lost."""
    index = counted = painted = 0
    while position >= 0:
        index += data.count(b"\n", counted, position)
        before = lines[index]
        lines[index] = after = overwrite(before)
        painted += len(before) - len(after)
        counted = position
        end = data.find(b"\n", position)
        position = data.find(b"\r", end) if end >= 0 else -1
    return painted


def overwrite(line: bytes) -> bytes:
    """Reduce a line with carriage returns to its last state and, before it, overwritten states that are no bar, for one
    may be the error. Of many states of one shape only the last stays.
    """
    if b"\r\r" in line:
        line = _RETURNS.sub(b"\r", line)
    states = list(filter(bytes.strip, line.split(b"\r")))
    if len(states) < 2:
        return b"".join(states)
    if len(states) > _FEW:
        states = list(dict(zip(bare(b"\r".join(states)).split(b"\r"), states, strict=True)).values())
    last = states.pop()
    return b" ".join([*filterfalse(_is_bar, states), last])


def _is_bar(state: bytes) -> bool:
    """Whether a state is a bar or a count and nothing else: no words but what stands before them and a colon."""
    if _COUNT.fullmatch(state.strip()):
        return True
    marks = state.count(b"%|")
    if not (b"s/it" in state or _has_meter(state)):
        return False
    if marks == 1 and _is_single_bar(state):
        return True
    end = 0
    for bar in _BARS.finditer(state):
        if not _TITLE.fullmatch(state, end, bar.start()):
            return False
        end = bar.end()
    if end == 0:
        return False
    return not state[end:].strip()


def _has_meter(text: bytes) -> bool:
    """Whether there may be a progress bar in it."""
    return b"%|" in text or b"it/s" in text or b"?it" in text


def _is_single_bar(state: bytes) -> bool:
    """Whether it looks like the usual bar, which needs no pattern."""
    return len(state) < 500 and state.find(b"%|", 0, 100) > 0 and state.rstrip().endswith(b"]")


def cut(line: bytes) -> tuple[bytes, int]:
    """Head and tail of an over-long line with the number of bytes between them written out; and that number."""
    if line.startswith(batches.BEGINS):
        whole, line = len(line), batches.shortened(line, LONGEST)
        if len(line) <= LONGEST:
            return line, whole - len(line)
    if line.count(b"it/s]") + line.count(b"s/it]") > 2:
        line = _one_bar(line)
    if len(line) <= LONGEST:
        return line, 0
    half = LONGEST // 2 - 32
    missing = len(line) - 2 * half
    return line[:half] + b" ...<%d bytes cut>... " % missing + line[-half:], missing


def _one_bar(line: bytes) -> bytes:
    """A line of many bar states glued without a carriage return, cut down to the last state."""
    bars = list(_BARS.finditer(line))
    parts, end = [], 0
    for bar in bars[:-1]:
        parts.append(line[end : bar.start()])
        end = bar.end()
    parts.append(line[end:])
    words = filterfalse(_TITLE.fullmatch, parts[:-1])
    return b" ".join(filter(None, map(bytes.strip, [*words, parts[-1]])))


_LEADING_BARS = re.compile(rb"^(?:(?> *(?:(?:[^\n:|%\x1f]{0,80}: *)?" + _METER + rb")))+ *(?=\S)")


def body_of(line: bytes) -> tuple[Prefix, bytes]:
    """The prefix's fields and the message."""
    head, body = prefixes.split_prefix(line)
    if head.endswith(b">:") and head in body:
        body = body.replace(head, b"")  # mpirun tags each write, of which a line may be several
    if _has_meter(body):
        glued = _LEADING_BARS.match(body)
        if glued:
            inner, body = prefixes.split_prefix(body[glued.end() :])
            head += inner
    return prefixes.with_opening(prefixes.read_prefix(head), body), body


_BLURRED_HEADS = tuple(map(blur, prefixes.HEADS))


def _blurred_any_of(dialects: Iterable[Dialect]) -> str:
    return prefixes.any_of((dialect.blurred or blur(dialect.source) for dialect in dialects), _BLURRED_HEADS)


_BLURRED_BAR = (
    rb"(?:[^\n:|%]{0,80}: ?)? ?0%\|[^|\n]{0,300}\|[^\[\n]{0,60}\[[^\]\n]{0,160}\]"
    rb"|0(?:it|ba|files?|examples) ?\[[0:]+, [^\]\n]{0,60}\]"
)
_BLURRED_STAMPS = re.compile(f"(?>(?:{_blurred_any_of(each for each in prefixes.PEELED if each.is_stamp)})*)".encode())
_BLURRED_PREFIX = re.compile(f"(?>(?:{_blurred_any_of(prefixes.PEELED)})*)".encode())
_BLURRED_CARRIER = re.compile(f"(?:{_blurred_any_of(prefixes.CARRIERS)})".encode())
_BLURRED_BARS = re.compile(rb"(?:(?> ?(?:" + _BLURRED_BAR + rb")))+ ?(?=\S)")


def strip_blurred(line: bytes) -> tuple[bool, bytes]:
    """(whether lines of this blur can have a prefix that tells who speaks, the blur of their message): no prefix of a
    launcher, no progress bar that was glued in front.
    """
    end = _end(_BLURRED_PREFIX.match(line))
    prefixed, body = end > _end(_BLURRED_STAMPS.match(line)), line[end:]
    if _has_meter(body):
        glued = _BLURRED_BARS.match(body)
        if glued:
            body = body[glued.end() :]
            inner = _end(_BLURRED_PREFIX.match(body))
            prefixed, body = prefixed | (inner > 0), body[inner:]
    return prefixed, body


def carried_blur(body: bytes) -> bytes:
    """The blur of a message, from ``strip_blurred``, as it is where another program carries the stream."""
    body = body[_end(_BLURRED_CARRIER.match(body)) :]
    return body[_end(_BLURRED_PREFIX.match(body)) :]


def _end(match: re.Match[bytes] | None) -> int:
    return match.end() if match else 0
