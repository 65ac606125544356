"""Whether a model's verdict may stand in place of the rules', how sure it is, and what a person has to look at. Pure.

A model never ends a failure on its word: that a run completed, or that somebody stopped it, is for the scheduler, the
launcher or an exit status to say. Whatever it proves, a milder action than the rules' is for a person to see.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from diagnoser.failure_agent.tools import RECORDS
from diagnoser.model import LIKELY_LINE, Diagnosis, Judgement, Line, Provenance
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.rules.outcome import Ending

CONFIDENCE_MAX = 0.9
"""No record of right verdicts makes a model's next one surer than a judged failure of the same kind."""
CONFIDENCE_UNJUDGED = 0.6
"""Of a model that nobody has judged yet."""
_UNJUDGED_CASES = 10
"""Judged verdicts that count as much as not knowing the model."""
DECIDER = "llm:"
"""How the decider of a verdict that a model named begins."""
_REACH = {
    Action.NONE: 0,
    Action.NOTIFY_USER: 1,
    Action.RESUBMIT: 2,
    Action.ROLLBACK_AND_RESUBMIT: 2,
    Action.CHECK_AND_RESUBMIT: 3,
    Action.CORDON_AND_RESUBMIT: 4,
}
"""How much an action does about a failure."""


def model_confidence(right: int, judged: int) -> float:
    """How sure a model's verdicts are: the share of them that was right, smoothed towards that of an unknown model."""
    share = (right + CONFIDENCE_UNJUDGED * _UNJUDGED_CASES) / (judged + _UNJUDGED_CASES)
    return round(min(CONFIDENCE_MAX, share), 3)


def model_confidences(judgements: Iterable[Judgement]) -> Mapping[str, float]:
    """By name of the model, from what people said about its verdicts."""
    right_of: dict[str, list[bool]] = {}
    for judgement in judgements:
        if judgement.decided_by.startswith(DECIDER):
            right_of.setdefault(judgement.decided_by.removeprefix(DECIDER), []).append(judgement.was_right)
    return {model: model_confidence(sum(right), len(right)) for model, right in right_of.items()}


def objection_to_end(kind: FailureType, cited: Sequence[Line], diagnosis: Diagnosis, reported: Ending | None) -> str:
    """Why a run did not end as the model says, "" where it may have.

    kind: the model's type; one that is a failure ends nothing.
    cited: the lines that prove it.
    diagnosis: of the rules.
    reported: what the scheduler, the agent or an exit status says.
    """
    if category_of(kind) is not Category.NONE:
        return ""
    if reported and reported.type is kind:
        return ""
    if contradiction := _contradiction(kind, diagnosis, reported):
        return f"the model says {kind}, but {contradiction}"
    # A record says many things, such as a start; what in it ends the attempt is ``reported``.
    printed = (line.stream.provenance for line in cited if line.stream.source not in RECORDS)
    if Provenance.SCHEDULER in printed:
        return ""
    if _knows_no_failure(diagnosis):
        return ""
    if kind is not FailureType.COMPLETED and _is_weighed_as(kind, cited, diagnosis):
        return ""
    return f"the model says {kind}, which no line of scheduler or launcher shows"


def _contradiction(kind: FailureType, diagnosis: Diagnosis, reported: Ending | None) -> str:
    """What is known of the end that rules the model's one out. Orders to stop may be told more exactly by a line."""
    if (kind, diagnosis.outcome) == (FailureType.COMPLETED, Outcome.HUNG):
        return "the run hangs"
    failed = FailureType.COMPLETED, Category.UNKNOWN, Outcome.FAILED
    if (kind, diagnosis.category, diagnosis.outcome) == failed:
        return "the run failed"
    if reported is None:
        return ""
    other = f"it is reported as {reported.outcome}"
    if category_of(reported.type) is not Category.NONE:
        return other
    if FailureType.COMPLETED in (reported.type, kind):
        return other
    return ""


def _knows_no_failure(diagnosis: Diagnosis) -> bool:
    """Whether neither rules nor reports know of a failure that the model's word could end."""
    if diagnosis.category is Category.NONE:
        return True
    if diagnosis.decided_by == LIKELY_LINE:
        return True
    return (diagnosis.category, diagnosis.outcome) == (Category.UNKNOWN, Outcome.UNKNOWN)


def _is_weighed_as(kind: FailureType, cited: Sequence[Line], diagnosis: Diagnosis) -> bool:
    """Whether a rule reads a cited line as the words of a scheduler or launcher for this end."""
    known = set(_weighed_as(kind, diagnosis))
    return any((line.number, line.text) in known for line in cited)


def _weighed_as(kind: FailureType, diagnosis: Diagnosis) -> Iterator[tuple[int, str]]:
    if diagnosis.root_cause and diagnosis.type is kind:
        yield diagnosis.root_cause.line, diagnosis.root_cause.text
    for rejected in diagnosis.rejected:
        if rejected.type is kind:
            yield rejected.line, rejected.text
    for symptom in diagnosis.symptoms:
        if symptom.type is kind:
            yield symptom.line, symptom.text


def lowered_action(before: Action, after: Action) -> str:
    """Say that a verdict does less about a failure than the one before; "" where it does not."""
    if _REACH[after] >= _REACH[before]:
        return ""
    return f"the model's verdict lowers the action from {before} to {after}"
