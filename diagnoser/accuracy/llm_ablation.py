"""Measures on labelled logs what the model stage adds, and what each of its parts adds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnoser.accuracy.scoring import AccuracyReport, Label, report, score_case
from diagnoser.failure_agent.acceptance import model_confidence
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import AblationSwitches, ConsultationInput
from diagnoser.model import AskReason, AttemptKey, ConfirmedFailure, Diagnosis, FeedbackVerdict, ModelEffect
from diagnoser.model.taxonomy import GPU_TIME_SHARE, FailureType
from diagnoser.recovery.policy import Policy
from diagnoser.retrieval import confirmed_failures, signature
from diagnoser.retrieval.index import Index


@dataclass(frozen=True, slots=True)
class AblationStage:
    """memory: all other cases count as confirmed failures. switches: of the model's part, None without a model."""

    memory: bool
    switches: AblationSwitches | None = None


STAGES: Mapping[str, AblationStage] = {
    "rules only": AblationStage(memory=False),
    "+ retrieval": AblationStage(memory=True),
    "+ model": AblationStage(memory=True, switches=AblationSwitches()),
    "- tools": AblationStage(memory=True, switches=AblationSwitches(tools=False)),
    "- vote": AblationStage(memory=True, switches=AblationSwitches(vote=False)),
    "- evidence check": AblationStage(memory=True, switches=AblationSwitches(check=False)),
}
"""What is compared: each stage with those before it, then the whole without one part of the model's stage."""


@dataclass(frozen=True, slots=True)
class AblationCase:
    """A labelled log with the verdict of the rules. subject: the model's input for it."""

    label: Label
    diagnosis: Diagnosis
    subject: ConsultationInput

    @property
    def is_undecided(self) -> bool:
        """Something failed, and no rule says what."""
        return AskReason.UNKNOWN in self.diagnosis.doubts


class FailureMemory:
    """Labelled cases as confirmed failures; a case never matches itself."""

    def __init__(self, cases: Sequence[AblationCase], policy: Policy) -> None:
        self._policy = policy
        self._index = Index()
        for case in cases:
            confirmed = _confirmed_failure(case)
            self._index.put(confirmed, signature.vector(confirmed.signature))

    def recalled(self, case: AblationCase) -> Diagnosis:
        """The verdict, taken from a confirmed failure where one is the same failure."""
        if not case.is_undecided:
            return case.diagnosis
        sign = signature.signature_of(case.subject.log, case.diagnosis)
        nearest = self._index.nearest(signature.vector(sign), confirmed_failures.RIVALS)
        return confirmed_failures.adopt_confirmed_failure(case.diagnosis, _key(case), sign, nearest, self._policy)

    def similar(self, case: AblationCase) -> tuple[str, ...]:
        """Similar confirmed failures, in words for a model."""
        sign = signature.signature_of(case.subject.log, case.diagnosis)
        nearest = self._index.nearest(signature.vector(sign), confirmed_failures.RIVALS)
        alike = confirmed_failures.alike(nearest, _key(case))
        return tuple(map(confirmed_failures.describe, alike[: confirmed_failures.TOLD]))


def _confirmed_failure(case: AblationCase) -> ConfirmedFailure:
    """The confirmed failure that a person's confirmation of the labelled type would leave."""
    return ConfirmedFailure(
        diagnosis=case.label.id,
        attempt=_key(case),
        created=0.0,
        changed=0.0,
        type=FailureType(case.label.type),
        verdict=FeedbackVerdict.CONFIRMED,
        by="label",
        signature=signature.signature_of(case.subject.log, case.diagnosis),
    )


def _key(case: AblationCase) -> AttemptKey:
    return AttemptKey(case.label.id)


@dataclass(frozen=True)
class AblationResult:
    """How one stage did. undecided: shares over the cases without a cause by rules. seconds: what each case took.

    counts: calls and tokens of the model, and

    - recalled: cases that a confirmed failure decides.
    - asked: consultations of the model.
    - heard, heard_right, heard_confidence: verdicts that the model decided, those of the right type, and how far one
      more could be trusted.
    - actions_moved: cases whose action a model changed, or, without a model, a confirmed failure.
    """

    name: str
    report: AccuracyReport
    undecided: AccuracyReport
    counts: Mapping[str, Any]
    seconds: tuple[float, ...]
    failures: Mapping[str, int]

    def figures(self) -> dict[str, float | int | Mapping[str, int] | None]:
        """For a table or JSON."""
        return {
            "type": self.report.shares["type"],
            "category": self.report.shares["category"],
            "action": self.report.shares["action"],
            "undecided_type": self.undecided.shares["type"],
            **self.counts,
            "seconds_mean": sum(self.seconds) / max(1, len(self.seconds)),
            "seconds_max": max(self.seconds, default=0.0),
            "failures": self.failures,
        }


