"""What in the structure of a verdict leaves room for doubt: there a language model is asked. Pure.

Calibrated confidence does not tell: it is measured on failures that the rules were written for.
"""

from collections.abc import Iterator, Mapping

from diagnoser.model import AskReason, Diagnosis
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.schema import Role, Specificity

_T = FailureType
_CARRIERS = frozenset(
    {_T.RUNTIME_ERROR, _T.VALUE_ERROR, _T.ASSERTION_ERROR, _T.ATTRIBUTE_ERROR, _T.OS_ERROR, _T.CALLED_PROCESS_ERROR}
)
"""Types of exception classes that libraries raise for causes with types of their own."""
_OPEN = frozenset({RejectionReason.LATER, RejectionReason.VAGUE})
"""Reasons that say nothing against a candidate but its place or its words."""
_FACTS = frozenset({"heuristic:exit_event", "heuristic:no_progress"})
"""Deciders that are no guesses: the scheduler's report, and silence that was measured."""
_PLACED = frozenset(
    {_T.ECC_ERROR, _T.NVLINK_ERROR, _T.GPU_LOST, _T.GPU_DRIVER_ERROR, _T.NODE_FAILURE, _T.HOST_HARDWARE_ERROR}
)
"""Types whose cause sits in one machine."""
_MARGIN = 0.15
"""Least lead in score of the first suspect over the second."""


def doubts(diagnosis: Diagnosis, causal: CausalResult, rank_nodes: Mapping[int, str]) -> tuple[AskReason, ...]:
    """Why the verdict of the rules may be wrong; () where nothing speaks against it.

    rank_nodes: where the ranks of the job run, as far as known.
    """
    if diagnosis.decided_by == "heuristic:exit_event" or (
        diagnosis.category is Category.UNKNOWN and diagnosis.outcome is Outcome.COMPLETED
    ):
        return ()
    return tuple(_doubts(diagnosis, causal, rank_nodes))


def _doubts(diagnosis: Diagnosis, causal: CausalResult, rank_nodes: Mapping[int, str]) -> Iterator[AskReason]:
    root = causal.root
    if diagnosis.category is Category.UNKNOWN:
        yield AskReason.UNKNOWN
    elif diagnosis.decided_by.startswith("heuristic:") and not _is_fact(diagnosis.decided_by, root):
        yield AskReason.HEURISTIC
    if root is not None:
        yield from _doubts_about(root, causal, diagnosis.category)
    if _is_unplaced(diagnosis, rank_nodes):
        yield AskReason.UNSURE_LOCATION


def _is_fact(decider: str, root: Candidate | None) -> bool:
    """Whether it is no guess: also not where the training itself says after its last step that it is over."""
    said_so = root is not None and root.type is _T.COMPLETED and root.specificity >= Specificity.FAMILY
    return decider in _FACTS or said_so


def _doubts_about(root: Candidate, causal: CausalResult, category: Category) -> Iterator[AskReason]:
    if root.by.startswith("rule:") and _is_generic(root.specificity, root.type):
        yield AskReason.GENERIC_RULE
    rivals = (other for other, reason in causal.rejected if reason in _OPEN and other.role is Role.ROOT)
    if any(rival.type is not root.type for rival in rivals):
        yield AskReason.CLOSE_RIVAL
    ordered = root.role is Role.SYMPTOM and category is Category.NONE
    if ordered or root.role in (Role.WRAPPER, Role.TEARDOWN):
        yield AskReason.CONSEQUENCE


def _is_generic(specificity: Specificity, kind: FailureType) -> bool:
    return specificity is Specificity.WORD or (specificity is Specificity.CLASS and kind in _CARRIERS)


def _is_unplaced(diagnosis: Diagnosis, rank_nodes: Mapping[int, str]) -> bool:
    """Whether one of several machines must be at fault, and nothing tells which."""
    if diagnosis.category is not Category.INFRASTRUCTURE:
        return False
    suspects, root = diagnosis.nodes, diagnosis.root_cause
    if len(suspects) > 1:
        return suspects[0].score - suspects[1].score < _MARGIN
    nowhere = not suspects and not (root and root.node)
    return nowhere and diagnosis.type in _PLACED and len(set(rank_nodes.values())) > 1
