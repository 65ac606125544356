"""The Failure Agent of the paper: asks a language model where the rules do not decide, and believes what it proves.

The model names a type and cites lines; what it can not prove is cut. Its word moves no machine: the action stays that
of the deterministic verdict until a person confirms the cause. Whatever goes wrong leaves the rules' verdict, with the
reason.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

import structlog

from diagnoser.failure_agent.consultation import Consultation, ConsultationConfig, ConsultationInput, UsageCounter
from diagnoser.llm import evidence
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

    Nor where a confirmed incident decided: a person's word about the same failure is not put to the vote.
    """
    if when is LLMTrigger.NEVER or diagnosis.outcome not in _FAILED or diagnosis.category is Category.NONE:
        return None
    if diagnosis.category is Category.UNKNOWN:
        return Need.CAUSE
    if not diagnosis.decided_by.startswith("incident:") and _contested(diagnosis):
        return Need.CONFLICT
    return Need.EXPLANATION if when is LLMTrigger.ALWAYS_EXPLAIN else None


def _contested(diagnosis: Diagnosis) -> bool:
    others = [one for one in diagnosis.rejected if one.type is not diagnosis.type]
    close = any(one.why in _CLOSE for one in others)
    return (diagnosis.confidence < NEAR_FLOOR and bool(others)) or (diagnosis.confidence < CONTESTED and close)


