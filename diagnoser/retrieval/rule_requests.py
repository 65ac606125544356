"""Whether a confirmed failure is worth a rule. Pure."""

import hashlib

from diagnoser.model import Incident, LearnedRule, LearnedState
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.ports import DiagnosisRecord
from diagnoser.rules.calibration import LEARNED_PREFIX

_NEVER = frozenset({Category.NONE, Category.UNKNOWN})


def rule_wanted(record: DiagnosisRecord, incident: Incident) -> LearnedRule | None:
    """The rule to be written, still without its text; None where a rule would add nothing.

    That is where a rule was right, or the class of an exception already names a fault of the script. That a run did not
    fail asks for a rule where another rule said that it did: to narrow that one. The id is derived from the incident
    and its type, so that the same rule is requested only once.
    """
    category = category_of(incident.type)
    if (category in _NEVER and not _false_alarm(record, incident)) or _known_already(record, incident, category):
        return None
    digest = hashlib.sha256(f"{incident.diagnosis}\0{incident.type}".encode()).hexdigest()
    rule = LearnedRule(
        id=f"{LEARNED_PREFIX}{incident.type}_{digest[:8]}",
        source=incident.diagnosis,
        created=incident.changed,
        type=str(incident.type),
        by=incident.by,
    )
    return rule.with_state(
        LearnedState.PROPOSED, by=incident.by, why=f"{incident.verdict} the cause", now=incident.changed
    )


def _false_alarm(record: DiagnosisRecord, incident: Incident) -> bool:
    verdict = record.diagnosis
    decider = verdict.decided_by
    shipped = decider.startswith("rule:") and not decider.startswith(f"rule:{LEARNED_PREFIX}")
    return incident.type is FailureType.COMPLETED and shipped and verdict.category not in _NEVER


def _known_already(record: DiagnosisRecord, incident: Incident, category: Category) -> bool:
    verdict = record.diagnosis
    if verdict.type is not incident.type:
        return False
    named = verdict.decided_by.startswith("heuristic:") and category is Category.SCRIPT
    return verdict.decided_by.startswith("rule:") or named
