"""Where attempts begin and end: launches in one log, runs that say they are complete, and ends that were ordered."""

import re
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from diagnoser.model import Anchor, Evidence
from diagnoser.model.order import is_after
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.rules.candidate_set import SAME_STORY, CandidateSet, RejectionReason, is_end, is_fault
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.logged_errors import spoke_on
from diagnoser.rules.schema import Role, Specificity

LEAVING = frozenset({FailureType.CONNECTION_ERROR, FailureType.NETWORK_ERROR, FailureType.NCCL_REMOTE_ERROR})
"""What processes print when their peers have exited already."""
_LAUNCH = re.compile(
    r"^START TIME:|Setting OMP_NUM_THREADS environment variable|^\+ ?(?:srun|torchrun|mpirun) "
    r"|\[launch(?:er)?\.py:\d+:main\]"
)
ANCHORS = tuple(
    Anchor(text) for text in ("START TIME:", "Setting OMP_NUM_THREADS environment", "+ srun ", "+ torchrun ", ":main]")
)
"""What the compressor must let through for this module, besides the rules' anchors."""


def resolve_attempts(candidate_set: CandidateSet, evidence: Evidence) -> None:
    """Two launches in one log: what failed before the last launch belongs to the one before, if the last failed too.

    Restarts inside a launch (torchelastic) are no new launch: there later failures often bury the first.
    """
    launches, lines = _launches(evidence), evidence.lines
    faults = [c.line for c in candidate_set.open if is_fault(c)]
    ends = [c.line for c in candidate_set.open if is_end(c)]
    for before, launch in reversed(list(pairwise(launches))):
        if not is_after(lines[launch], lines[before]).after:
            continue  # nodes that print no times come up together
        if any(before < line < launch for line in faults + ends) and any(line > launch for line in faults):
            candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda c, launch=launch: c.line < launch)  # type: ignore[misc]
            return


def _launches(evidence: Evidence) -> list[int]:
    """Lines with the launcher's start banner; only the banner text that comes first in the log counts."""
    banners = [(index, match[0]) for index, line in enumerate(evidence.lines) if (match := _LAUNCH.search(line.body))]
    return [index for index, text in banners if text == banners[0][1]]


def resolve_end(
    candidate_set: CandidateSet,
    evidence: Evidence,
    went_on: Callable[[Candidate], bool],
    begins: Sequence[int],
    *,
    diverged: bool,
) -> None:
    """A run that completed, or was ordered to stop, explains what follows; a completed run also what precedes.

    A job that hangs after a failure is stopped by somebody: then the failure before the end is the cause.
    begins: lines at which later launches begin; an end does not explain what comes after the next launch.
    """
    _resolve_earlier_ends(candidate_set, begins)
    _resolve_completed(candidate_set, evidence, went_on, diverged=diverged)
    ordered = [c for c in candidate_set.open if is_end(c) and c.type is not FailureType.COMPLETED]
    if not ordered:
        return
    first, last = ordered[0], ordered[-1]
    if any(_may_precede(c, first, evidence) and _led_to(c, first) for c in candidate_set.open):
        candidate_set.dismiss(RejectionReason.LATER, lambda c: c in ordered)
    elif went_on(last) and _has_later_outcome(candidate_set, last):
        candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda c: c.line <= last.line)
    else:
        candidate_set.dismiss(RejectionReason.EXPLAINED, lambda c: c.line > first.line)


def _resolve_earlier_ends(candidate_set: CandidateSet, begins: Sequence[int]) -> None:
    """When another run was launched after an end in the same log, the end of the later run counts.

    A job that was preempted or cancelled and then completed in the same log keeps the former as its outcome.
    """
    for launch, begin in reversed(list(pairwise([0, *begins]))):
        before = {c.type for c in candidate_set.open if launch <= c.line < begin and is_end(c)}
        after = {c.type for c in candidate_set.open if c.line >= begin and c.role in (Role.ROOT, Role.SYMPTOM)}
        if before and after - ({FailureType.COMPLETED} - before):
            candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda c, begin=begin: c.line < begin)  # type: ignore[misc]
            return


def _resolve_completed(
    candidate_set: CandidateSet, evidence: Evidence, went_on: Callable[[Candidate], bool], *, diverged: bool
) -> None:
    _dismiss_survived_ends(candidate_set, went_on)
    completed = _completed(candidate_set)
    if not completed:
        return
    last = completed[-1]
    traced = evidence.traceback_lines
    if any(_belies(c, last) or _died_apart(c, last, evidence, traced) for c in candidate_set.open):
        candidate_set.dismiss(RejectionReason.VAGUE_END, lambda c: c.type is FailureType.COMPLETED)
    elif diverged:
        candidate_set.dismiss(RejectionReason.LATER, lambda c: c.type is FailureType.COMPLETED)
    elif any(_contradicts(c, last, evidence, traced, again=went_on(last)) for c in candidate_set.open):
        candidate_set.dismiss(RejectionReason.LATER, lambda c: c.type is FailureType.COMPLETED)
        candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda c: c.line < last.line)
    else:
        candidate_set.dismiss(RejectionReason.FINISHED, lambda c: not is_end(c))


