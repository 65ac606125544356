"""The Failure Agent of the paper: asks a language model where the rules' verdict is in doubt, and hears what it proves.

The model names a type and cites lines; what it cannot prove is cut. Its type then stands in place of a doubtful one.
It never chooses an action: the policy table does, as for a verdict that no stable rule made, and a person approves
whatever touches a node or launches again (``recovery.policy.mode_for``). Whatever goes wrong leaves the rules' verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum

import structlog

from diagnoser.failure_agent.acceptance import CONFIDENCE_UNJUDGED, DECIDER, lowered_action, objection_to_end
from diagnoser.failure_agent.consultation import AblationSwitches, Consultation, ConsultationConfig, ConsultationInput
from diagnoser.failure_agent.conversation import UsageCounter
from diagnoser.failure_agent.tools import RECORDS
from diagnoser.llm import evidence, vote
from diagnoser.llm.answer import Answer
from diagnoser.llm.evidence import Checked
from diagnoser.model import (
    AskReason,
    DecisionBasis,
    Diagnosis,
    EvidenceLine,
    Hypotheses,
    Line,
    ModelEffect,
    ModelUse,
    RootCause,
    Suspect,
    rules_verdict,
)
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.job_contract import labels_of
from diagnoser.model.taxonomy import NODE_FAULTS, Category, FailureType, Outcome
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import LanguageModel
from diagnoser.recovery.policy import Policy, case_of
from diagnoser.rules import outcome

_NOBODY_JUDGED: Mapping[str, float] = {}
FLOOR = 0.3
"""Confidence below which the deterministic verdict stands."""
_FAILED = frozenset({Outcome.FAILED, Outcome.HUNG, Outcome.UNKNOWN})
_RULE = "rule:"
"""How the decider of a verdict that a rule made begins."""


class LLMTrigger(StrEnum):
    """When a site wants the model to be asked."""

    NEVER = "never"
    UNDECIDED = "undecided"
    ALWAYS_EXPLAIN = "always_explain"


def reasons_to_ask(diagnosis: Diagnosis, when: LLMTrigger) -> tuple[AskReason, ...]:
    """Why the model is asked about a verdict, () where it is not: what is in doubt, or a site's wish for explanations.

    A verdict that a confirmed failure decided is in no doubt: a person named that cause, and a model does not overrule
    a person.
    """
    if when is LLMTrigger.NEVER:
        return ()
    if diagnosis.doubts and not diagnosis.decided_by.startswith("incident:"):
        return diagnosis.doubts
    if diagnosis.outcome not in _FAILED:
        return ()
    if diagnosis.category is Category.NONE:
        return ()
    if when is not LLMTrigger.ALWAYS_EXPLAIN:
        return ()
    return (AskReason.EXPLANATION,)


@dataclass(eq=False)
class FailureAgent:
    """clock: monotonic seconds."""

    model: LanguageModel
    config: ConsultationConfig
    policy: Policy
    metrics: Metrics
    _: KW_ONLY
    when: LLMTrigger
    clock: Callable[[], float]

    def with_switches(self, switches: AblationSwitches) -> "FailureAgent":
        """The same agent with parts of its consultations left out."""
        return replace(self, config=replace(self.config, switches=switches))

    def reasons_to_ask(self, diagnosis: Diagnosis) -> tuple[AskReason, ...]:
        return reasons_to_ask(diagnosis, self.when)

    async def consult(
        self,
        subject: ConsultationInput,
        asked: tuple[AskReason, ...],
        confidences: Mapping[str, float] = _NOBODY_JUDGED,
    ) -> Diagnosis:
        """The diagnosis with the model's answer merged in, or with the reason why there is no usable answer.

        confidences: how sure each model's verdicts are by the site's judged cases.
        """
        consultation, started = Consultation(self.model, subject, self.config), self.clock()
        answers: tuple[Checked, ...] = ()
        failure: ModelFailed | None = None
        try:
            answers = await consultation.run()
            if _stated(answers) < FLOOR and evidence.names_cause(answers[0].answer):
                failure = ModelFailed(ModelFailure.LOW_CONFIDENCE, f"{_stated(answers):.2f}")
        except ModelFailed as error:
            failure = error
        use = replace(
            self._model_use(consultation.usage, self.clock() - started, failure),
            asked=asked,
            before=rules_verdict(subject.diagnosis),
            tools=consultation.tool_uses,
            hypotheses=_hypotheses(answers),
        )
        self.metrics.observe_consultation(use)
        if failure:
            return _unchanged(subject.diagnosis, use, failure)
        limit = confidences.get(use.model, CONFIDENCE_UNJUDGED)
        return self._merged(subject, replace(subject.diagnosis, model=use), answers, asked, limit)

    def _model_use(self, usage: UsageCounter, seconds: float, failure: ModelFailed | None) -> ModelUse:
        prompt, reason = self.config.prompt, str(failure.reason) if failure else ""
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

    def _merged(
        self,
        subject: ConsultationInput,
        diagnosis: Diagnosis,
        answers: Sequence[Checked],
        asked: tuple[AskReason, ...],
        limit: float,
    ) -> Diagnosis:
        """limit: the highest confidence of a verdict of this model."""
        best = max(answers, key=lambda checked: checked.confidence)
        kind = best.answer.type
        if not evidence.names_cause(best.answer):
            either = " either" if diagnosis.category is Category.UNKNOWN else ""
            return _with_notes(diagnosis, f"the model sees no cause{either}")
        if kind is diagnosis.type and not diagnosis.is_undecided:
            return _agreed(diagnosis, answers, best)
        review = f"the model says {kind} (line {best.lines[0].number}), {diagnosis.decided_by} says {diagnosis.type}"
        if asked == (AskReason.EXPLANATION,):
            return _with_effect(replace(diagnosis, needs_review=review), ModelEffect.CONTRADICTED)
        reported = outcome.reported(subject.facts.events)
        if objection := objection_to_end(kind, best.lines, diagnosis, reported):
            return _with_effect(replace(diagnosis, needs_review=objection), ModelEffect.CONTRADICTED)
        decided = self._decided(subject, diagnosis, answers, best, limit)
        reviews = [lowered_action(diagnosis.recovery.action, decided.recovery.action)]
        if diagnosis.decided_by.startswith(_RULE):
            reviews.append(review)
        return replace(decided, needs_review="; ".join(filter(None, reviews)))

    def _decided(
        self,
        subject: ConsultationInput,
        diagnosis: Diagnosis,
        answers: Sequence[Checked],
        best: Checked,
        limit: float,
    ) -> Diagnosis:
        """Type, line and words are the model's, rank and node too where it shows them; the action is the table's."""
        answer, confidence = best.answer, min(limit, _stated(answers))
        root = _root_cause(subject, diagnosis, answers, best)
        model = diagnosis.model.model if diagnosis.model else self.model.name
        verdict = replace(
            diagnosis,
            outcome=_outcome(subject, diagnosis, answer),
            category=answer.category,
            type=answer.type,
            confidence=confidence,
            decided_by=f"{DECIDER}{model}",
            root_cause=root,
            evidence=tuple(map(_cited, best.lines)),
            nodes=_suspects(diagnosis, answer, root.node if root else None, confidence),
            mitigation=answer.mitigation or diagnosis.mitigation,
            rollback=diagnosis.rollback if answer.type is FailureType.LOSS_DIVERGENCE else None,
            # No rule decided, and no node counts as named: rows that take a node out ask for both.
            grounds=DecisionBasis(),
            rivals=(),
        )
        verdict = replace(verdict, recovery=self.policy.advise(case_of(verdict, labels_of(subject.facts.job))))
        return _with_effect(verdict, ModelEffect.DECIDED, *_remarks(answer), *best.notes)


def _outcome(subject: ConsultationInput, diagnosis: Diagnosis, answer: Answer) -> Outcome:
    """The outcome that was reported, else the one that is known without a cause, else the one that the cause means."""
    known = outcome.reported(subject.facts.events) or _known_without_cause(diagnosis)
    return outcome.decide_outcome(known, answer.type, hung=diagnosis.outcome is Outcome.HUNG)


def _known_without_cause(diagnosis: Diagnosis) -> Outcome | None:
    if diagnosis.category is not Category.UNKNOWN:
        return None
    if diagnosis.outcome is Outcome.UNKNOWN:
        return None
    return diagnosis.outcome


def _agreed(diagnosis: Diagnosis, answers: Sequence[Checked], best: Checked) -> Diagnosis:
    """The rules' verdict; one in doubt also with a rank and a node that the model shows where the rules show none."""
    effect, note = ModelEffect.AGREED, "the model agrees"
    if best.answer.mitigation:
        note = f"{note}: {best.answer.mitigation}"
    root = diagnosis.root_cause
    if root is not None:
        root = _located(root, diagnosis, answers)
    if root != diagnosis.root_cause:
        effect = ModelEffect.LOCATED
    return _with_effect(replace(diagnosis, root_cause=root), effect, note, *best.notes)


