"""What the model stage is worth on labelled logs, and what each of its parts adds: run, then counted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnoser.accuracy.scoring import AccuracyReport, Label, ScoredVerdict, judge, report
from diagnoser.failure_agent.agent import FailureAgent, LLMTrigger, Need, need
from diagnoser.failure_agent.consultation import AblationSwitches, ConsultationInput
from diagnoser.model import AttemptKey, Diagnosis, FeedbackVerdict, Incident, ModelUse
from diagnoser.model.taxonomy import GPU_TIME_SHARE, FailureType
from diagnoser.recovery.policy import Policy
from diagnoser.retrieval import incidents, signature
from diagnoser.retrieval.index import Index


@dataclass(frozen=True, slots=True)
class AblationStage:
    """memory: all other cases count as confirmed incidents. switches: of the model's part, None without a model."""

    memory: bool
    switches: AblationSwitches | None = None


STAGES: Mapping[str, AblationStage] = {
    "rules only": AblationStage(memory=False),
    "+ retrieval": AblationStage(memory=True),
    "+ model": AblationStage(memory=True, switches=AblationSwitches()),
    "- vote": AblationStage(memory=True, switches=AblationSwitches(vote=False)),
    "- evidence check": AblationStage(memory=True, switches=AblationSwitches(check=False)),
}
"""What is compared: each stage with those before it, then the whole with one part of the model's left out."""


@dataclass(frozen=True, slots=True)
class AblationCase:
    """A labelled log with the verdict of the rules. subject: what a model would be asked about it."""

    label: Label
    diagnosis: Diagnosis
    subject: ConsultationInput

    @property
    def is_undecided(self) -> bool:
        """Something failed, and no rule says what."""
        return need(self.diagnosis, LLMTrigger.UNDECIDED) is Need.CAUSE


class Memory:
    """Labelled cases as incidents that people confirmed; a case never remembers itself."""

    def __init__(self, cases: Sequence[AblationCase], policy: Policy) -> None:
        self._policy = policy
        self._index = Index()
        for one in cases:
            known = remembered(one)
            self._index.put(known, signature.vector(known.signature))

    def recalled(self, case: AblationCase) -> Diagnosis:
        """The verdict with that of a confirmed incident which is the same failure."""
        if not case.is_undecided:
            return case.diagnosis
        sign = signature.of(case.subject.log, case.diagnosis)
        nearest = self._index.nearest(signature.vector(sign), incidents.RIVALS)
        return incidents.settle(case.diagnosis, _key(case), sign, nearest, self._policy)

    def told(self, case: AblationCase) -> tuple[str, ...]:
        """Similar incidents as a model is told of them."""
        sign = signature.of(case.subject.log, case.diagnosis)
        near = self._index.nearest(signature.vector(sign), incidents.RIVALS)
        others = [one for one in near if one.incident.attempt != _key(case) and one.score >= incidents.ALIKE]
        return tuple(incidents.describe(one) for one in others[: incidents.TOLD])


def remembered(case: AblationCase) -> Incident:
    """What would be known of this case had a person named its labelled type."""
    return Incident(
        diagnosis=case.label.id,
        attempt=_key(case),
        created=0.0,
        changed=0.0,
        type=FailureType(case.label.type),
        verdict=FeedbackVerdict.CONFIRMED,
        by="label",
        signature=signature.of(case.subject.log, case.diagnosis),
    )


def _key(case: AblationCase) -> AttemptKey:
    return AttemptKey(case.label.id)


@dataclass(frozen=True)
class AblationOutcome:
    """How one stage did. undecided: shares over the cases without a cause by rules. seconds: what each case took.

    recalled: cases that a confirmed incident decides. asked: consultations of the model. moved: cases whose action a
    model changed, or, without a model, an incident. cost: in the currency of the prices.
    """

    name: str
    report: AccuracyReport
    undecided: AccuracyReport
    recalled: int
    asked: int
    moved: int
    calls: int
    tokens_in: int
    tokens_out: int
    cost: float
    seconds: tuple[float, ...]
    failures: Mapping[str, int]

    def figures(self) -> dict[str, float | int | Mapping[str, int] | None]:
        """For a table or JSON."""
        return {
            "type": self.report.shares["type"],
            "category": self.report.shares["category"],
            "action": self.report.shares["action"],
            "undecided_type": self.undecided.shares["type"],
            "recalled": self.recalled,
            "asked": self.asked,
            "actions_moved": self.moved,
            "calls": self.calls,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "cost": self.cost,
            "seconds_mean": sum(self.seconds) / len(self.seconds) if self.seconds else 0.0,
            "seconds_max": max(self.seconds, default=0.0),
            "failures": self.failures,
        }


async def run(
    cases: Sequence[AblationCase],
    agent: FailureAgent,
    policy: Policy,
    cost: Callable[[int, int], float],
    clock: Callable[[], float],
    began: Callable[[AblationCase], None] = lambda _: None,
) -> list[AblationOutcome]:
    """Each stage in turn, case by case. clock: monotonic seconds. began: called before each consultation."""
    outcomes, memory = [], Memory(cases, policy)
    for name, stage in STAGES.items():
        asker = agent.with_switches(stage.switches) if stage.switches else None
        done = [await _one(case, memory if stage.memory else None, asker, clock, began) for case in cases]
        outcomes.append(_outcome(name, done, cost))
    return outcomes


@dataclass(frozen=True, slots=True)
class _Done:
    """A case after a stage. before: the verdict that the stage's last part began with."""

    case: AblationCase
    before: Diagnosis
    found: Diagnosis
    seconds: float


async def _one(
    case: AblationCase,
    memory: Memory | None,
    agent: FailureAgent | None,
    clock: Callable[[], float],
    began: Callable[[AblationCase], None],
) -> _Done:
    started = clock()
    known = memory.recalled(case) if memory else case.diagnosis
    wanted = agent.need(known) if agent else None
    if agent is None or wanted is None:
        return _Done(case, known if agent else case.diagnosis, known, clock() - started)
    told = memory.told(case) if memory else ()
    began(case)
    found = await agent.consult(replace(case.subject, diagnosis=known, incidents=told), wanted)
    return _Done(case, known, found, clock() - started)


def _outcome(name: str, done: Sequence[_Done], cost: Callable[[int, int], float]) -> AblationOutcome:
    verdicts = [judge(one.case.label, one.found) for one in done]
    undecided = [verdict for one, verdict in zip(done, verdicts, strict=True) if one.case.is_undecided]
    uses: list[ModelUse] = [one.found.model for one in done if one.found.model]
    tokens_in, tokens_out = sum(use.tokens_in for use in uses), sum(use.tokens_out for use in uses)
    return AblationOutcome(
        name,
        _report(verdicts),
        _report(undecided),
        sum(one.found.decided_by.startswith("incident:") for one in done),
        len(uses),
        sum(one.before.recovery != one.found.recovery for one in done),
        sum(use.calls for use in uses),
        tokens_in,
        tokens_out,
        cost(tokens_in, tokens_out),
        tuple(one.seconds for one in done if one.case.is_undecided or one.found.model),
        dict(sorted(Counter(use.failure for use in uses if use.failure).items())),
    )


def _report(verdicts: Sequence[ScoredVerdict]) -> AccuracyReport:
    return report(verdicts, {str(kind): share for kind, share in GPU_TIME_SHARE.items()})
