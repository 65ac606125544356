"""Errors that a program caught and logged: a logger's line introduces them. Python prints an uncaught one bare.

A logged error is no failure yet: what the process does afterwards decides. One that the program calls fatal is.
"""

import re
from collections.abc import Collection

from diagnoser.model import Evidence, Traceback

_HEAD = 160
"""Characters at the start of a line in which a logger states its level."""
_RECORD, _READ = 4096, 400
"""Characters that are read of a record in JSON, and of a message."""
_LEVEL = re.compile(
    r"\b(?:WARN|WARNING|ERROR)\b|\"level(?:name)?\": ?\"(?:warn|warning|error)\""
    r"|^\W?[WE]\d{4} [\d:. ]+\S{1,60}\.py:\d+\]"
)
"""Levels of what went wrong and was caught; a library in C++ logs what it is about to raise."""
_GOES_ON = re.compile(
    r"\b(?:from scratch|continu\w+|fall\w* ?back|retry\w*|skip\w*|ignor\w*|keeping|instead|without (?:it|them)"
    r"|will use|using|replac\w+|best[- ]effort|non-?fatal|recover\w*)\b",
    re.IGNORECASE,
)
"""Words of a program that says how it goes on after an error."""
_FATAL = re.compile(
    r"\b(?:uncaught|unhandled|fatal|critical|crash\w*|abort\w*|terminat\w*|exiting|giving up|gave up|shutting down"
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
    body = _log_line(evidence, index, trace)
    if not bool(body):
        return False
    return not _FATAL.search(body[:_READ])


def goes_on(evidence: Evidence, index: int, trace: int = -1) -> bool:
    """Whether the program, where it logs the error of line ``index``, says how it goes on."""
    if not is_logged(evidence, index, trace):
        return False
    return bool(_GOES_ON.search(_log_line(evidence, index, trace)[:_READ]))


def spoke_on(evidence: Evidence, index: int, traced: Collection[int]) -> bool:
    """Whether the process that printed line ``index`` printed anything else later than an error. traced: indices of the
    lines of tracebacks."""
    voice = evidence.lines[index].voice
    for later in range(index + 1, len(evidence.lines)):
        line = evidence.lines[later]
        if later in traced:
            continue
        if line.voice != voice:
            continue
        if not line.body.strip():
            continue
        if not _is_logger_line(line.body):
            return True
    return False


def is_harmless(evidence: Evidence, trace: Traceback) -> bool:
    """Whether the program prints the traceback below a message that calls the error harmless."""
    return bool(_HARMLESS.search(_introduction(evidence, trace)[:_READ]))


def _log_line(evidence: Evidence, index: int, trace: int) -> str:
    """The logger's line of an error, "" without one."""
    body = evidence.lines[index].body
    if trace >= 0:
        body = _introduction(evidence, evidence.tracebacks[trace])
    return body if _is_logger_line(body) else ""


def _is_logger_line(body: str) -> bool:
    is_record = '{"' in body[:_HEAD]
    return bool(_LEVEL.search(body[: _RECORD if is_record else _HEAD]))


def _introduction(evidence: Evidence, trace: Traceback) -> str:
    """The line in front of the first traceback of a chain, by the same rank; "" where there is none."""
    for _ in evidence.tracebacks:
        if trace.cause < 0:
            break
        trace = evidence.tracebacks[trace.cause]
    first = evidence.lines[trace.start]
    if _is_logger_line(first.body):
        return first.body
    for line in reversed(evidence.lines[max(0, trace.start - 4) : trace.start]):
        if line.voice != first.voice:
            continue
        if line.number < first.number - 3:
            continue
        if line.body.strip():
            return line.body
    return ""
