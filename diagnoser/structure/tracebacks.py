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
_RAY = re.compile(r"^((?:\w+\.)*RayTaskError)(?:\([\w.]+\))?: (.*)$")
"""Ray raises where the caller waits, and quotes what was raised where the task ran."""
_EXCEPTION = re.compile(
    r"^(?!(?:DEBUG|INFO|NOTE|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(.*))?$"
)
_DEEP = re.compile(r"^\s+\S|^[\s~^]*$")
_PART = re.compile(f"{_START.pattern}|{_FRAME.pattern}|{_CHAIN.pattern}")
"""Any line that a traceback begins with, seen at one look: most lines are none."""
_MESSAGE_LINES = 12
_FAR = 64
"""Lines between two lines of one message, at most: other voices may have spoken in between."""


@dataclass
class _OpenTraceback:
    """A traceback that is being read."""

    rank: int
    lines: list[int] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)


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
                if chain and _RAY.match(_text(lines[chain[-1].raised])) and trace.lines[0] > chain[-1].raised:
                    chain[-1] = replace(chain[-1], cause=len(chain))  # what Ray quotes was raised first
                chain.append(replace(trace, cause=len(chain) - 1) if chained and len(chain) > start else trace)
    return tuple(chain)


def deal(lines: Sequence[Line], indices: list[int]) -> list[list[int]]:
    """The lines of one voice, dealt to lanes where several tracebacks are printed at once without a prefix.

    The ranks of a job run the same code: a frame goes to the traceback that has all frames in front of it in the one
    that is furthest, code to the frame that waits for it, an exception to the traceback that was added to last.
    """
    dealer = _Dealer(lines)
    for index in indices:
        dealer.take(index, _text(lines[index]))
    return [lane for lane in dealer.lanes if lane]


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
        alone = [index for lane in self._lanes if not lane.shared for index in lane.indices]
        lanes = [lane.indices for lane in self._lanes if lane.shared]
        return sorted([*lanes, sorted(self._rest + alone)], key=lambda lane: lane[:1])

    def take(self, index: int, body: str) -> None:
        """Give a line to the traceback that it belongs to, or to the rest."""
        if not self._open and not self._last and not _START.match(body):
            self._rest.append(index)
            return
        number = self._lines[index].number
        self._open = [lane for lane in self._open if number - self._lines[lane.indices[-1]].number <= _FAR]
        if _START.match(body):
            self._begin(index)
        elif not (self._frame(index, body) or self._code_line(index, body) or self._exception(index, body)):
            self._rest.append(index)
            # Other text ends a traceback, unless several are under way: then it may be of another process.
            if len(self._open) < 2:
                self._open, self._last = [], None

    def _frame(self, index: int, body: str) -> bool:
        frame = _FRAME.match(body)
        if not frame or not self._open:
            return False
        self._add(self._for_frame(frame.group(1)), index, frame.group(1))
        return True

    def _code_line(self, index: int, body: str) -> bool:
        if not self._last or not _DEEP.match(body):
            return False
        self._add(self._for_code(body), index)
        return True

    def _exception(self, index: int, body: str) -> bool:
        """End the traceback that was added to last, else the newest one."""
        is_exception = _EXCEPTION.match(body)
        if self._last in self._open and (is_exception or _RAY.match(body)):
            lane = self._last
        elif self._open and is_exception:
            lane = self._open[-1]
        else:
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
        same_code = [lane for lane in waiting if self._code.get(lane.frames[-1]) == body]
        lane = (same_code or waiting or [self._last or self._open[-1]])[0]
        if lane.waits:
            self._code.setdefault(lane.frames[-1], body)
        return lane

    def _for_frame(self, frame: str) -> _Lane:
        longest = max(self._open, key=lambda lane: len(lane.frames)).frames
        for lane in self._open:
            if [*lane.frames, frame] == longest[: len(lane.frames) + 1]:
                return lane
        furthest = [lane for lane in self._open if lane.frames == longest]
        return furthest[0] if furthest else self._open[-1]


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
        elif _START.match(body) or _FRAME.match(body):
            trace, place = _next_traceback(lines, indices, place)
            if trace:
                yield trace, chained
                chained = False
            continue
        elif body.strip() and not _DEEP.match(body):
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
            if opened.lines and opened.frames:
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
    raised, message = indices[place], [error.group(2) or ""]
    opened.lines.append(raised)
    place += 1
    while place < len(indices) and len(message) < _MESSAGE_LINES and _continues(lines, indices, place):
        message.append(_text(lines[indices[place]]))
        opened.lines.append(indices[place])
        place += 1
    trace = Traceback(
        opened.rank, tuple(opened.lines), tuple(opened.frames), error.group(1), "\n".join(message).strip(), raised
    )
    return trace, place


def _continues(lines: Sequence[Line], indices: list[int], place: int) -> bool:
    """An indented line right after the exception line belongs to its message."""
    line, before = lines[indices[place]], lines[indices[place - 1]]
    body = _text(line)
    if line.number - before.number > _FAR or _FRAME.match(body) or _START.match(body) or _CHAIN.match(body):
        return False
    return body[:1] in (" ", "\t") and bool(body.strip())


def _text(line: Line) -> str:
    return _GUTTER.sub("", line.body) if line.body.startswith("  ") else line.body
