"""Errors that a program caught and logged: a logger's line introduces them. Python prints an uncaught one bare.

A logged error is no failure yet: what the process does afterwards decides. One that the program calls fatal is.
"""

import re
from collections.abc import Collection

from diagnoser.model import Evidence, Line, Severity, Traceback

_HEAD = 160
"""Characters at the start of a line in which a logger states its level."""
_READ = 400
"""Characters that are read of a message."""
_LEVEL = re.compile(r"\b(?:WARN|WARNING|ERROR)\b")
_CAUGHT = (Severity.WARNING, Severity.ERROR)
"""Levels of what went wrong and was caught."""
_NATIVE = re.compile(r"^\W?[WEF]\d{3,8} [\d:. ]+(?:\d+ )?\S{1,60}\.(?:cc|cpp|cu|h|hpp):\d+\]")
"""The head of a library in C++, which logs what it is about to raise."""
_FATAL = re.compile(
    r"\b(?:uncaught|unhandled|fatal|critical|crash\w*|(?<!connection )abort\w*|terminat\w*|exiting"
    r"|giving up|gave up|shutting down"
    r"|(?:training|job|run|worker|main|trainer|actor|task)\b.{0,20}\b(?:failed|died|error))\b",
    re.IGNORECASE,
)
"""Words of a program that logs the error that ends it."""

_HARMLESS = re.compile(r"(?i)\b(?:safe to ignore|safely ignored?|can be ignored|(?:is|are) harmless)\b")
"""Words of a program that says of an error, at whatever level, that it is none."""


def is_logged(evidence: Evidence, index: int, trace: int = -1) -> bool:
    """Whether the program itself logged the error of line ``index`` and did not call it its end.

    trace: index of the traceback that ends in the line, or -1.
    """
    line = _log_line(evidence, index, trace)
    if line is None:
        return False
    return not _FATAL.search(line.body[:_READ])


def spoke_on(evidence: Evidence, index: int, traced: Collection[int]) -> bool:
    """Whether the process that printed line ``index`` printed anything else later than an error. traced: indices of the
    lines of tracebacks."""
    speaker = evidence.lines[index].speaker
    for later in range(index + 1, len(evidence.lines)):
        line = evidence.lines[later]
        if later in traced:
            continue
        if not line.body.strip():
            continue
        if line.speaker != speaker:
            continue
        if not _is_logger_line(line):
            return True
    return False


def is_harmless(evidence: Evidence, trace: Traceback) -> bool:
    """Whether the program prints the traceback below a message that calls the error harmless."""
    line = _introduction(evidence, trace)
    return line is not None and calls_harmless(line.body)


def calls_harmless(body: str) -> bool:
    """Whether a line calls the error that it tells of harmless."""
    return bool(_HARMLESS.search(body[:_READ]))


def _log_line(evidence: Evidence, index: int, trace: int) -> Line | None:
    """The logger's line of an error, None without one."""
    line: Line | None = evidence.lines[index]
    if trace >= 0:
        line = _introduction(evidence, evidence.tracebacks[trace])
    return line if line and _is_logger_line(line) else None


def _is_logger_line(line: Line) -> bool:
    if _LEVEL.search(line.body[:_HEAD]):
        return True
    if line.severity not in _CAUGHT:
        return False
    return not _NATIVE.match(line.body)


def _introduction(evidence: Evidence, trace: Traceback) -> Line | None:
    """The line in front of the first traceback of a chain, by the same rank; None where there is none."""
    start = _first_of_chain(evidence, trace).start
    first = evidence.lines[start]
    if _LEVEL.search(first.body[:_HEAD]):
        return first
    ends = {other.raised for other in evidence.tracebacks}
    for index in range(start - 1, max(0, start - 4) - 1, -1):
        line = evidence.lines[index]
        if index in ends:
            return None  # the end of another one, which a logger may have introduced
        if line.speaker != first.speaker:
            continue
        if line.number < first.number - 3:
            continue
        if line.body.strip():
            return line
    return None


def _first_of_chain(evidence: Evidence, trace: Traceback) -> Traceback:
    """The traceback that the others of a chain follow."""
    for _ in evidence.tracebacks:
        if trace.cause < 0:
            break
        cause = evidence.tracebacks[trace.cause]
        if cause.start > trace.start:
            break  # quoted below by what carries it
        trace = cause
    return trace
