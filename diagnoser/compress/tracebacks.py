"""Python tracebacks joined from kept lines, one voice at a time: chained ones, exception groups, cut ones."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.model import Line, Traceback

_GUTTER = re.compile(r"^ {2,}(?:\| ?|\+ (?=Exception Group)|\+-.*$)")
"""What an exception group draws in front of the lines of its parts."""
_START = re.compile(r"^\s*(?:Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*(File "[^"]*", line \d+(?:, in .*)?)')
_CHAIN = re.compile(r"^\s*(?:During handling of the above exception|The above exception was the direct cause)")
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(.*))?$")
_DEEP = re.compile(r"^\s+\S|^[\s~^]*$")
_MESSAGE_LINES = 12
_FAR = 64
"""Lines between two lines of one message, at most: other voices may have spoken in between."""


@dataclass
class _Open:
    """A traceback that is being read."""

    rank: int
    lines: list[int] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)


def join(lines: Sequence[Line], voices: Sequence[str]) -> tuple[Traceback, ...]:
    """The tracebacks in ``lines``; ``voices`` names who speaks in each, so that interleaved ranks do not mix."""
    speech: dict[tuple[object, str], list[int]] = {}
    for index, voice in enumerate(voices):
        speech.setdefault((lines[index].stream, voice), []).append(index)
    found: list[Traceback] = []
    for indices in speech.values():
        for trace, chained in _read(lines, indices):
            found.append(replace(trace, cause=len(found) - 1) if chained and found else trace)
    return tuple(found)


def _read(lines: Sequence[Line], indices: list[int]) -> Iterator[tuple[Traceback, bool]]:
    """(traceback, whether it was raised from or while handling the one before), in order of one voice."""
    at, chained = 0, False
    while at < len(indices):
        body = _said(lines[indices[at]])
        if _CHAIN.match(body):
            chained = True
        elif _START.match(body) or _FRAME.match(body):
            trace, at = _one(lines, indices, at)
            if trace:
                yield trace, chained
                chained = False
            continue
        elif chained and body.strip() and not _DEEP.match(body):
            chained = False
        at += 1


def _one(lines: Sequence[Line], indices: list[int], at: int) -> tuple[Traceback | None, int]:
    """Read from a head or a first frame to the exception line; (None, next) when it was cut before that."""
    opened = _Open(lines[indices[at]].rank)
    while at < len(indices):
        index = indices[at]
        body = _said(lines[index])
        frame = _FRAME.match(body)
        if frame:
            opened.frames.append(frame.group(1))
        elif _START.match(body) and opened.lines and opened.frames:
            return None, at
        elif not _START.match(body) and not _DEEP.match(body) and (said := _EXCEPTION.match(body)):
            return _close(lines, indices, at, opened, said)
        elif not _START.match(body) and not _DEEP.match(body):
            return None, at + 1
        opened.lines.append(index)
        at += 1
    return None, at


def _close(
    lines: Sequence[Line], indices: list[int], at: int, opened: _Open, said: re.Match[str]
) -> tuple[Traceback, int]:
    raised, message = indices[at], [said.group(2) or ""]
    opened.lines.append(raised)
    at += 1
    while at < len(indices) and len(message) < _MESSAGE_LINES and _continues(lines, indices, at):
        message.append(_said(lines[indices[at]]))
        opened.lines.append(indices[at])
        at += 1
    trace = Traceback(
        opened.rank, tuple(opened.lines), tuple(opened.frames), said.group(1), "\n".join(message).strip(), raised
    )
    return trace, at


def _continues(lines: Sequence[Line], indices: list[int], at: int) -> bool:
    """An indented line right after the exception line belongs to its message."""
    line, before = lines[indices[at]], lines[indices[at - 1]]
    body = _said(line)
    if line.number - before.number > _FAR or _FRAME.match(body) or _START.match(body) or _CHAIN.match(body):
        return False
    return body[:1] in (" ", "\t") and bool(body.strip())


def _said(line: Line) -> str:
    return _GUTTER.sub("", line.body)