def _located(root: RootCause, diagnosis: Diagnosis, answers: Sequence[Checked]) -> RootCause:
    if not diagnosis.doubts:
        return root
    if root.rank is None:
        root = replace(root, rank=_rank_of(answers))
    if diagnosis.category is not Category.INFRASTRUCTURE:
        return root  # no node is to blame
    if root.node is None:
        root = replace(root, node=_node_of(answers))
    return root


def _suspects(diagnosis: Diagnosis, answer: Answer, node: str | None, confidence: float) -> tuple[Suspect, ...]:
    """The rules' suspects; where they have none, the node of the model's root. A fault that no node causes has none."""
    if answer.type not in NODE_FAULTS:
        return ()
    if diagnosis.nodes:
        return diagnosis.nodes
    if not node:
        return ()
    return (Suspect(node, confidence, "named by the model"),)


def _rank_of(answers: Sequence[Checked]) -> int | None:
    """The rank that printed the decisive line, else the one that the answers agree on."""
    printed = vote.shared(checked.lines[0].known_rank for checked in answers)
    if printed is not None:
        return printed
    return vote.shared(checked.answer.rank for checked in answers)


def _node_of(answers: Sequence[Checked]) -> str | None:
    named = vote.shared(checked.answer.node for checked in answers)
    if named is not None:
        return named
    return vote.shared(checked.lines[0].node or None for checked in answers)


