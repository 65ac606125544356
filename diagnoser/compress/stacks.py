"""Stacks that are no Python tracebacks, joined from kept lines, one voice at a time: C++ (c10, glog, gdb, glibc, Open
MPI), Java with its causes, NCCL's way of an error code, torchelastic's table of failures.

Ranks that print at once without a prefix are told apart by the numbers that most native frames carry: frame 3 belongs
to the stack that stands at frame 2.
"""

import re
from collections.abc import Iterator, Sequence
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
_FAR = 64
"""Lines between two lines of one stack, at most: other voices may have spoken in between."""
_NEAR = 8
"""Lines between a message and its stack."""
_MOST_OPEN = 64


@dataclass
class _OpenStack:
    """A stack that is being read. raised: -1 until a line says what is wrong. next: the number of its next frame."""

    kind: StackKind
    rank: int
    lines: list[int] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    exception: str = ""
    message: str = ""
    raised: int = -1
    next: int = 0
    follows: bool = False
    """It is the cause of the stack before."""


def join(lines: Sequence[Line], voices: Sequence[str]) -> tuple[Stack, ...]:
    """The stacks in ``lines``; ``voices`` names who speaks in each, so that interleaved ranks do not mix."""
    speech: dict[tuple[object, str, str], list[int]] = {}
    for index, voice in enumerate(voices):
        line = lines[index]
        who = _WHO.search(line.text[: len(line.text) - len(line.body)]) if "NCCL" in line.body else None
        speech.setdefault((line.stream, voice, who.group() if who else ""), []).append(index)
    found: list[Stack] = []
    for indices in speech.values():
        found += _linked(_Voice(lines).read(indices), len(found))
    return tuple(found)


def _linked(opened: list[_OpenStack], start: int) -> Iterator[Stack]:
    """start: how many stacks stand before these."""
    for at, one in enumerate(opened):
        caused = at + 1 < len(opened) and opened[at + 1].follows
        raised = one.raised if one.raised >= 0 else one.lines[0]
        yield Stack(
            *(one.kind, one.rank, tuple(one.lines), tuple(one.frames), one.exception, one.message.strip(), raised),
            cause=start + at + 1 if caused else -1,
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
            self._open = [one for one in self._open if self._lines[index].number - self._number(one) <= _FAR]
            body = self._lines[index].body
            if not any(step(index, body) for step in (self._native, self._java, self._nccl, self._table)):
                self._other(index, body)
                self._before = index
        told = [one for one in self._done if one.frames or (one.kind is _K.TABLE and one.exception)]
        return sorted(told, key=lambda one: one.lines[0])

    def _number(self, one: _OpenStack) -> int:
        return self._lines[one.lines[-1]].number

    def _begin(self, kind: StackKind, index: int, exception: str = "", message: str = "") -> _OpenStack:
        opened = _OpenStack(kind, self._lines[index].rank, [index], [], exception, message)
        opened.raised = index if exception or message else -1
        self._open = [*self._open[1 - _MOST_OPEN :], opened]
        self._done.append(opened)
        return opened

    def _last(self, kind: StackKind) -> _OpenStack | None:
        return next((one for one in reversed(self._open) if one.kind is kind), None)

    def _native(self, index: int, body: str) -> bool:
        if found := _THROWN.match(body):
            self._begin(_K.NATIVE, index, found["class"])
        elif found := _CRASHED.match(body):
            self._crashed(index, next(text for text in found.groups() if text))
        elif found := _WHAT.match(body):
            silent = next((one for one in self._open if one.kind is _K.NATIVE and not one.message), None)
            opened = silent or self._begin(_K.NATIVE, index)
            self._said(opened, index, found["said"])
        elif found := _CHECK.match(body):
            self._begin(_K.NATIVE, index, "Check failed", found["said"])
        elif (found := _FROM.match(body)) or _CAPTURED.match(body) or _CHECK_STACK.match(body):
            fresh = next((one for one in self._open if one.kind is _K.NATIVE and not one.frames), None)
            self._add(fresh or self._after_message(index), index, found["frame"] if found else "")
        elif found := _NUMBERED.match(body):
            self._numbered(
                index, int(found["c10"] or found["gdb"] or found["ompi"]), found["f1"] or found["f2"] or found["f3"]
            )
        elif found := _PLAIN.match(body):
            opened = self._last(_K.NATIVE) or self._begin(_K.NATIVE, index)
            self._add(opened, index, found["glog"] or found["glibc"] or found["bare"])
        else:
            return False
        return True

    def _after_message(self, index: int) -> _OpenStack:
        """A stack whose message stands in the line before."""
        near = self._before >= 0 and self._lines[index].number - self._lines[self._before].number <= _NEAR
        if not near:
            return self._begin(_K.NATIVE, index)
        return self._begin(_K.NATIVE, self._before, "", self._lines[self._before].body)

    def _crashed(self, index: int, said: str) -> None:
        """Open MPI says in two lines which signal it was."""
        opened = self._last(_K.NATIVE)
        if opened and not opened.frames and said.startswith("Signal: "):
            self._said(opened, index, said)
        else:
            self._begin(_K.NATIVE, index, said)

    def _numbered(self, index: int, number: int, frame: str) -> None:
        """The first stack that waits for this frame; a frame 0 that none waits for begins one."""
        waiting = [one for one in self._open if one.kind is _K.NATIVE and one.next == number]
        waiting = waiting or [one for one in self._open if one.kind is _K.NATIVE and number > one.next > 0][-1:]
        opened = waiting[0] if waiting else self._begin(_K.NATIVE, index)
        self._add(opened, index, frame)
        opened.next = number + 1

    def _java(self, index: int, body: str) -> bool:
        opened = self._last(_K.JAVA)
        if found := _AT.match(body):
            self._add(opened or self._begin(_K.JAVA, index), index, found["frame"])
        elif _MORE.match(body) and opened:
            opened.lines.append(index)
        elif found := _JAVA.match(body):
            follows = body.startswith("Caused by: ") and opened is not None
            self._begin(_K.JAVA, index, found["class"], found["said"] or "").follows = follows
        else:
            return False
        return True

    def _nccl(self, index: int, body: str) -> bool:
        opened = self._last(_K.NCCL)
        if found := _NCCL.match(body):
            opened = opened or self._begin(_K.NCCL, index)
            opened.exception = opened.exception or f"NCCL error {found['code']}"
            self._add(opened, index, found["frame"])
        elif found := _NCCL_SAID.match(body):
            self._begin(_K.NCCL, index, "", found["said"])
        else:
            return False
        return True

    def _table(self, index: int, body: str) -> bool:
        found = _FIELD.match(body)
        if not found:
            return False
        key, value, opened = found["key"], found["value"].strip(), self._last(_K.TABLE)
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

    def _said(self, opened: _OpenStack, index: int, said: str) -> None:
        opened.message, opened.raised = said, index
        if opened.lines[-1] != index:
            opened.lines.append(index)

    def _other(self, index: int, body: str) -> None:
        """Another line: it goes on with a message that has no frames yet, or it ends what is open."""
        if _SPACE.match(body):
            return
        last = self._open[-1] if self._open else None
        if last and last.kind is _K.NATIVE and last.message and not last.frames:
            last.message += "\n" + body
            last.lines.append(index)
        elif last and not (last.kind is _K.NCCL and not last.frames):
            self._open = [one for one in self._open if one.kind is _K.NATIVE and one.next > 0]
