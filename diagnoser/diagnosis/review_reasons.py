"""The reasons for which a language model reviews a verdict. Pure.

A reason stays while it picks wrong verdicts several times as often as chance would: ``diagnoser score DIR --triggers``
measures it. What decided is no reason by itself: how often such verdicts are right is their confidence.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diagnoser.model import AskReason, Diagnosis, Evidence
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.outcome import EXIT_EVENT

_T = FailureType
_UNSURE = 0.81
"""Confidence below which about one verdict in three was wrong, on the half of the families that it was fitted on; just
above it none of thirteen was."""
_PLACED = frozenset(
    {_T.ECC_ERROR, _T.NVLINK_ERROR, _T.GPU_LOST, _T.GPU_DRIVER_ERROR, _T.NODE_FAILURE, _T.HOST_HARDWARE_ERROR}
)
"""Types whose cause sits in one machine."""
_MARGIN = 0.15
"""Least lead in score of the first suspect over the second."""
_APART = 2
"""Steps by which processes of one run may be apart when it ends: the newest lines of some are not written yet."""


@dataclass(frozen=True, slots=True)
class ReviewedVerdict:
    """rank_nodes: where the ranks of the job run, as far as known."""

    diagnosis: Diagnosis
    causal: CausalResult
    evidence: Evidence
    rank_nodes: Mapping[int, str]

    @property
    def has_completed(self) -> bool:
        return self.diagnosis.type is _T.COMPLETED


def review_reasons(verdict: ReviewedVerdict) -> tuple[AskReason, ...]:
    """Why the verdict of the rules may be wrong; () where nothing speaks against it."""
    diagnosis = verdict.diagnosis
    if diagnosis.decided_by == EXIT_EVENT:
        return ()
    if (diagnosis.category, diagnosis.outcome) == (Category.UNKNOWN, Outcome.COMPLETED):
        return ()
    return tuple(reason for reason, applies in _REASONS.items() if applies(verdict))


def _is_unknown(verdict: ReviewedVerdict) -> bool:
    return verdict.diagnosis.category is Category.UNKNOWN


def _is_unsure(verdict: ReviewedVerdict) -> bool:
    if _is_unknown(verdict):
        return False
    return verdict.diagnosis.confidence < _UNSURE


def _has_close_rival(verdict: ReviewedVerdict) -> bool:
    """Whether another cause of another type was set aside only for its place or its words.

    The clean end of an earlier phase is no rival of a failure in a later one.
    """
    root = verdict.causal.root
    if root is None:
        return False
    return any(_is_close(rival, reason, root) for rival, reason in verdict.causal.rejected)


def _is_close(rival: Candidate, reason: RejectionReason, root: Candidate) -> bool:
    if reason not in (RejectionReason.LATER, RejectionReason.VAGUE):
        return False
    if not rival.is_root or rival.type is root.type:
        return False
    return not (rival.is_completed and rival.line < root.line)


def _has_belied_end(verdict: ReviewedVerdict) -> bool:
    """Whether something in a run that completed does not fit: a failure that only its end outweighs, a process that
    counted fewer steps than its peers, or a loss that is no number when it ends."""
    if not verdict.has_completed:
        return False
    outweighed = verdict.causal.rejected_as(RejectionReason.FINISHED)
    if any(candidate.is_fault for candidate in outweighed):
        return True
    return _stopped_early(verdict.evidence) or _ends_without_number(verdict.evidence)


def _stopped_early(evidence: Evidence) -> bool:
    """Whether a process that the log tells from its peers counted fewer steps than they did."""
    last: dict[int | str, int] = {}
    for point in evidence.progress:
        if point.step is not None and point.process != -1:
            last[point.process] = max(last.get(point.process, 0), point.step)
    if not last:
        return False
    return max(last.values()) - min(last.values()) > _APART


def _ends_without_number(evidence: Evidence) -> bool:
    """Whether the newest loss of a process is NaN or infinite."""
    last = {point.process: point.loss for point in evidence.progress if point.loss is not None}
    return not all(map(math.isfinite, last.values()))


def _is_unplaced(verdict: ReviewedVerdict) -> bool:
    """Whether one of several machines must be at fault, and nothing tells which."""
    diagnosis = verdict.diagnosis
    if diagnosis.category is not Category.INFRASTRUCTURE:
        return False
    suspects, root = diagnosis.nodes, diagnosis.root_cause
    if len(suspects) > 1:
        return suspects[0].score - suspects[1].score < _MARGIN
    if suspects:
        return False
    if diagnosis.type not in _PLACED:
        return False
    if root and root.node:
        return False
    return len(set(verdict.rank_nodes.values())) > 1


_REASONS: Mapping[AskReason, Callable[[ReviewedVerdict], bool]] = {
    AskReason.UNKNOWN: _is_unknown,
    AskReason.UNSURE: _is_unsure,
    AskReason.CLOSE_RIVAL: _has_close_rival,
    AskReason.BELIED_END: _has_belied_end,
    AskReason.UNSURE_LOCATION: _is_unplaced,
}
