"""Where attempts begin and end: launches in one log, runs that say they are complete, and ends that were ordered."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from diagnoser.model import Anchor, Evidence
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.rules.candidate_set import SAME_STORY, CandidateSet, RejectionReason, is_end, is_fault
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.schema import Role, Specificity

_LEAVING = frozenset({FailureType.CONNECTION_ERROR, FailureType.NETWORK_ERROR, FailureType.NCCL_REMOTE_ERROR})
"""What processes print when their peers have left already."""
_LAUNCH = re.compile(
    r"^START TIME:|Setting OMP_NUM_THREADS environment variable|^\+ ?(?:srun|torchrun|mpirun) "
    r"|\[launch(?:er)?\.py:\d+:main\]"
)
ANCHORS = tuple(
    Anchor(text) for text in ("START TIME:", "Setting OMP_NUM_THREADS environment", "+ srun ", "+ torchrun ", ":main]")
)
"""What the compressor must let through for this module, beside the rules' anchors."""


def resolve_attempts(candidate_set: CandidateSet, evidence: Evidence) -> None:
    """Two launches in one log: what failed before the last launch belongs to the one before, if the last failed too.

    Restarts inside a launch (torchelastic) are no new launch: there later failures often bury the first.
    """
    launches = _launches(evidence)
    faults = [one.line for one in candidate_set.open if is_fault(one)]
    ends = [one.line for one in candidate_set.open if is_end(one)]
    for before, launch in reversed(list(pairwise(launches))):
        if any(before < line < launch for line in faults + ends) and any(line > launch for line in faults):
            candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda one, at=launch: one.line < at)  # type: ignore[misc]
            return


def _launches(evidence: Evidence) -> list[int]:
    """Lines at which a launcher introduces itself, in the words in which it first did."""
    said = [(index, found[0]) for index, line in enumerate(evidence.lines) if (found := _LAUNCH.search(line.body))]
    return [index for index, words in said if words == said[0][1]]


def resolve_end(
    candidate_set: CandidateSet,
    evidence: Evidence,
    went_on: Callable[[Candidate], bool],
    begins: Sequence[int],
    *,
    diverged: bool,
) -> None:
    """A run that says it ended well, or was told to end, explains what follows; a completed run also what precedes.

    A job that hangs after a failure is ended by somebody: then the failure before the end is the cause.
    begins: lines at which later launches begin: what comes after one is none of the business of an end before it.
    """
    _resolve_older_ends(candidate_set, begins)
    _resolve_completed(candidate_set, evidence, went_on, diverged=diverged)
    told = [one for one in candidate_set.open if is_end(one) and one.type is not FailureType.COMPLETED]
    if not told:
        return
    first, last = told[0], told[-1]
    if any(one.line < first.line and _outweighs(one, first) for one in candidate_set.open):
        candidate_set.dismiss(RejectionReason.LATER, lambda one: one in told)
    elif went_on(last) and any(one.line > last.line and is_fault(one) for one in candidate_set.open):
        candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda one: one.line <= last.line)
    else:
        candidate_set.dismiss(RejectionReason.EXPLAINED, lambda one: one.line > first.line)


def _resolve_older_ends(candidate_set: CandidateSet, begins: Sequence[int]) -> None:
    """A run that ended, and another one launched in the same log: what the later one says of its end counts.

    A job that was taken off its nodes and then got to its end in the same log stays known for the former.
    """
    for launch, begin in reversed(list(pairwise([0, *begins]))):
        before = {one.type for one in candidate_set.open if launch <= one.line < begin and is_end(one)}
        after = {one.type for one in candidate_set.open if one.line >= begin and one.role in (Role.ROOT, Role.SYMPTOM)}
        if before and after - ({FailureType.COMPLETED} - before):
            candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda one, at=begin: one.line < at)  # type: ignore[misc]
            return


def _resolve_completed(
    candidate_set: CandidateSet, evidence: Evidence, went_on: Callable[[Candidate], bool], *, diverged: bool
) -> None:
    done = [one for one in candidate_set.open if is_end(one) and one.type is FailureType.COMPLETED]
    passed = [one.line for one in done if went_on(one)]
    if passed and any(one.line > passed[-1] and one.role in (Role.ROOT, Role.SYMPTOM) for one in candidate_set.open):
        candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda one: one.line <= passed[-1])
        done = [one for one in done if one.line > passed[-1]]
    if not done:
        return
    last = done[-1]
    near = any(is_fault(one) and 0 < last.line - one.line <= SAME_STORY for one in candidate_set.open)
    if last.specificity <= Specificity.CLASS and near:
        candidate_set.dismiss(RejectionReason.VAGUE_END, lambda one: one.type is FailureType.COMPLETED)
    elif diverged or any(_undoes(one, last, evidence, again=went_on(last)) for one in candidate_set.open):
        candidate_set.dismiss(RejectionReason.LATER, lambda one: one.type is FailureType.COMPLETED)
        candidate_set.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda one: one.line < last.line and not diverged)
    else:
        candidate_set.dismiss(RejectionReason.FINISHED, lambda one: not is_end(one))


def _undoes(one: Candidate, end: Candidate, evidence: Evidence, *, again: bool) -> bool:
    """Whether ``one`` shows that the job failed after all, or that another one followed in the same log.

    What peers print when the first ones leave does not; nor does what tasks of the same step print when ``end`` is a
    verdict of the benchmark itself (explains all). again: training went on after ``end``: another run.
    """
    if one.line < end.line or one.role not in (Role.ROOT, Role.SYMPTOM):
        return False
    if again:
        return True
    if one.type is FailureType.CANCELLED and one.role is Role.SYMPTOM:
        return "all" not in end.explains
    if one.type in _LEAVING and one.role is Role.SYMPTOM and not one.raised:
        return False
    same_step = min(evidence.lines[one.line].task, evidence.lines[end.line].task) >= 0
    return one is not end and not ("all" in end.explains and same_step)


def _outweighs(one: Candidate, end: Candidate) -> bool:
    """Whether a failure before an ordered end is the reason for that end."""
    if category_of(one.type) is Category.NONE or one.role not in (Role.ROOT, Role.SYMPTOM):
        return False
    return one.role is Role.ROOT or end.type is not FailureType.PREEMPTED
