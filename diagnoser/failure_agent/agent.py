"""The Failure Agent of the paper: asks a language model where the rules do not decide, and believes what it proves.

The model names a type and cites lines; what it cannot prove is cut. It never chooses an action: the deterministic
verdict's stands until a person confirms the cause. Whatever goes wrong leaves the rules' verdict, with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

import structlog

from diagnoser.failure_agent.consultation import AblationSwitches, Consultation, ConsultationConfig, ConsultationInput
from diagnoser.failure_agent.conversation import UsageCounter
from diagnoser.llm import evidence
from diagnoser.llm.answer import Answer
from diagnoser.llm.evidence import Checked
from diagnoser.model import Diagnosis, EvidenceLine, Line, ModelUse, RootCause, Suspect
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import LanguageModel
from diagnoser.recovery.policy import Policy, PolicyCase
from diagnoser.rules import outcome

# A model's word never counts for more than this: below the bar that the policy sets for taking a node away.
CONFIDENCE_MAX = 0.75
FLOOR = 0.3
"""Confidence below which the deterministic verdict stands."""
NEAR_FLOOR = 0.6
CONTESTED = 0.9
"""A verdict below this is in question when another cause was set aside only because it came later or said less."""
_CLOSE = frozenset({"came after the root", "a more exact line tells the same event"})
_FAILED = frozenset({Outcome.FAILED, Outcome.HUNG, Outcome.UNKNOWN})


class LLMTrigger(StrEnum):
    """When a site wants the model to be asked."""

    NEVER = "never"
    UNDECIDED = "undecided"
    ALWAYS_EXPLAIN = "always_explain"


class Need(StrEnum):
    """What the model is asked for."""

    CAUSE = "cause"  # the rules found none
    CONFLICT = "conflict"  # the rules found two that are hard to tell apart
    EXPLANATION = "explanation"  # the rules decided


def need(diagnosis: Diagnosis, when: LLMTrigger) -> Need | None:
    """What to ask the model about a verdict, None for nothing: where nothing failed, or the rules are sure.

    Nor where a confirmed incident decided: a person named that cause, and a model does not overrule a person.
    """
    if when is LLMTrigger.NEVER or diagnosis.outcome not in _FAILED or diagnosis.category is Category.NONE:
        return None
    if diagnosis.category is Category.UNKNOWN:
        return Need.CAUSE
    if not diagnosis.decided_by.startswith("incident:") and _contested(diagnosis):
        return Need.CONFLICT
    return Need.EXPLANATION if when is LLMTrigger.ALWAYS_EXPLAIN else None


def _contested(diagnosis: Diagnosis) -> bool:
    rivals = [rejected for rejected in diagnosis.rejected if rejected.type is not diagnosis.type]
    close = any(rival.why in _CLOSE for rival in rivals)
    return (diagnosis.confidence < NEAR_FLOOR and bool(rivals)) or (diagnosis.confidence < CONTESTED and close)


class FailureAgent:
    """clock: monotonic seconds."""

    def __init__(
        self,
        model: LanguageModel,
        config: ConsultationConfig,
        policy: Policy,
        metrics: Metrics,
        *,
        when: LLMTrigger,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._config = config
        self._policy = policy
        self._metrics = metrics
        self._when = when
        self._clock = clock

    def with_switches(self, switches: AblationSwitches) -> "FailureAgent":
        """The same agent with parts of its consultations left out."""
        config = replace(self._config, switches=switches)
        return FailureAgent(self._model, config, self._policy, self._metrics, when=self._when, clock=self._clock)

    def need(self, diagnosis: Diagnosis) -> Need | None:
        return need(diagnosis, self._when)

    async def consult(self, subject: ConsultationInput, wanted: Need) -> Diagnosis:
        """The diagnosis with the model's answer merged in, or with the reason why there is no usable answer."""
        consultation, started = Consultation(self._model, subject, self._config), self._clock()
        answers: tuple[Checked, ...] = ()
        failure: ModelFailed | None = None
        try:
            answers = await consultation.run()
            if _confidence(answers) < FLOOR and evidence.names_cause(answers[0].answer):
                failure = ModelFailed(ModelFailure.LOW_CONFIDENCE, f"{_confidence(answers):.2f}")
        except ModelFailed as error:
            failure = error
        use = self._model_use(consultation.usage, self._clock() - started, failure)
        self._metrics.observe_consultation(use)
        if failure:
            return _unchanged(subject.diagnosis, use, failure)
        return self._merged(replace(subject.diagnosis, model=use), answers, wanted)

    def _model_use(self, usage: UsageCounter, seconds: float, failure: ModelFailed | None) -> ModelUse:
        prompt, reason = self._config.prompt, str(failure.reason) if failure else ""
        return ModelUse(
            usage.model,
            prompt.label,
            prompt.hash,
            usage.calls,
            usage.tokens_in,
            usage.tokens_out,
            seconds,
            reason,
            prompt.meta.temperature,
        )

    def _merged(self, diagnosis: Diagnosis, answers: Sequence[Checked], wanted: Need) -> Diagnosis:
        best = max(answers, key=lambda checked: checked.confidence)
        answer = best.answer
        if answer.type is FailureType.COMPLETED and diagnosis.outcome in (Outcome.FAILED, Outcome.HUNG):
            return _with_notes(diagnosis, "the model sees no failure, but the run failed")
        if not evidence.names_cause(answer):
            return _with_notes(diagnosis, f"the model sees no cause{' either' if wanted is Need.CAUSE else ''}")
        if wanted is Need.CAUSE or (wanted is Need.CONFLICT and _picks_rival(diagnosis, best)):
            return self._decided(diagnosis, best, _confidence(answers))
        if answer.type is diagnosis.type:
            return _with_notes(diagnosis, f"the model agrees: {answer.mitigation}", *best.notes)
        view = f"the model would say {answer.type} (line {best.lines[0].number}); the rules' verdict stands"
        return _with_notes(diagnosis, ("needs review: " if wanted is Need.CONFLICT else "") + view)

    def _decided(self, diagnosis: Diagnosis, best: Checked, confidence: float) -> Diagnosis:
        """Type, line and words are the model's; the action stays."""
        answer, root = best.answer, best.lines[0]
        known_outcome = None if diagnosis.outcome is Outcome.UNKNOWN else diagnosis.outcome
        node = answer.node or root.node or None
        case = PolicyCase(answer.type, answer.category, confidence, node_named=node is not None, stable=False)
        advice = self._policy.advise(case)
        return _with_notes(
            replace(
                diagnosis,
                outcome=outcome.decide_outcome(known_outcome, answer.type, hung=False, completed=False),
                category=answer.category,
                type=answer.type,
                confidence=confidence,
                decided_by=f"llm:{diagnosis.model.model if diagnosis.model else self._model.name}",
                root_cause=_root_cause(root, answer.rank, node),
                evidence=tuple(
                    EvidenceLine(line.number, line.text, "cited by the model", _rank(line), line.stream.source)
                    for line in best.lines
                ),
                nodes=_suspects(diagnosis, node, confidence),
                mitigation=answer.mitigation or diagnosis.mitigation,
            ),
            *_remarks(answer),
            f"needs review: once the cause is confirmed the policy says {advice.action} ({advice.reason})",
            *best.notes,
        )


