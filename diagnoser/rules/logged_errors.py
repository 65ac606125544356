"""Errors that a program caught and logged: a logger's line introduces them, where Python itself prints an uncaught one bare.

A logged error is no failure yet: what the process does afterwards decides. One that the program calls fatal is.
"""

import re

from diagnoser.model import Evidence, Line, Traceback

_HEAD = 160
"""Characters at the start of a line in which a logger states its level."""
_LEVEL = re.compile(r"\b(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR)\b|\"level(?:name)?\": ?\"(?:debug|info|warn|warning|error)\"")
_GLOG = re.compile(r"^\W?[IWE]\d{4} \d\d:\d\d:\d\d")
_FATAL = re.compile(
    r"\b(?:uncaught|unhandled|fatal|critical|crash\w*|abort\w*|terminat\w*|exiting|giving up|gave up|shutting down"
    r"|(?:training|job|run|worker|main|trainer|actor|task)\b.{0,20}\b(?:failed|died|error))\b",
    re.IGNORECASE,
)
"""Words of a program that logs the error that ends it."""


def is_logged(evidence: Evidence, index: int, trace: int = -1) -> bool:
    """Whether the program itself logged the error of line ``index`` and did not call it its end.

    trace: index of the traceback that ends in the line, or -1.
    """
    line = _introduction(evidence, evidence.tracebacks[trace]) if trace >= 0 else evidence.lines[index]
    return line is not None and _is_logger_line(line.body) and not _FATAL.search(line.body[:400])


def _is_logger_line(body: str) -> bool:
    return bool(_LEVEL.search(body[:_HEAD] if not body.lstrip().startswith("{") else body[:4096]) or _GLOG.match(body))


def _introduction(evidence: Evidence, trace: Traceback) -> Line | None:
    """The line in front of the first traceback of a chain, by the same rank; None where there is none."""
    seen = 0
    while trace.cause >= 0 and seen < len(evidence.tracebacks):
        trace, seen = evidence.tracebacks[trace.cause], seen + 1
    start = trace.lines[0] if trace.lines else trace.raised
    first = evidence.lines[start]
    if _is_logger_line(first.body):
        return first
    before = (evidence.lines[index] for index in range(start - 1, max(-1, start - 5), -1))
    own = (line for line in before if (line.stream, line.rank) == (first.stream, first.rank) and line.body.strip())
    return next((line for line in own if line.number >= first.number - 3), None)
