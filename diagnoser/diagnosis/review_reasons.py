"""Why a language model reviews a verdict: nothing names the cause, or verdicts like it are often wrong. Pure.

How often is measured: ``review`` in ``rules/calibration.yaml``. ``diagnoser score DIR --triggers`` measures other logs.
"""

from diagnoser.model import AskReason, Diagnosis, Evidence
from diagnoser.model.taxonomy import Category, Outcome
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.outcome import EXIT_EVENT

_AFTER = 5
"""Most kept lines that a run prints after it says that it completed. Behind a healthy log 12 of 26 verdicts with more
were wrong: the end was that of an earlier phase. Alone 5 of 1,717 logs print more."""


def review_reasons(diagnosis: Diagnosis, calibration: Calibration, *, outlived: bool = False) -> tuple[AskReason, ...]:
    """Why the verdict of the rules may be wrong; () where nothing speaks against it, or the scheduler says it.

    outlived: see ``is_outlived``.
    """
    if diagnosis.decided_by == EXIT_EVENT:
        return ()
    if diagnosis.category is Category.UNKNOWN:
        return () if diagnosis.outcome is Outcome.COMPLETED else (AskReason.UNKNOWN,)
    if outlived:
        return (AskReason.BELIED_END,)
    if calibration.wrong_share(diagnosis.review_kind) >= calibration.review_from:
        return (AskReason.UNSURE,)
    return ()


def is_outlived(evidence: Evidence, causal: CausalResult) -> bool:
    """Whether the run goes on after the last line that says that it completed."""
    root = causal.root
    if root is None or not root.is_completed:
        return False
    ends = [end.line for end in (root, *causal.rejected_as(RejectionReason.REPEATED)) if end.is_completed]
    return len(evidence.lines) - 1 - max(ends) > _AFTER
