"""What a process complained of last, where nothing else in the log tells of a failure.

A Unix program that gives up prints its name, a colon and the reason, and ends; a logger prints the reason as an error.
No exit code need be in the log. What the process prints below it shows that it went on, so only the end of what it
printed counts.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from diagnoser.model import Line, Severity
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_sources import RuleLog
from diagnoser.rules.last_words import REPORTED, of_words

_READ = 400
"""Characters of a line that are read."""
_NAMED = re.compile(r"(?:/[\w./+-]{1,200}/)?[a-z][\w.+-]{1,40}: (?P<message>\S.*)")
"""A program's name in front of what it says."""
_REASON = re.compile(
    r"(?i)\b(?:not?(?= )|must|cannot|can't|could|exceed\w*|undefined|invalid|illegal|bad|wrong|unknown|unexpected"
    r"|missing|error|fail\w*|refus\w+|denied|unable|fatal)\b"
)
"""Words of a reason to give up."""
_BELOW = re.compile(r"\s|CallStack \(from |$")
"""How lines begin that belong to a complaint above them."""


def from_final_complaints(candidates: Collection[Candidate], log: RuleLog) -> Iterator[Candidate]:
    """The first complaint that a process ended with, where no line tells of a failure or of a clean end."""
    if log.end is not None or any(candidate.is_failing for candidate in candidates):
        return
    by_speaker: dict[object, list[int]] = {}
    for index, line in enumerate(log.evidence.lines):
        by_speaker.setdefault(line.speaker, []).append(index)
    ends = (_complaint_at_end(printed, log.evidence.lines) for printed in by_speaker.values())
    first = min((index for index in ends if index is not None), default=None)
    if first is not None:
        yield _from_line(first, log)


def _complaint_at_end(printed: Sequence[int], lines: Sequence[Line]) -> int | None:
    """The first of the complaints that nothing else follows."""
    first = None
    for index in reversed(printed):
        line = lines[index]
        if _complains(line):
            first = index
        elif not _BELOW.match(line.body):
            break
    return first


def _complains(line: Line) -> bool:
    if line.severity is not None:
        return line.severity >= Severity.ERROR
    named = _NAMED.match(line.body[:_READ])
    return named is not None and bool(_REASON.search(named["message"]))


def _from_line(index: int, log: RuleLog) -> Candidate:
    """The line as its words name it, else as a failure of which nothing is known."""
    line = log.evidence.lines[index]
    named = _NAMED.match(line.body[:_READ])
    raised = log.tables.exceptions.raised("", named["message"] if named else line.body)
    kind, _ = log.tables.name(raised) or (raised.class_type or FailureType.RUNTIME_ERROR, "")
    why = "the process printed this complaint, and nothing after it"
    return replace(of_words(index, line, kind, why), by=REPORTED, last_words=True)
