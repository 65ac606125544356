"""The last words of processes of which no rule knows a line: what they say near the end of a log, and what a process
printed before another one reported that it had ended in failure."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from diagnoser.model import ExitReport, Line, Severity
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_sources import EXIT_CODE, RuleLog
from diagnoser.rules.likely_lines import shape_of
from diagnoser.rules.schema import Role, Specificity

_LAST_WORDS = 60
"""Lines before the end of a stream in which keywords alone may count: a run that logs on for longer survived them."""
_TRYING = 3
"""Lines before the end of a stream in which a retry is no calm word: the run has ended before it got through."""
_RETRIES = re.compile(r"\bretry|\bretries\b|\b(?:try|trying) again\b", re.IGNORECASE)
_MILD = (Severity.DEBUG, Severity.INFO, Severity.WARNING)
_NUMBER = re.compile(r"\d+")
_REPORTS = 8
"""Reports that are looked into: of a thousand ranks that end alike the first ones tell as much."""
_SAME = 2
"""Complaints of one shape that a process may have among its last words: what it prints again and again is routine."""
_COMPLAINT = re.compile(r"(?i)\b(?:unknown|unrecogni[sz]ed|wrong|bad)\b")
"""Words that complain where a process is known to have failed."""
_SHAPE = 200
"""Characters of a line that tell one shape from another."""
_AROUND_NAME = "[]<>():| "
_NAME = re.compile(r"[A-Za-z][\w.-]*\w")
"""What a report may call a process."""
REPORTED = "heuristic:last_words"
"""Decider that reads what a process printed last before its end was reported."""


def from_last_words(candidates: Sequence[Candidate], covered: Collection[int], log: RuleLog) -> Iterator[Candidate]:
    """What the words of the last lines say, where since the last clean end nothing tells why a process ended.

    covered: lines that are candidates already.
    """
    done = max((c.line for c in candidates if c.is_completed), default=-1)
    end = death = len(log.evidence.lines)
    for candidate in candidates:
        if candidate.line <= done:
            continue
        if not candidate.is_failing:
            continue
        if not _is_death(candidate):
            return
        death = min(death, candidate.line)
    for cause in _from_keywords(covered, log):
        if death < end and _is_crash(cause):
            continue  # words of a crash say no more than the death does
        if done < cause.line < death:
            yield cause


def _is_death(candidate: Candidate) -> bool:
    """The line says how a process ended, not why: an abort follows the error that led to it, a code has no words."""
    if candidate.role is not Role.SYMPTOM:
        return False
    if _is_crash(candidate):
        return True
    return candidate.by == EXIT_CODE


def _is_crash(candidate: Candidate) -> bool:
    return candidate.type is FailureType.SEGMENTATION_FAULT


def _from_keywords(covered: Collection[int], log: RuleLog) -> Iterator[Candidate]:
    """Lines near the end whose keywords complain of a failure."""
    last_numbers = log.evidence.last_numbers
    for index, line in enumerate(log.evidence.lines):
        left = last_numbers[line.stream] - line.number
        if index in covered:
            continue
        if left > _LAST_WORDS:
            continue
        reads = log.tables.keywords.complains
        if left < _TRYING and _RETRIES.search(line.body):
            reads = log.tables.keywords.says
        kind = reads(line.body)
        if kind is not None:
            yield of_words(index, line, kind, "no rule knows this line; its words speak of it")


def of_words(index: int, line: Line, kind: FailureType, why: str) -> Candidate:
    """The line as its keywords name it."""
    return Candidate(index, kind, Role.ROOT, "heuristic:words", why, Specificity.WORD, rank=line.known_rank)


def from_reported(candidates: Sequence[Candidate], log: RuleLog) -> Iterator[Candidate]:
    """The last words of the first process that is reported to have failed, where the log shows no other reason.

    A report about a process says only that it ended; why is in what the process itself printed last.
    """
    if any(map(_is_reason, candidates)):
        return
    reported = {candidate.line for candidate in candidates if candidate.exit}
    reports = [report for report in log.evidence.exits if report.failed and report.line in reported]
    if not all(report.code for report in reports):
        return  # who was killed had no time for words
    for report in reports[:_REPORTS]:
        index = _last_words_before(report, log)
        if index is not None:
            yield _from_words_before(index, log)
            return


def _is_reason(candidate: Candidate) -> bool:
    """Whether it is a failure that says more than that a process or the run ended."""
    if candidate.exit:
        return False
    return candidate.is_failing and not candidate.is_completed


def _from_words_before(index: int, log: RuleLog) -> Candidate:
    """The line as its words name it, else as a failure of which nothing is known."""
    raised = log.tables.exceptions.raised("", log.evidence.lines[index].body)
    kind, _ = log.tables.named(raised)
    why = "the process printed it last before its end was reported"
    return replace(of_words(index, log.evidence.lines[index], kind, why), by=REPORTED, last_words=True)


def _last_words_before(report: ExitReport, log: RuleLog) -> int | None:
    """Of the complaints that stand together at the end of what the process printed, the first; without any its last
    line, if nobody printed one of its shape before."""
    lines = log.evidence.lines
    printed, is_known = _printed_before(report, lines)
    shapes = Counter(shape_of(lines[index]) for index in printed)
    rare = [index for index in printed if shapes[shape_of(lines[index])] <= _SAME]
    complaints = [index for index in rare if _complains(lines[index], log)]
    if complaints:
        return _first_of_last(complaints, printed)
    if not is_known:
        return None
    last = max((index for index in printed if not lines[index].is_indented), default=None)
    if last is None:
        return None
    return last if Counter(map(shape_of, lines))[shape_of(lines[last])] == 1 else None


def _printed_before(report: ExitReport, lines: Sequence[Line]) -> tuple[list[int], bool]:
    """The last lines of the reported process, and whether the report tells which process it is.

    Where it does not, but the log tells processes apart, what stands among no lines of theirs is their launcher's.
    """
    reporter = lines[report.line]
    printed, named, before = list[int](), list[int](), list[int]()
    for index, line in enumerate(lines[: report.line]):
        if line.stream != reporter.stream:
            continue
        if not line.body.strip():
            continue
        before.append(index)
        if line.names_process:
            named.append(index)
        if _is_of(report, reporter, line):
            printed.append(index)
    if any((printed, report.ranks, reporter.names_process)):
        return printed[-_LAST_WORDS:], True
    return (named or before)[-_LAST_WORDS:], False


def _first_of_last(complaints: Sequence[int], printed: Sequence[int]) -> int:
    """The first of the complaints that no other line of the process stands between."""
    place = printed.index(complaints[-1])
    while place > 0 and printed[place - 1] in complaints:
        place -= 1
    return printed[place]


def _is_of(report: ExitReport, reporter: Line, line: Line) -> bool:
    """Whether the reported process printed a line: the report tells its rank or its pid, stands among its lines, or
    names it."""
    if report.ranks:
        return line.rank in report.ranks
    if report.pid is not None and str(report.pid) in _NUMBER.findall(line.label):
        return True
    if reporter.names_process:
        return line.speaker == reporter.speaker
    name = (line.label[1:] or line.instance or line.node).strip(_AROUND_NAME)
    return name in _NAME.findall(reporter.body[:_SHAPE])


def _complains(line: Line, log: RuleLog) -> bool:
    if line.severity in _MILD:
        return False
    if _COMPLAINT.search(line.body[:_SHAPE]):
        return True
    return log.tables.ends.says_trouble(line.body)
