"""Frames of stacks that are no Python tracebacks: C++ (c10, glog, gdb, glibc, Open MPI), Java, and the path of an error
code through NCCL's sources."""

import re
from collections.abc import Sequence

from diagnoser.model import Line

_RAISED_FROM = r"Exception raised from .{1,400} at .{1,400} \(most recent call first\)"
_FRAME = re.compile(
    rf"{_RAISED_FROM}|\s*frame #\d+: \S|\s*#\d+ +\S|\[[\w.-]+:\d+\] \[ *\d+\] \S"
    r"|\s+@ +0x[0-9a-f]+ +\S|\S{1,400}\(\S{0,400}\+0x[0-9a-f]+\) ?\[0x[0-9a-f]+\]|\s*\d* ?0x[0-9a-f]{8,} \S"
    r"|\s+at [\w.$/<>]{1,400}\([\w .:$-]{0,400}\)|NCCL INFO [\w./-]+\.\w+:\d+(?: \[\w+\])? -> \d+"
)
_HEADING = re.compile(
    rf"{_RAISED_FROM}|C\+\+ CapturedTraceback|(?:=+ )?Backtrace:?(?: =+)?$|Stack ?trace"
    r"|\*{3} Check failure stack trace"
)
"""Lines between an error and its frames: they make the line before them one that has a stack."""
_ERROR = re.compile(
    r"terminate called after throwing an instance of '|\s*what\(\): |F\d{4,8} [\d:.]+ +\d+ \S+:\d+\] "
    r"|\*{3} SIG[A-Z]+ |(?:\[[\w.-]+:\d+\] )?(?:\*{3} Process received signal |Signal: )"
    r"|Program (?:received|terminated with) signal SIG|(?:[\w./-]+:\d+ )?NCCL WARN "
    r"|(?:Exception in thread \"[^\"]*\" |: |Caused by: |py4j\.protocol\.\w+: )*"
    r"(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable|Fault|Failure)"
)
"""Lines of crashes and exceptions that frames follow."""
_MACHINERY = re.compile(
    r"c10::(?:Error|detail)|google::LogMessage|<unknown function>|\(unknown\)|(?:^|\s)(?:raise|abort|gsignal) ?\("
)
"""Frames that only make the error object, end the process, or name nothing."""
_FAR = 64
"""Lines below an error among which its frames are."""
_NEAR = 8
"""Lines between an error and its first frame: the rest of its message."""


def is_frame(body: str) -> bool:
    return _FRAME.match(body) is not None


def frame_of(lines: Sequence[Line], error: int) -> int | None:
    """The line that names the code in which an error was raised: the innermost frame that its process prints below.

    error: index of its line.
    """
    raised = lines[error]
    has_stack, in_frames = _ERROR.match(raised.body) is not None, False
    for index in range(error + 1, min(error + 1 + _FAR, len(lines))):
        line = lines[index]
        if line.speaker != raised.speaker:
            continue
        has_stack |= _HEADING.match(line.body) is not None
        if not has_stack:
            return None
        if is_frame(line.body):
            in_frames = True
            if not _MACHINERY.search(line.body):
                return index
        elif in_frames or line.number - raised.number > _NEAR:
            return None
    return None