def _node_of_rank(subject: ConsultationInput, rank: int | None) -> str | None:
    if rank is None:
        return None
    return {**subject.log.rank_nodes, **subject.facts.job.rank_nodes}.get(rank)


def _root_cause(
    subject: ConsultationInput, diagnosis: Diagnosis, answers: Sequence[Checked], best: Checked
) -> RootCause | None:
    """The model's first line that a log holds. Rank and node are those of the rules unless the model or its line shows
    others."""
    before, gpu = diagnosis.root_cause, None
    line = next((line for line in best.lines if line.stream.source not in RECORDS), None)
    if line is None:
        return None
    rank, node = _rank_of(answers), _node_of(answers)
    if node is None:
        node = _node_of_rank(subject, rank)
    if before is not None:
        if rank is None:
            rank = before.rank
        if node is None and rank in (before.rank, None):
            node = before.node
        if node == before.node:
            gpu = before.gpu
    stream = line.stream
    return RootCause(line.number, line.text, rank, node, gpu, stream.source, stream.provenance)


def _cited(line: Line) -> EvidenceLine:
    stream = line.stream
    return EvidenceLine(line.number, line.text, "cited by the model", line.known_rank, stream.source, stream.provenance)


def _hypotheses(answers: Sequence[Checked]) -> Hypotheses | None:
    """The two best causes of the surest answer that names two."""
    for checked in sorted(answers, key=lambda checked: -checked.confidence):
        answer = checked.answer
        if answer.alternative not in (FailureType.UNKNOWN, answer.type):
            return Hypotheses(answer.type, answer.alternative, answer.tells_apart)
    return None


def _remarks(answer: Answer) -> list[str]:
    fault = {"user_error": "a user error", "infrastructure": "a fault of the infrastructure"}.get(answer.fault)
    retry = {"yes": "the job may succeed when started again", "no": "the job would fail again"}.get(answer.recoverable)
    remarks = []
    if fault:
        remarks.append(f"the model calls it {fault}")
    if retry:
        remarks.append(f"the model thinks that {retry}")
    return remarks


def _stated(answers: Sequence[Checked]) -> float:
    """How sure the model says that it is, less for each claim that was cut."""
    return round(sum(checked.confidence for checked in answers) / len(answers), 3)


def _unchanged(diagnosis: Diagnosis, use: ModelUse, failure: ModelFailed) -> Diagnosis:
    structlog.get_logger().warning("model_gave_no_verdict", reason=str(failure.reason), detail=str(failure))
    if failure.reason is ModelFailure.NO_AGREEMENT:
        diagnosis = replace(diagnosis, needs_review=f"the model's answers differ: {failure.detail}")
    return replace(diagnosis, model=use)


def _with_effect(diagnosis: Diagnosis, effect: ModelEffect, *notes: str) -> Diagnosis:
    if diagnosis.model:
        diagnosis = replace(diagnosis, model=replace(diagnosis.model, effect=effect))
    return _with_notes(diagnosis, *notes)


def _with_notes(diagnosis: Diagnosis, *notes: str) -> Diagnosis:
    return replace(diagnosis, notes=(*diagnosis.notes, *notes))