async def run(
    cases: Sequence[AblationCase],
    agent: FailureAgent,
    policy: Policy,
    clock: Callable[[], float],
    before_consultation: Callable[[AblationCase], None] = lambda _: None,
) -> list[AblationResult]:
    """Each stage in turn, case by case. clock: monotonic seconds."""
    results, memory = [], FailureMemory(cases, policy)
    for name, stage in STAGES.items():
        stage_agent = agent.with_switches(stage.switches) if stage.switches else None
        stage_memory = memory if stage.memory else None
        verdicts = [await _verdict(case, stage_memory, stage_agent, clock, before_consultation) for case in cases]
        results.append(_result(name, verdicts))
    return results


@dataclass(frozen=True, slots=True)
class _StageVerdict:
    """A case after a stage. before: the verdict that went into the stage's last part."""

    case: AblationCase
    before: Diagnosis
    diagnosis: Diagnosis
    seconds: float

    @property
    def is_consultation(self) -> bool:
        """Whether the time that it took counts: a model was asked, or could have been."""
        return bool(self.case.is_undecided or self.diagnosis.model)


async def _verdict(
    case: AblationCase,
    memory: FailureMemory | None,
    agent: FailureAgent | None,
    clock: Callable[[], float],
    before_consultation: Callable[[AblationCase], None],
) -> _StageVerdict:
    started, recalled, similar = clock(), case.diagnosis, tuple[str, ...]()
    if memory:
        recalled = memory.recalled(case)
    if agent is None:
        return _StageVerdict(case, case.diagnosis, recalled, clock() - started)
    asked = agent.reasons_to_ask(recalled)
    if not asked:
        return _StageVerdict(case, recalled, recalled, clock() - started)
    if memory:
        similar = memory.similar(case)
    before_consultation(case)
    diagnosis = await agent.consult(replace(case.subject, diagnosis=recalled, confirmed_failures=similar), asked)
    return _StageVerdict(case, recalled, diagnosis, clock() - started)


def _result(name: str, stage_verdicts: Sequence[_StageVerdict]) -> AblationResult:
    counts, seconds, failures = Counter[str](), list[float](), Counter[str]()
    for verdict in stage_verdicts:
        counts["recalled"] += verdict.diagnosis.decided_by.startswith("incident:")
        counts["actions_moved"] += verdict.before.recovery != verdict.diagnosis.recovery
        if verdict.is_consultation:
            seconds.append(verdict.seconds)
        use = verdict.diagnosis.model
        if use is None:
            continue
        counts.update(asked=1, calls=use.calls, tokens_in=use.tokens_in, tokens_out=use.tokens_out)
        failures[use.failure] += 1
        if use.effect is ModelEffect.DECIDED:
            counts["heard"] += 1
            counts["heard_right"] += score_case(verdict.case.label, verdict.diagnosis).type
    failures.pop("", None)
    heard, right = counts["heard"], counts["heard_right"]
    return AblationResult(
        name,
        _report(stage_verdicts),
        _report([verdict for verdict in stage_verdicts if verdict.case.is_undecided]),
        {
            "recalled": counts["recalled"],
            "asked": counts["asked"],
            "heard": heard,
            "heard_right": right,
            "heard_confidence": model_confidence(right, heard) if heard else None,
            "actions_moved": counts["actions_moved"],
            "calls": counts["calls"],
            "tokens_in": counts["tokens_in"],
            "tokens_out": counts["tokens_out"],
        },
        tuple(seconds),
        dict(sorted(failures.items())),
    )


def _report(stage_verdicts: Sequence[_StageVerdict]) -> AccuracyReport:
    verdicts = [score_case(verdict.case.label, verdict.diagnosis) for verdict in stage_verdicts]
    return report(verdicts, {str(kind): share for kind, share in GPU_TIME_SHARE.items()})
