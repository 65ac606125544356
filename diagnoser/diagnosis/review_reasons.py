"""The reasons for which a language model reviews a verdict. Pure.

A reason stays while it picks wrong verdicts several times as often as chance would: ``diagnoser score DIR --triggers``
measures it. What decided is no reason by itself: how often such verdicts are right is their confidence.
"""

from diagnoser.model import AskReason, Diagnosis
from diagnoser.model.taxonomy import Category, Outcome
from diagnoser.rules.candidate_sources import EXIT_SIGNAL
from diagnoser.rules.outcome import EXIT_EVENT

_UNSURE = 0.81
"""Confidence below which about one verdict in three was wrong, on the half of the families that it was fitted on; of
those just above it, up to 0.88, one in seven."""
_BY_REPORT = frozenset({EXIT_EVENT, EXIT_SIGNAL})
"""The scheduler's word, and a signal whose sender no line names. A model knows no better: of 31 verdicts by a signal
that were reviewed one was wrong, although they claim little."""


def review_reasons(diagnosis: Diagnosis) -> tuple[AskReason, ...]:
    """Why the verdict of the rules may be wrong; () where nothing speaks against it."""
    if diagnosis.decided_by in _BY_REPORT:
        return ()
    if diagnosis.category is Category.UNKNOWN:
        return () if diagnosis.outcome is Outcome.COMPLETED else (AskReason.UNKNOWN,)
    if diagnosis.confidence < _UNSURE:
        return (AskReason.UNSURE,)
    return ()
