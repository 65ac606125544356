"""The refinements of candidates: each shows a candidate as more of the log tells it, or leaves it as it was."""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from diagnoser.model import Evidence, Traceback
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_sources import RuleLog
from diagnoser.rules.logged_errors import is_harmless, is_logged
from diagnoser.rules.schema import Role

_TASK = re.compile(r"\bRayTaskError\((\w+)\): ray::")
"""Ray names the class of what was raised where the task ran."""
_QUOTED = 60
"""Lines below an exception within which the one that it quotes is printed."""


def named_by_context(candidate: Candidate, log: RuleLog) -> Candidate:
    """A rule that knows only the class of an exception, or that of a broken file, knows less than the place does where
    it was raised: a checkpoint that is cut or does not fit is one whatever class carries it."""
    trace = log.trace_of(candidate)
    if candidate.role is not Role.ROOT:
        return candidate
    if not candidate.is_vague and not _is_of_broken_file(candidate):
        return candidate
    if trace is None and not candidate.raised:
        return candidate
    message = f"{trace.exception}: {trace.message}" if trace else log.body_of(candidate)
    kind = _kind_in_context(candidate, trace, message, log)
    if kind is None:
        return candidate
    why = "the status, the subject or the place of the exception says more than its class"
    named = _renamed(candidate, kind, "heuristic:exception_context", why)
    return replace(named, action=log.tables.exceptions.action(kind, message))


def _is_of_broken_file(candidate: Candidate) -> bool:
    return candidate.type is FailureType.DATASET_LOADING_ERROR


def _kind_in_context(candidate: Candidate, trace: Traceback | None, message: str, log: RuleLog) -> FailureType | None:
    """The type by subject and place, else by the status in the message."""
    table = log.tables.exceptions
    if trace is None:
        return table.in_context(candidate.type, message, ())
    stated = None if _is_of_broken_file(candidate) else table.by_status(trace.message)
    kind = table.in_context(stated or candidate.type, message, trace.frames)
    return kind or stated


def named_by_words(candidate: Candidate, log: RuleLog) -> Candidate:
    """An exception of which only the class is known gets the type that its words tell, where they tell more."""
    if not _shows_only_class(candidate):
        return candidate
    named = log.tables.name(log.raised_by(candidate))
    if named is None:
        return candidate
    kind, by = named
    if kind is not candidate.type:
        return _renamed(candidate, kind, by, candidate.why)
    return candidate if candidate.is_by_rule else replace(candidate, by=by)


def named_by_task(candidate: Candidate, log: RuleLog) -> Candidate:
    """What Ray raises where the caller waits gets the type of the class it quotes: all that is known of an error that
    was printed nowhere else."""
    if candidate.role is not Role.WRAPPER:
        return candidate
    task = _TASK.search(log.body_of(candidate))
    if task is None:
        return candidate
    quoted = log.tables.exceptions.read(task[1], "")
    if quoted.role is Role.WRAPPER:
        return candidate
    return replace(
        candidate, type=quoted.type, mitigation="", action=None, why="Ray names the class that the task raised"
    )


def _shows_only_class(candidate: Candidate) -> bool:
    if not candidate.is_failing:
        return False
    if candidate.by in ("heuristic:exception_class", "heuristic:exception_line"):
        return True
    if not candidate.is_by_rule:
        return False
    return candidate.raised and candidate.is_vague


def _renamed(candidate: Candidate, kind: FailureType, by: str, why: str) -> Candidate:
    """Nothing of the rule that named it before holds for the new type: not what it advises, nor that it is proven."""
    return replace(candidate, type=kind, by=by, why=why, mitigation="", action=None, maturity=None)


def opened(candidate: Candidate, raised: Collection[int], log: RuleLog) -> Candidate:
    """An exception that only quotes another: a wrapper where the quoted one was read, else named by what it quotes.

    raised: lines of the candidates that are raised exceptions and may be the root.
    """
    trace = log.trace_of(candidate)
    if trace is None:
        return candidate
    if candidate.role is not Role.ROOT:
        return candidate
    if not log.tables.exceptions.is_carrier(trace.exception, trace.message):
        return candidate
    quoted = list(_quoted(log.evidence, trace))
    if not set(quoted).isdisjoint(raised):
        return replace(candidate, role=Role.WRAPPER)
    if not candidate.is_vague:
        return candidate
    for index in quoted:
        kind = log.tables.keywords.says(log.evidence.lines[index].body)
        if kind:
            return _renamed(candidate, kind, "heuristic:words", candidate.why)
    return candidate


def _quoted(evidence: Evidence, trace: Traceback) -> Iterator[int]:
    """Indices of the lines below an exception, as far as the same process speaks and no code is shown."""
    raised = evidence.lines[trace.raised]
    for index in range(trace.raised + 1, min(len(evidence.lines), trace.raised + _QUOTED)):
        line = evidence.lines[index]
        if line.speaker != raised.speaker:
            continue
        if line.number - raised.number > _QUOTED:
            continue
        if not line.body.startswith("  "):
            yield index


def with_control_flow(candidate: Candidate, log: RuleLog) -> Candidate:
    """Mark an exception of a class that code raises on purpose."""
    trace = log.trace_of(candidate)
    if trace and log.tables.exceptions.is_control_flow(trace.exception):
        return replace(candidate, control_flow=True)
    return candidate


def with_last_words(candidate: Candidate, log: RuleLog) -> Candidate:
    """Mark an exception that its runtime prints only as it ends the process."""
    return replace(candidate, last_words=True) if candidate.line in log.last_words else candidate


def with_logged(candidate: Candidate, log: RuleLog) -> Candidate:
    """Mark an error that the program caught and logged; one that it calls harmless is benign."""
    evidence, trace = log.evidence, log.trace_of(candidate)
    if trace and is_harmless(evidence, trace):
        return replace(candidate, role=Role.BENIGN)
    if candidate.exit:
        return candidate
    if not candidate.is_failure:
        return candidate
    if not is_logged(evidence, candidate.line, candidate.trace):
        return candidate
    return replace(candidate, logged=True)