def _suspects(diagnosis: Diagnosis, node: str | None, confidence: float) -> tuple[Suspect, ...]:
    """The model's node is shown to people; where an action goes to nodes, they stay those of the rules."""
    if diagnosis.recovery.action not in (Action.NONE, Action.NOTIFY_USER):
        return diagnosis.nodes
    return (Suspect(node, confidence, "named by the model"),) if node else ()


def _remarks(answer: Answer) -> list[str]:
    fault = {"user_error": "a user error", "infrastructure": "a fault of the infrastructure"}.get(answer.fault)
    retry = {"yes": "the job may succeed when started again", "no": "the job would fail again"}.get(answer.recoverable)
    remarks = [f"the model calls it {fault}"] if fault else []
    remarks += [f"the model thinks that {retry}"] if retry else []
    if answer.alternative is not answer.type and answer.alternative.value != "unknown":
        remarks.append(f"the model's second guess is {answer.alternative}")
    return remarks


def _picks_rival(diagnosis: Diagnosis, best: Checked) -> bool:
    """Whether the model picks a cause that the rules set aside, and cites that cause's line."""
    cited = {(line.number, line.text) for line in best.lines}
    return any(rival.type is best.answer.type and (rival.line, rival.text) in cited for rival in diagnosis.rejected)


def _confidence(answers: Sequence[Checked]) -> float:
    return round(min(CONFIDENCE_MAX, sum(checked.confidence for checked in answers) / len(answers)), 3)


def _unchanged(diagnosis: Diagnosis, use: ModelUse, failure: ModelFailed) -> Diagnosis:
    structlog.get_logger().warning("model_gave_no_verdict", reason=str(failure.reason), detail=str(failure))
    if failure.reason is ModelFailure.NO_AGREEMENT:
        diagnosis = _with_notes(diagnosis, f"needs review: {failure}")
    return replace(diagnosis, model=use)


def _with_notes(diagnosis: Diagnosis, *notes: str) -> Diagnosis:
    return replace(diagnosis, notes=(*diagnosis.notes, *notes))


def _root_cause(line: Line, rank: int | None, node: str | None) -> RootCause:
    printed_by = _rank(line)
    rank = rank if printed_by is None else printed_by
    return RootCause(line.number, line.text, rank, node, None, line.stream.source)


def _rank(line: Line) -> int | None:
    return line.rank if line.rank >= 0 else None
