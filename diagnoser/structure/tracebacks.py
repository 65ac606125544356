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
        for lane in deal(lines, indices):
            start = len(chain)
            for trace, chained in _read(lines, lane):
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


def deal(lines: Sequence[Line], indices: list[int]) -> list[list[int]]:
    """The lines of one voice, dealt to lanes where several tracebacks are printed at once without a prefix.

    The ranks of a job run the same code: a frame goes to the traceback that has all frames in front of it in the one
    that is furthest, code to the frame that waits for it, an exception to the traceback that was added to last.
    """
    dealer = _Dealer(lines)
    for index in indices:
        dealer.take(index, _text(lines[index]))
    return list(filter(None, dealer.lanes))


class _Lane:
    """One traceback under way. waits: for the code of its last frame. shared: another one was under way as well."""

    def __init__(self, index: int, shared: bool) -> None:
        self.indices = [index]
        self.frames: list[str] = []
        self.waits = False
        self.shared = shared


class _Dealer:
    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._rest: list[int] = []
        self._lanes: list[_Lane] = []
        self._open: list[_Lane] = []
        self._last: _Lane | None = None
        self._code: dict[str, str] = {}
        """Frame -> the line below it."""

    @property
    def lanes(self) -> list[list[int]]:
        """List the lines of each traceback that another one was printed into, and all other lines as one lane."""
        alone, lanes = self._rest.copy(), list[list[int]]()
        for lane in self._lanes:
            if lane.shared:
                lanes.append(lane.indices)
            else:
                alone += lane.indices
        return sorted([*lanes, sorted(alone)], key=lambda lane: lane[:1])

    def take(self, index: int, body: str) -> None:
        """Give a line to the traceback that it belongs to, or to the rest."""
        if not (self._open or self._last or _START.match(body)):
            self._rest.append(index)
            return
        number = self._lines[index].number
        self._open = [lane for lane in self._open if number - self._lines[lane.indices[-1]].number <= _FAR]
        if _START.match(body):
            self._begin(index)
        elif not self._is_taken(index, body):
            self._rest.append(index)
            # Other text ends a traceback, unless several are under way: then it may be of another process.
            if len(self._open) < 2:
                self._open, self._last = [], None

    def _is_taken(self, index: int, body: str) -> bool:
        if self._frame(index, body):
            return True
        if self._code_line(index, body):
            return True
        return self._exception(index, body)

    def _frame(self, index: int, body: str) -> bool:
        if not self._open:
            return False
        frame = _FRAME.match(body)
        if not frame:
            return False
        self._add(self._for_frame(frame.group(1)), index, frame.group(1))
        return True

    def _code_line(self, index: int, body: str) -> bool:
        if not self._last:
            return False
        if not _DEEP.match(body):
            return False
        self._add(self._for_code(body), index)
        return True

    def _exception(self, index: int, body: str) -> bool:
        """End the traceback that was added to last, else the newest one."""
        if not self._open:
            return False
        lane, error = self._open[-1], _EXCEPTION.match(body)
        if self._last in self._open:
            lane, error = self._last, error or _RAY.match(body)
        if not error:
            return False
        self._add(lane, index)
        self._open.remove(lane)
        return True

    def _begin(self, index: int) -> None:
        for lane in self._open:
            lane.shared = True
        self._last = _Lane(index, shared=bool(self._open))
        self._open.append(self._last)
        self._lanes.append(self._last)

    def _add(self, lane: _Lane, index: int, frame: str = "") -> None:
        lane.indices.append(index)
        lane.waits = bool(frame)
        if frame:
            lane.frames.append(frame)
        self._last = lane

    def _for_code(self, body: str) -> _Lane:
        """Choose the lane whose last frame has this code: a frame has the same code in every process."""
        waiting = [lane for lane in self._open if lane.waits]
        for lane in waiting:
            if self._code.get(lane.frames[-1]) == body:
                return lane
        lane = next(iter(waiting), self._last or self._open[-1])
        if lane.waits:
            self._code.setdefault(lane.frames[-1], body)
        return lane

    def _for_frame(self, frame: str) -> _Lane:
        furthest = max(self._open, key=lambda lane: len(lane.frames))
        for lane in self._open:
            if [*lane.frames, frame] == furthest.frames[: len(lane.frames) + 1]:
                return lane
        return furthest


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
