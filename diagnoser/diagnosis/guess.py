"""A guess at the cause where nothing else names one: the line that is likeliest to tell it, by its words. Pure.

It stands below all that people, rules and reports say: it is asked last, keeps out of what somebody has called no
failure, and is never as sure as what leads to an action.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from diagnoser.model import LIKELY_LINE, Evidence, Line
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.calibration import LEARNED_PREFIX
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.candidate_sources import EXIT_CODE, Heuristics, RuleLog
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.clean_end import broken_off_counts
from diagnoser.rules.engine import Hit
from diagnoser.rules.left_behind import Processes
from diagnoser.rules.outcome import Ending
from diagnoser.rules.schema import Role, Specificity
from diagnoser.structure.loops import words_of

_DIGITS = re.compile(r"\d+")
LIKELY_END = "heuristic:clean_end_likely"
"""Decider of an end that only looks like those of runs that ended well."""


def with_guess(
    causal: CausalResult,
    evidence: Evidence,
    hits: Iterable[Hit],
    tables: Heuristics,
    reported: Ending | None,
    processes: Processes,
) -> CausalResult:
    """The result with the likeliest line as its root, where it has none and the run may have failed, where its root
    tells no more than a code with which a process ended, or where only words say that it ended well and this line
    outweighs them.

    reported: what witnesses outside the log say of the end.
    processes: those of the job, and how each ended.
    """
    if any(map(_is_cleared_by_people, hits)):
        return causal
    if reported is not None and reported.type is not FailureType.UNKNOWN:
        return causal
    log, dismissed = RuleLog(evidence, tables), _dismissed(causal)
    if causal.root is None and reported is None:
        return _with_likely_end(causal, log, dismissed, processes)
    likely = _likely_root(causal.root, log, dismissed, processes)
    if likely is None:
        return causal
    return replace(causal, root=_as_candidate(likely, log))


def _likely_root(root: Candidate | None, log: RuleLog, dismissed: Collection[int], processes: Processes) -> int | None:
    """Index of the line that outweighs the root, if that is no more than an exit code, or words of a clean end."""
    ranker = log.tables.ranker
    if root is None:
        return ranker.likeliest(log.evidence, dismissed)
    likely = None
    if _is_mere_exit(root):
        likely = ranker.likeliest(log.evidence, dismissed)
    elif root.is_completed and not root.is_by_rule:
        likely = ranker.denies(log.evidence, root.line, dismissed, processes)
    return None if likely == root.line else likely


def _with_likely_end(
    causal: CausalResult, log: RuleLog, dismissed: Collection[int], processes: Processes
) -> CausalResult:
    """The result with what a log of which nothing is known most likely shows: why the run failed, or that it ended
    well."""
    broken = next(broken_off_counts(log.evidence), None)
    if broken is not None:
        return replace(causal, root=_as_candidate(broken[0], log))
    end = log.tables.ranker.likely_end(log.evidence, dismissed, processes)
    if end is None:
        return causal
    if end.is_failure:
        return replace(causal, root=_as_candidate(end.line, log))
    if not _may_have_completed(log, end.line, processes):
        return causal
    why = "nothing says how the run ended; logs that end so are of runs that ended well"
    return replace(
        causal, root=Candidate(end.line, FailureType.COMPLETED, Role.ROOT, LIKELY_END, why, Specificity.WORD)
    )


def _may_have_completed(log: RuleLog, end: int, processes: Processes) -> bool:
    """Whether nothing speaks against a likely end: the line is none of those on the way, with which a log was cut, and
    introduces nothing; no last word complains; and no process stopped short of it."""
    line = log.evidence.lines[end]
    if log.tables.ends.is_on_the_way(line.body):
        return False
    if line.body.rstrip().endswith(":"):
        return False
    if _is_cut_short(log.evidence, end):
        return False
    if processes.complained:
        return False
    if not processes.speak_for_all(line.stream):
        return False
    return not _is_said_by_some(log.evidence, line, processes)


def _is_cut_short(evidence: Evidence, end: int) -> bool:
    """Whether the line is the beginning of what its stream printed again and again before: a copy ended there, or the
    disk was full."""
    line = evidence.lines[end]
    begin = _DIGITS.sub("0", line.text.rstrip())
    copies = 0
    for each in evidence.lines[max(0, end - 8) : end]:
        if each.stream != line.stream:
            continue
        text = _DIGITS.sub("0", each.text)
        if text != begin:
            copies += text.startswith(begin)
    return copies > 1


def _is_said_by_some(evidence: Evidence, end: Line, processes: Processes) -> bool:
    """Whether several processes print the words of an end, and another one does not, or stopped long before. What only
    one prints, it may say for all."""
    words = words_of(end.body)
    count = sum(words_of(line.body) == words for line in evidence.lines if line.stream == end.stream)
    known = processes.known(end.stream)
    several = max(processes.found.processes.get(end.stream, 0), len(known))
    if count < several:
        return count > 1
    return bool(known - {*processes.of[-2 * several :]})


def _is_mere_exit(root: Candidate) -> bool:
    """Whether the root tells no more than that a process failed."""
    return root.by == EXIT_CODE and root.type is FailureType.RUNTIME_ERROR


def _is_cleared_by_people(hit: Hit) -> bool:
    """Whether somebody has called such a line no failure."""
    return hit.rule.role is Role.BENIGN and hit.rule.id.startswith(LEARNED_PREFIX)


def _dismissed(causal: CausalResult) -> Collection[int]:
    """Lines of which more is known than that they look like a cause."""
    return {candidate.line for candidate in causal.rejected_as(*RejectionReason)}


def _as_candidate(index: int, log: RuleLog) -> Candidate:
    raised, rank = log.raised_at(index), log.evidence.lines[index].known_rank
    kind, _ = log.tables.named(raised)
    why = "nothing names the cause; of all lines this one is likeliest to tell it"
    return Candidate(index, kind, Role.ROOT, LIKELY_LINE, why, Specificity.WORD, rank=rank)