def _completed(candidate_set: CandidateSet) -> list[Candidate]:
    return [c for c in candidate_set.open if is_end(c) and c.type is FailureType.COMPLETED]


def _dismiss_survived_ends(candidate_set: CandidateSet, went_on: Callable[[Candidate], bool]) -> None:
    """A clean end after which training went on ended another run, where something came of the one that follows."""
    survived = [c.line for c in _completed(candidate_set) if went_on(c)]
    if survived and any(c.line > survived[-1] and c.role in (Role.ROOT, Role.SYMPTOM) for c in candidate_set.open):
        candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda c: c.line <= survived[-1])


def _belies(candidate: Candidate, end: Candidate) -> bool:
    """Whether a failure before ``end`` shows that its words are those of a script that prints them in any case."""
    if candidate.line >= end.line or candidate.logged or category_of(candidate.type) is Category.NONE:
        return False
    near = end.line - candidate.line <= SAME_STORY
    if end.by.startswith("rule:"):
        return end.specificity <= Specificity.CLASS and near and is_fault(candidate)
    return candidate.exit or _belies_words(candidate, end, near=near)


def _belies_words(candidate: Candidate, end: Candidate, *, near: bool) -> bool:
    """The same for an end that no rule knows, and a failure before it that is no reported end of a process."""
    if candidate.role not in (Role.ROOT, Role.SYMPTOM, Role.WRAPPER):
        return False
    return end.specificity <= Specificity.CLASS or (near and candidate.raised)


def _died_apart(candidate: Candidate, end: Candidate, evidence: Evidence, traced: Collection[int]) -> bool:
    """Whether another rank's own stream ends within an exception: that ``end`` speaks well of the rest proves nothing
    of this one."""
    line, last = evidence.lines[candidate.line], evidence.lines[end.line]
    apart = line.stream != last.stream and min(line.rank, last.rank) >= 0 and line.rank != last.rank
    died = is_fault(candidate) and candidate.raised and not candidate.logged
    return apart and died and not spoke_on(evidence, candidate.line, traced)


def _contradicts(
    candidate: Candidate, end: Candidate, evidence: Evidence, traced: Collection[int], *, again: bool
) -> bool:
    """Whether the candidate shows that the job failed after all, or that another one followed in the same log.

    Errors of peers when the first ones exit do not, nor does one that was caught by a program that spoke on; nor do
    those of tasks of the same step when ``end`` is the benchmark's own verdict (explains all). again: training went on
    after ``end``: another run.
    """
    if candidate.line < end.line or candidate.role not in (Role.ROOT, Role.SYMPTOM):
        return False
    if again:
        return True
    if candidate is end or _is_of_leaving_peer(candidate):
        return False
    if candidate.logged and spoke_on(evidence, candidate.line, traced):
        return False
    verdict_of_step = "all" in end.explains
    return not (verdict_of_step and _is_of_step(candidate, end, evidence))


def _is_of_leaving_peer(candidate: Candidate) -> bool:
    return candidate.type in LEAVING and candidate.role is Role.SYMPTOM and not candidate.raised


def _is_of_step(candidate: Candidate, end: Candidate, evidence: Evidence) -> bool:
    """Whether the candidate is about tasks of the step that ``end`` is the verdict on: the end of one, its
    cancellation, or a line that one printed."""
    if candidate.exit or (candidate.type is FailureType.CANCELLED and candidate.role is Role.SYMPTOM):
        return True
    return min(evidence.lines[candidate.line].task, evidence.lines[end.line].task) >= 0


def _has_later_outcome(candidate_set: CandidateSet, end: Candidate) -> bool:
    return any(c.line > end.line and _comes_after(c, end) for c in candidate_set.open)


def _comes_after(candidate: Candidate, end: Candidate) -> bool:
    """Whether what follows, once training has gone on, is the outcome: any fault, and a clean end unless the scheduler
    itself took the nodes away, which is what its attempt ended of."""
    return is_fault(candidate) or (is_end(candidate) and end.specificity < Specificity.CODE)


def _may_precede(candidate: Candidate, end: Candidate, evidence: Evidence) -> bool:
    return is_after(evidence.lines[candidate.line], evidence.lines[end.line]).after is not True


def _led_to(candidate: Candidate, end: Candidate) -> bool:
    """Whether a failure before an ordered end is the reason for it."""
    if category_of(candidate.type) is Category.NONE or candidate.role not in (Role.ROOT, Role.SYMPTOM):
        return False
    return candidate.role is Role.ROOT or end.type is not FailureType.PREEMPTED
