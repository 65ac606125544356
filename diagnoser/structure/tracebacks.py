"""Python tracebacks joined from kept lines, one voice at a time: chained ones, exception groups, cut ones."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.model import Line, Traceback

_GUTTER = re.compile(r"^ {2,}(?:\| ?|\+ (?=Exception Group)|\+-.*$)")
"""What an exception group draws in front of the lines of its parts."""
_START = re.compile(r"^\s*(?:Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*(?:> )?(File "[^"]*", line \d+(?:, in .*)?)')
_CHAIN = re.compile(r"^\s*(?:During handling of the above exception|The above exception was the direct cause)")
_RAY = re.compile(r"^((?:\w+\.)*RayTaskError)(?:\([\w.]+\))?: (.*)$")
"""Ray raises where the caller waits, and quotes what was raised where the task ran."""
_EXCEPTION = re.compile(
    r"^(?!(?:DEBUG|INFO|NOTE|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(.*))?$"
)
_DEEP = re.compile(r"^\s+\S|^[\s~^]*$")
_HEAD = re.compile(f"{_START.pattern}|{_FRAME.pattern}")
_PART = re.compile(f"{_START.pattern}|{_FRAME.pattern}|{_CHAIN.pattern}")
"""Any line that a traceback begins with, seen at one look: most lines are none."""
_INDENTED = re.compile(r"(?!.*\d%\|)[ \t]\s*\S")
"""A bar of progress is no part of a message."""
_MESSAGE_LINES = 12
_FAR = 64
"""Lines between two lines of one message, at most: other voices may have spoken in between."""


@dataclass
class _OpenTraceback:
    """A traceback that is being read."""

    rank: int
    lines: list[int] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)


def may_go_on(text: str) -> bool:
    """Whether a line may be one of a traceback that was begun above it."""
    if _PART.match(text) or _DEEP.match(text):
        return True
    raised = _EXCEPTION.match(text)
    if raised is None:
        return False
    return "." in raised[1] or raised[1][0].isupper()


def join(lines: Sequence[Line], voices: Sequence[str]) -> tuple[Traceback, ...]:
    """The tracebacks in ``lines``; ``voices`` names who speaks in each, so that interleaved ranks do not mix."""
    speech: dict[tuple[object, str], list[int]] = {}
    for index, voice in enumerate(voices):
        speech.setdefault((lines[index].stream, voice), []).append(index)
    chain: list[Traceback] = []
    for indices in speech.values():
        start = len(chain)
        for trace, chained in _read(lines, indices):
            if _is_quoted(trace, chain, lines):
                chain[-1] = replace(chain[-1], cause=len(chain))
            if chained and len(chain) > start:
                trace = replace(trace, cause=len(chain) - 1)
            chain.append(trace)
    return tuple(chain)


def _is_quoted(trace: Traceback, before: Sequence[Traceback], lines: Sequence[Line]) -> bool:
    """Whether Ray quotes a traceback behind its own error: what it quotes was raised first."""
    if not before:
        return False
    raised = before[-1].raised
    if trace.lines[0] <= raised:
        return False
    return _RAY.match(_text(lines[raised])) is not None


def _read(lines: Sequence[Line], indices: list[int]) -> Iterator[tuple[Traceback, bool]]:
    """(traceback, whether it was raised from or while handling the one before), in order of one voice."""
    place, chained = 0, False
    while place < len(indices):
        body = _text(lines[indices[place]])
        if not chained and not _PART.match(body):
            place += 1
            continue
        if _CHAIN.match(body):
            chained = True
        elif _HEAD.match(body):
            trace, place = _next_traceback(lines, indices, place)
            if trace:
                yield trace, chained
                chained = False
            continue
        elif not _DEEP.match(body):
            chained = False  # other text: the next traceback was raised on its own
        place += 1


def _next_traceback(lines: Sequence[Line], indices: list[int], place: int) -> tuple[Traceback | None, int]:
    """Read from a head or a first frame to the exception line; (None, next) when it was cut before that."""
    opened = _OpenTraceback(lines[indices[place]].rank)
    while place < len(indices):
        index = indices[place]
        body = _text(lines[index])
        frame = _FRAME.match(body)
        if frame:
            opened.frames.append(frame.group(1))
        elif _START.match(body):
            if opened.frames:
                return None, place  # the next one begins here
        elif not _DEEP.match(body):
            error = _RAY.match(body) or _EXCEPTION.match(body)
            if error:
                return _close(lines, indices, place, opened, error)
            return None, place + 1
        opened.lines.append(index)
        place += 1
    return None, place


def _close(
    lines: Sequence[Line], indices: list[int], place: int, opened: _OpenTraceback, error: re.Match[str]
) -> tuple[Traceback, int]:
    raised = indices[place]
    exception, said = error.groups("")
    message = [said]
    opened.lines.append(raised)
    place += 1
    while len(message) < _MESSAGE_LINES and _continues(lines, indices, place):
        message.append(_text(lines[indices[place]]))
        opened.lines.append(indices[place])
        place += 1
    trace = Traceback(
        opened.rank, tuple(opened.lines), tuple(opened.frames), exception, "\n".join(message).strip(), raised
    )
    return trace, place


def _continues(lines: Sequence[Line], indices: list[int], place: int) -> bool:
    """An indented line right after the exception line belongs to its message."""
    if place == len(indices):
        return False
    line, before = lines[indices[place]], lines[indices[place - 1]]
    if line.number - before.number > _FAR:
        return False
    body = _text(line)
    if _PART.match(body):
        return False
    return _INDENTED.match(body) is not None


def _text(line: Line) -> str:
    return _GUTTER.sub("", line.body) if line.body.startswith("  ") else line.body
