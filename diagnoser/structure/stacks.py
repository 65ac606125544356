"""Stacks that are no Python tracebacks, joined from kept lines, one voice at a time: C++ (c10, glog, gdb, glibc, Open
MPI), Java with its causes, NCCL's way of an error code, torchelastic's table of failures.

Ranks that print at once without a prefix are told apart by frame numbers, which most native frames carry: frame 3
belongs to the stack that is at frame 2.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from diagnoser.model import Line, Stack, StackKind

_K = StackKind
_NUMBERED = re.compile(
    r"^\s*frame #(?P<c10>\d+): (?P<f1>.+)"
    r"|^\s*#(?P<gdb>\d+) +(?:0x[0-9a-f]+ )?(?:in )?(?P<f2>\S.*)"
    r"|^\[[\w.-]+:\d+\] \[ *(?P<ompi>\d+)\] (?P<f3>.+)"
)
_PLAIN = re.compile(
    r"^\s+@ +0x[0-9a-f]+ +(?P<glog>\S.*)"
    r"|^(?P<glibc>\S+\(\S*\+0x[0-9a-f]+\) ?\[0x[0-9a-f]+\])"
    r"|^\s*\d* ?0x[0-9a-f]{8,} (?P<bare>\S.*)"
)
_THROWN = re.compile(r"^terminate called after throwing an instance of '(?P<class>[^']+)'")
_WHAT = re.compile(r"^\s*what\(\): +(?P<said>.*)")
_FROM = re.compile(r"^Exception raised from (?P<frame>.+ at .+?) \(most recent call first\)")
_CAPTURED = re.compile(r"^C\+\+ CapturedTraceback|^(?:=+ )?Backtrace:?(?: =+)?$|^Stack ?trace")
_CRASHED = re.compile(
    r"^(?:\*{3} (?P<glog>SIG[A-Z]+) |(?:\[[\w.-]+:\d+\] )?\*{3} (?P<ompi>Process received signal) "
    r"|(?:\[[\w.-]+:\d+\] )(?P<signal>Signal: .+)|Program (?:received|terminated with) signal (?P<gdb>SIG[A-Z]+))"
)
_CHECK = re.compile(r"^F\d{4,8} [\d:.]+ +\d+ \S+:\d+\] (?P<said>.*)")
_CHECK_STACK = re.compile(r"^\*{3} Check failure stack trace")
_JAVA = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" |: |Caused by: |py4j\.protocol\.\w+: )*"
    r"(?P<class>(?:[a-z][\w$]*\.){1,}[A-Z][\w$]*(?:Exception|Error|Throwable|Fault|Failure)\w*)(?:: (?P<said>.*))?$"
)
_AT = re.compile(r"^\s+at (?P<frame>[\w.$/<>]+\([\w .:$-]*\))")
_MORE = re.compile(r"^\s+\.\.\. \d+ more")
_NCCL = re.compile(r"^NCCL INFO (?P<frame>[\w./-]+\.\w+:\d+(?: \[\w+\])?) -> (?P<code>\d+)")
_NCCL_SAID = re.compile(r"^(?:[\w./-]+:\d+ )?NCCL WARN (?P<said>.*)")
_WHO = re.compile(r"[\w.-]+:\d+:\d+ \[\d+\]")
_FIELD = re.compile(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback) *: (?P<value>.*)")
_SPACE = re.compile(r"^\s*$|^[=-]{4,}$|^\s*\[\d+\]:\s*$")
_PARTS = [_THROWN, _CRASHED, _WHAT, _CHECK, _FROM, _CAPTURED, _CHECK_STACK, _NUMBERED, _PLAIN]
_PARTS += [_JAVA, _AT, _MORE, _NCCL, _NCCL_SAID, _FIELD]
_PART = re.compile("|".join(re.sub(r"\(\?P<\w+>", "(?:", part.pattern) for part in _PARTS))
"""Any line of a stack, seen at one look: most lines are none."""
_FAR = 64
"""Lines between two lines of one stack, at most: other voices may have spoken in between."""
_NEAR = 8
"""Lines between a message and its stack."""
_MOST_OPEN = 64


@dataclass
class _OpenStack:
    """A stack that is being read. raised: the line that says what is wrong, its first one until then. next: the number
    of its next frame."""

    kind: StackKind
    rank: int
    raised: int
    lines: list[int] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    exception: str = ""
    message: str = ""
    next: int = 0
    follows: bool = False
    """It is the cause of the preceding stack."""

    @property
    def is_whole(self) -> bool:
        """Whether it has frames. A child of a failure table only has an exit code."""
        if self.frames:
            return True
        if self.kind is not _K.TABLE:
            return False
        return bool(self.exception)


def join(lines: Sequence[Line], voices: Sequence[str]) -> tuple[Stack, ...]:
    """The stacks in ``lines``; ``voices`` names who speaks in each, so that interleaved ranks do not mix."""
    speech: dict[tuple[object, str, str], list[int]] = {}
    for index, voice in enumerate(voices):
        line = lines[index]
        speech.setdefault((line.stream, voice, _nccl_process(line)), []).append(index)
    stacks: list[Stack] = []
    for indices in speech.values():
        stacks += _linked(_Voice(lines).read(indices), len(stacks))
    return tuple(stacks)


def _nccl_process(line: Line) -> str:
    if "NCCL" not in line.body:
        return ""
    who = _WHO.search(line.text[: len(line.text) - len(line.body)])
    return who.group() if who else ""


def _linked(opened: list[_OpenStack], start: int) -> Iterator[Stack]:
    """start: number of stacks before these."""
    for index, stack in enumerate(opened):
        cause = -1
        for following in opened[index + 1 : index + 2]:
            if following.follows:
                cause = start + index + 1
        yield Stack(
            *(stack.kind, stack.rank, tuple(stack.lines), tuple(stack.frames)),
            *(stack.exception, stack.message.strip(), stack.raised),
            cause=cause,
        )


class _Voice:
    """Reads the lines of one voice."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._open: list[_OpenStack] = []
        self._done: list[_OpenStack] = []
        self._before = -1
        """The line before, where it is no part of a stack."""

    def read(self, indices: list[int]) -> list[_OpenStack]:
        """Stacks with frames, and children of failure tables, in the order in which they began."""
        for index in indices:
            body = self._lines[index].body
            if self._open:
                earliest = self._lines[index].number - _FAR
                self._open = [stack for stack in self._open if self._lines[stack.lines[-1]].number >= earliest]
            if not self._is_part(index, body):
                self._other(index, body)
                self._before = index
        stacks = [stack for stack in self._done if stack.is_whole]
        return sorted(stacks, key=lambda stack: stack.lines[0])

    def _is_part(self, index: int, body: str) -> bool:
        if not _PART.match(body):
            return False
        return any(step(index, body) for step in (self._native, self._java, self._nccl, self._table))

    def _begin(self, kind: StackKind, index: int, exception: str = "", message: str = "") -> _OpenStack:
        opened = _OpenStack(kind, self._lines[index].rank, index, [index], [], exception, message)
        self._open = [*self._open[1 - _MOST_OPEN :], opened]
        self._done.append(opened)
        return opened

    def _last(self, kind: StackKind) -> _OpenStack | None:
        return next((stack for stack in reversed(self._open) if stack.kind is kind), None)

    def _last_or_new(self, kind: StackKind, index: int) -> _OpenStack:
        return self._last(kind) or self._begin(kind, index)

    def _native(self, index: int, body: str) -> bool:
        for form, read in _NATIVE_FORMS:
            match = form.match(body)
            if match:
                read(self, index, match)
                return True
        return False

    def _open_native(self) -> list[_OpenStack]:
        """List the native stacks that are being read, in the order in which they began."""
        return [stack for stack in self._open if stack.kind is _K.NATIVE]

    def _thrown(self, index: int, match: re.Match[str]) -> None:
        self._begin(_K.NATIVE, index, match["class"])

    def _crashed(self, index: int, match: re.Match[str]) -> None:
        """Begin a stack with its signal. Open MPI tells in two lines which signal it was: the second is a message."""
        signal = _text(match, "glog", "ompi", "signal", "gdb")
        opened = self._last(_K.NATIVE)
        if opened and not opened.frames and signal.startswith("Signal: "):
            self._set_message(opened, index, signal)
        else:
            self._begin(_K.NATIVE, index, signal)

    def _what(self, index: int, match: re.Match[str]) -> None:
        """Give the message to the first stack that has none."""
        for opened in self._open_native():
            if not opened.message:
                break
        else:
            opened = self._begin(_K.NATIVE, index)
        self._set_message(opened, index, match["said"])

    def _check_failed(self, index: int, match: re.Match[str]) -> None:
        self._begin(_K.NATIVE, index, "Check failed", match["said"])

    def _before_frames(self, index: int, match: re.Match[str]) -> None:
        """Add a heading of frames to the first stack that has no frames."""
        for opened in self._open_native():
            if not opened.frames:
                break
        else:
            opened = self._after_message(index)
        self._add(opened, index, match.groupdict().get("frame", ""))

    def _numbered_frame(self, index: int, match: re.Match[str]) -> None:
        """Add a frame to the first stack that waits for its number. A frame 0 that none waits for begins a stack."""
        number = int(_text(match, "c10", "gdb", "ompi"))
        opened = self._waiting_for(number) or self._begin(_K.NATIVE, index)
        self._add(opened, index, _text(match, "f1", "f2", "f3"))
        opened.next = number + 1

    def _waiting_for(self, number: int) -> _OpenStack | None:
        """Choose the first stack that waits for a frame, else the newest of which frames are missing in between."""
        missing = None
        for stack in self._open_native():
            if stack.next == number:
                return stack
            if number > stack.next > 0:
                missing = stack
        return missing

    def _plain_frame(self, index: int, match: re.Match[str]) -> None:
        self._add(self._last_or_new(_K.NATIVE, index), index, _text(match, "glog", "glibc", "bare"))

    def _after_message(self, index: int) -> _OpenStack:
        """Begin a stack, with the line before as its message if that one is near."""
        if self._has_message_near(index):
            return self._begin(_K.NATIVE, self._before, "", self._lines[self._before].body)
        return self._begin(_K.NATIVE, index)

    def _has_message_near(self, index: int) -> bool:
        if self._before < 0:
            return False
        return self._lines[index].number - self._lines[self._before].number <= _NEAR

    def _java(self, index: int, body: str) -> bool:
        opened = self._last(_K.JAVA)
        if match := _AT.match(body):
            self._add(self._last_or_new(_K.JAVA, index), index, match["frame"])
        elif opened and _MORE.match(body):
            opened.lines.append(index)
        elif match := _JAVA.match(body):
            exception, said = match.groups("")
            follows = body.startswith("Caused by: ") and opened is not None
            self._begin(_K.JAVA, index, exception, said).follows = follows
        else:
            return False
        return True

    def _nccl(self, index: int, body: str) -> bool:
        if match := _NCCL.match(body):
            opened = self._last_or_new(_K.NCCL, index)
            if not opened.exception:
                opened.exception = f"NCCL error {match['code']}"
            self._add(opened, index, match["frame"])
        elif match := _NCCL_SAID.match(body):
            self._begin(_K.NCCL, index, "", match["said"])
        else:
            return False
        return True

    def _table(self, index: int, body: str) -> bool:
        if not (match := _FIELD.match(body)):
            return False
        key, value, opened = match["key"], match["value"].strip(), self._last(_K.TABLE)
        if key == "time" or opened is None:
            opened = self._begin(_K.TABLE, index)
        else:
            opened.lines.append(index)
        if key == "rank":
            opened.rank = int(number.group()) if (number := re.match(r"\d+", value)) else -1
        elif key == "exitcode":
            opened.exception, opened.raised = f"exitcode {value}", index
        elif key == "traceback":
            opened.message = value
        return True

    def _add(self, opened: _OpenStack, index: int, frame: str) -> None:
        if opened.lines[-1] != index:
            opened.lines.append(index)
        if frame:
            opened.frames.append(frame)

    def _set_message(self, opened: _OpenStack, index: int, message: str) -> None:
        opened.message, opened.raised = message, index
        if opened.lines[-1] != index:
            opened.lines.append(index)

    def _other(self, index: int, body: str) -> None:
        """Any other line: it continues a message that has no frames yet, or ends what is open."""
        if not self._open:
            return
        if _SPACE.match(body):
            return
        last = self._open[-1]
        if not last.frames:
            if last.kind is _K.NCCL:
                return
            if last.kind is _K.NATIVE and last.message:
                last.message += "\n" + body
                last.lines.append(index)
                return
        self._open = [stack for stack in self._open_native() if stack.next > 0]


def _text(match: re.Match[str], *names: str) -> str:
    """The text of the one group that matched."""
    text: str = next(filter(None, match.group(*names)))
    return text


_NATIVE_FORMS: tuple[tuple[re.Pattern[str], Callable[[_Voice, int, re.Match[str]], None]], ...] = (
    (_THROWN, _Voice._thrown),  # names the class; its message follows as what()
    (_CRASHED, _Voice._crashed),  # a signal
    (_WHAT, _Voice._what),  # the message of the exception that was named before
    (_CHECK, _Voice._check_failed),  # glog: class and message in one line
    (_FROM, _Voice._before_frames),  # c10: where it was raised, then the frames
    (_CAPTURED, _Voice._before_frames),  # a heading of frames
    (_CHECK_STACK, _Voice._before_frames),  # glog's heading of frames
    (_NUMBERED, _Voice._numbered_frame),
    (_PLAIN, _Voice._plain_frame),
)
"""How lines of native stacks look, and what reads them; the first form that fits decides."""