class FailureAgent:
    """deadline: seconds for one consultation. clock: monotonic seconds."""

    def __init__(
        self,
        model: LanguageModel,
        terms: ConsultationConfig,
        policy: Policy,
        metrics: Metrics,
        *,
        when: LLMTrigger,
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._terms = terms
        self._policy = policy
        self._metrics = metrics
        self._when = when
        self._deadline = deadline
        self._clock = clock

    def need(self, diagnosis: Diagnosis) -> Need | None:
        return need(diagnosis, self._when)

    async def consult(self, subject: ConsultationInput, wanted: Need) -> Diagnosis:
        """The diagnosis with the model's part in it; with its failure noted when it had no usable answer."""
        inquiry, started = Consultation(self._model, subject, self._terms), self._clock()
        answers: tuple[Checked, ...] = ()
        failure: ModelFailed | None = None
        try:
            async with asyncio.timeout(self._deadline):
                answers = await inquiry.run()
            if _confidence(answers) < FLOOR and evidence.names_cause(answers[0].answer):
                failure = ModelFailed(ModelFailure.LOW_CONFIDENCE, f"{_confidence(answers):.2f}")
        except TimeoutError:
            failure = ModelFailed(ModelFailure.TIMEOUT, f"no verdict within {self._deadline:g} s")
        except ModelFailed as error:
            failure = error
        use = self._use(inquiry.used, self._clock() - started, failure)
        self._metrics.observe_consultation(use)
        if failure:
            return _stands(subject.diagnosis, use, failure)
        return self._merged(replace(subject.diagnosis, model=use), answers, wanted)

    def _use(self, used: UsageCounter, seconds: float, failure: ModelFailed | None) -> ModelUse:
        prompt, reason = self._terms.prompt, str(failure.reason) if failure else ""
        return ModelUse(
            used.model,
            prompt.label,
            prompt.hash,
            used.calls,
            used.tokens_in,
            used.tokens_out,
            seconds,
            reason,
            prompt.meta.temperature,
        )

    def _merged(self, diagnosis: Diagnosis, answers: Sequence[Checked], wanted: Need) -> Diagnosis:
        best = max(answers, key=lambda one: one.confidence)
        said = best.answer
        if said.type is FailureType.COMPLETED and diagnosis.outcome in (Outcome.FAILED, Outcome.HUNG):
            return _noted(diagnosis, "the model sees no failure, but the run failed")
        if not evidence.names_cause(said):
            return _noted(
                diagnosis, "the model sees no cause either" if wanted is Need.CAUSE else "the model sees no cause"
            )
        if wanted is Need.CAUSE or (wanted is Need.CONFLICT and _settles(diagnosis, best)):
            return self._decided(diagnosis, best, _confidence(answers))
        if said.type is diagnosis.type:
            return _noted(diagnosis, f"the model agrees: {said.mitigation}", *best.notes)
        view = f"the model would say {said.type} (line {best.lines[0].number}); the rules' verdict stands"
        return _noted(diagnosis, ("needs review: " if wanted is Need.CONFLICT else "") + view)

    def _decided(self, diagnosis: Diagnosis, best: Checked, confidence: float) -> Diagnosis:
        """Type, line and words are the model's; the action stays."""
        said, root = best.answer, best.lines[0]
        told = None if diagnosis.outcome is Outcome.UNKNOWN else diagnosis.outcome
        node = said.node or root.node or None
        case = PolicyCase(said.type, said.category, confidence, node_named=node is not None, stable=False)
        advice = self._policy.advise(case)
        return _noted(
            replace(
                diagnosis,
                outcome=outcome.settle(told, said.type, hung=False, completed=False),
                category=said.category,
                type=said.type,
                confidence=confidence,
                decided_by=f"llm:{diagnosis.model.model if diagnosis.model else self._model.name}",
                root_cause=_root(root, said.rank, node),
                evidence=tuple(
                    EvidenceLine(x.number, x.text, "cited by the model", _rank(x), x.stream.source) for x in best.lines
                ),
                nodes=_suspects(diagnosis, node, confidence),
                mitigation=said.mitigation or diagnosis.mitigation,
            ),
            *_words(best),
            f"needs review: once the cause is confirmed the policy says {advice.action} ({advice.reason})",
            *best.notes,
        )


def _suspects(diagnosis: Diagnosis, node: str | None, confidence: float) -> tuple[Suspect, ...]:
    """The model's node is shown to people; where an action goes to nodes, they stay those of the rules."""
    if diagnosis.recovery.action not in (Action.NONE, Action.NOTIFY_USER):
        return diagnosis.nodes
    return (Suspect(node, confidence, "named by the model"),) if node else ()


def _words(best: Checked) -> list[str]:
    said = best.answer
    fault = {"user_error": "a user error", "infrastructure": "a fault of the infrastructure"}.get(said.fault)
    again = {"yes": "the job may succeed when started again", "no": "the job would fail again"}.get(said.recoverable)
    words = [f"the model calls it {fault}"] if fault else []
    words += [f"the model thinks that {again}"] if again else []
    if said.alternative is not said.type and said.alternative.value != "unknown":
        words.append(f"the model's second guess is {said.alternative}")
    return words


def _settles(diagnosis: Diagnosis, best: Checked) -> bool:
    """Between causes that the rules could not tell apart: the model picks one of them, by its line."""
    picked = {(line.number, line.text) for line in best.lines}
    return any(one.type is best.answer.type and (one.line, one.text) in picked for one in diagnosis.rejected)


def _confidence(answers: Sequence[Checked]) -> float:
    return round(min(CONFIDENCE_MAX, sum(one.confidence for one in answers) / len(answers)), 3)


def _stands(diagnosis: Diagnosis, use: ModelUse, failure: ModelFailed) -> Diagnosis:
    structlog.get_logger().warning("model_gave_no_verdict", reason=str(failure.reason), detail=str(failure))
    noted = _noted(diagnosis, f"needs review: {failure}") if failure.reason is ModelFailure.NO_AGREEMENT else diagnosis
    return replace(noted, model=use)


def _noted(diagnosis: Diagnosis, *notes: str) -> Diagnosis:
    return replace(diagnosis, notes=(*diagnosis.notes, *notes))


def _root(line: Line, rank: int | None, node: str | None) -> RootCause:
    known = _rank(line)
    return RootCause(line.number, line.text, known if known is not None else rank, node, None, line.stream.source)


def _rank(line: Line) -> int | None:
    return line.rank if line.rank >= 0 else None
