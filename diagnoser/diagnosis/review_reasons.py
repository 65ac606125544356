"""Why a language model reviews a verdict: nothing names the cause, or verdicts like it are often wrong. Pure.

How often is measured: ``review`` in ``rules/calibration.yaml``. ``diagnoser score DIR --triggers`` measures other logs.
"""

from diagnoser.model import AskReason, Diagnosis
from diagnoser.model.taxonomy import Category, Outcome
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.outcome import EXIT_EVENT


def review_reasons(diagnosis: Diagnosis, calibration: Calibration) -> tuple[AskReason, ...]:
    """Why the verdict of the rules may be wrong; () where nothing speaks against it, or the scheduler says it."""
    if diagnosis.decided_by == EXIT_EVENT:
        return ()
    if diagnosis.category is Category.UNKNOWN:
        return () if diagnosis.outcome is Outcome.COMPLETED else (AskReason.UNKNOWN,)
    if calibration.wrong_share(diagnosis.review_kind) >= calibration.review_from:
        return (AskReason.UNSURE,)
    return ()
