"""The reasons in the structure of a verdict for which a language model reviews it. Pure.

Confidence tells only where an answer is more likely wrong than right.
"""

from collections.abc import Callable, Mapping

from diagnoser.model import GUESS, AskReason, Diagnosis
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.schema import Role, Specificity

_T = FailureType
_CARRIERS = frozenset(
    {_T.RUNTIME_ERROR, _T.VALUE_ERROR, _T.ASSERTION_ERROR, _T.ATTRIBUTE_ERROR, _T.OS_ERROR, _T.CALLED_PROCESS_ERROR}
)
"""Types of exception classes that libraries raise for causes with types of their own."""
_FACTS = frozenset({"heuristic:exit_event", "heuristic:no_progress"})
"""Deciders that are no guesses: the scheduler's report, and silence that was measured."""
_PLACED = frozenset(
    {_T.ECC_ERROR, _T.NVLINK_ERROR, _T.GPU_LOST, _T.GPU_DRIVER_ERROR, _T.NODE_FAILURE, _T.HOST_HARDWARE_ERROR}
)
"""Types whose cause sits in one machine."""
_MARGIN = 0.15
"""Least lead in score of the first suspect over the second."""


def review_reasons(diagnosis: Diagnosis, causal: CausalResult, rank_nodes: Mapping[int, str]) -> tuple[AskReason, ...]:
    """Why the verdict of the rules may be wrong; () where nothing speaks against it.

    rank_nodes: where the ranks of the job run, as far as known.
    """
    if diagnosis.decided_by == "heuristic:exit_event":
        return ()
    if (diagnosis.category, diagnosis.outcome) == (Category.UNKNOWN, Outcome.COMPLETED):
        return ()
    reasons = []
    for reason, applies in _REASONS.items():
        if applies(diagnosis, causal):
            reasons.append(reason)
    if not reasons and diagnosis.confidence < GUESS:
        reasons.append(AskReason.GUESS)
    if _is_unplaced(diagnosis, rank_nodes):
        reasons.append(AskReason.UNSURE_LOCATION)
    return tuple(reasons)


def _is_unknown(diagnosis: Diagnosis, _: CausalResult) -> bool:
    return diagnosis.category is Category.UNKNOWN


def _is_guess(diagnosis: Diagnosis, causal: CausalResult) -> bool:
    """Whether a heuristic decided by what is no fact. Where the training itself says after its last step that it is
    over, it is one."""
    if diagnosis.category is Category.UNKNOWN:
        return False
    if diagnosis.decided_by in _FACTS:
        return False
    root = causal.root
    if root and root.type is _T.COMPLETED and not root.is_vague:
        return False
    return diagnosis.decided_by.startswith("heuristic:")


def _is_by_generic_rule(_: Diagnosis, causal: CausalResult) -> bool:
    root = causal.root
    if root is None:
        return False
    if not root.is_by_rule:
        return False
    if root.specificity is Specificity.CLASS:
        return root.type in _CARRIERS
    return root.specificity is Specificity.WORD


def _has_close_rival(_: Diagnosis, causal: CausalResult) -> bool:
    return bool(causal.rival_types)


def _is_consequence(diagnosis: Diagnosis, causal: CausalResult) -> bool:
    """Whether the root is no more than what something else led to."""
    if causal.root is None:
        return False
    if causal.root.role is Role.SYMPTOM:
        return diagnosis.category is Category.NONE
    return causal.root.role in (Role.WRAPPER, Role.TEARDOWN)


_REASONS: Mapping[AskReason, Callable[[Diagnosis, CausalResult], bool]] = {
    AskReason.UNKNOWN: _is_unknown,
    AskReason.HEURISTIC: _is_guess,
    AskReason.GENERIC_RULE: _is_by_generic_rule,
    AskReason.CLOSE_RIVAL: _has_close_rival,
    AskReason.CONSEQUENCE: _is_consequence,
}


def _is_unplaced(diagnosis: Diagnosis, rank_nodes: Mapping[int, str]) -> bool:
    """Whether one of several machines must be at fault, and nothing tells which."""
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
    return len(set(rank_nodes.values())) > 1
