"""Whether a confirmed failure is worth a rule. Pure."""

import hashlib

from diagnoser.model import ConfirmedFailure, LearnedRule, LearnedState
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.rules.calibration import LEARNED_PREFIX

_NEVER = frozenset({Category.NONE, Category.UNKNOWN})


def rule_wanted(record: DiagnosisRecord, confirmed: ConfirmedFailure) -> LearnedRule | None:
    """The rule to be written, still without its text; None where a rule would add nothing.

    That is where a rule was right, or the class of an exception already names a fault of the script. That a run did not
    fail asks for a rule where another rule said that it did: to narrow that one. The id is derived from the confirmed
    failure and its type, so that the same rule is requested only once.
    """
    category = category_of(confirmed.type)
    if category in _NEVER and not _false_alarm(record, confirmed):
        return None
    if _known_already(record, confirmed, category):
        return None
    digest = hashlib.sha256(f"{confirmed.diagnosis}\0{confirmed.type}".encode()).hexdigest()
    rule = LearnedRule(
        id=f"{LEARNED_PREFIX}{confirmed.type}_{digest[:8]}",
        source=confirmed.diagnosis,
        created=confirmed.changed,
        type=str(confirmed.type),
        by=confirmed.by,
    )
    return rule.with_state(
        LearnedState.PROPOSED, by=confirmed.by, why=f"{confirmed.verdict} the cause", now=confirmed.changed
    )


def _false_alarm(record: DiagnosisRecord, confirmed: ConfirmedFailure) -> bool:
    """Whether a shipped rule named a failure where there was none."""
    verdict = record.diagnosis
    if confirmed.type is not FailureType.COMPLETED:
        return False
    if verdict.category in _NEVER:
        return False
    if verdict.decided_by.startswith(f"rule:{LEARNED_PREFIX}"):
        return False
    return verdict.decided_by.startswith("rule:")


def _known_already(record: DiagnosisRecord, confirmed: ConfirmedFailure, category: Category) -> bool:
    verdict = record.diagnosis
    if verdict.precedent:
        return verdict.precedent.before.type is confirmed.type
    if verdict.type is not confirmed.type:
        return False
    if verdict.is_undecided:
        return False
    if category is Category.SCRIPT:
        return verdict.decided_by.startswith(("rule:", "heuristic:"))
    return verdict.decided_by.startswith("rule:")
