"""What the model stage is worth on labelled logs, and what each of its parts adds: run, then counted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diagnoser.evaluation import Label, Report, Verdict, judge, report
from diagnoser.failure_agent import FailureAgent, Need, When, need
from diagnoser.inquiry import Steps, Subject
from diagnoser.model import Diagnosis, ModelUse
from diagnoser.taxonomy import GPU_TIME_SHARE

STAGES: Mapping[str, Steps | None] = {
    "rules only": None,
    "+ model": Steps(),
    "- vote": Steps(vote=False),
    "- evidence check": Steps(check=False),
}
"""What is compared: without a model, with all of the stage, and with one part left out."""


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled log with the verdict of the rules. subject: what a model would be asked, None where it is not."""

    label: Label
    diagnosis: Diagnosis
    subject: Subject | None = None
    need: Need = Need.CAUSE


def case(label: Label, diagnosis: Diagnosis, asked: Subject, when: When) -> Case:
    """What is asked about this log, if anything is."""
    wanted = need(diagnosis, when)
    return Case(label, diagnosis, asked if wanted else None, wanted or Need.CAUSE)


@dataclass(frozen=True)
class Outcome:
    """How one stage did. undecided: shares over the cases without a cause by rules. seconds: of each consultation.

    moved: cases whose action is not that of the rules. cost: in the currency of the prices.
    """

    name: str
    report: Report
    undecided: Report
    moved: int
    calls: int
    tokens_in: int
    tokens_out: int
    cost: float
    seconds: tuple[float, ...]
    failures: Mapping[str, int]

    def figures(self) -> dict[str, float | int | Mapping[str, int] | None]:
        """For a table or JSON."""
        asked = len(self.seconds)
        return {
            "type": self.report.shares["type"],
            "category": self.report.shares["category"],
            "action": self.report.shares["action"],
            "undecided_type": self.undecided.shares["type"],
            "actions_moved": self.moved,
            "asked": asked,
            "calls": self.calls,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "cost": self.cost,
            "seconds_mean": sum(self.seconds) / asked if asked else 0.0,
            "seconds_max": max(self.seconds, default=0.0),
            "failures": self.failures,
        }


async def run(
    cases: Sequence[Case],
    agent: Callable[[Steps], FailureAgent],
    cost: Callable[[int, int], float],
    began: Callable[[Case], None] = lambda _: None,
) -> list[Outcome]:
    """Each stage in turn, case by case. agent: made anew for each stage. began: told before each consultation."""
    outcomes = []
    for name, steps in STAGES.items():
        asker = agent(steps) if steps else None
        found = [await _one(case, asker, began) for case in cases]
        outcomes.append(_outcome(name, cases, found, cost))
    return outcomes


async def _one(case: Case, agent: FailureAgent | None, began: Callable[[Case], None]) -> Diagnosis:
    if agent is None or case.subject is None:
        return case.diagnosis
    began(case)
    return await agent.consult(case.subject, case.need)


def _outcome(
    name: str, cases: Sequence[Case], found: Sequence[Diagnosis], cost: Callable[[int, int], float]
) -> Outcome:
    verdicts = [judge(case.label, diagnosis) for case, diagnosis in zip(cases, found, strict=True)]
    pairs = zip(cases, verdicts, strict=True)
    undecided = [verdict for case, verdict in pairs if case.subject and case.need is Need.CAUSE]
    uses: list[ModelUse] = [diagnosis.model for diagnosis in found if diagnosis.model]
    tokens_in, tokens_out = sum(use.tokens_in for use in uses), sum(use.tokens_out for use in uses)
    moved = (case.diagnosis.recovery != one.recovery for case, one in zip(cases, found, strict=True))
    return Outcome(
        name,
        _report(verdicts),
        _report(undecided),
        sum(moved),
        sum(use.calls for use in uses),
        tokens_in,
        tokens_out,
        cost(tokens_in, tokens_out),
        tuple(use.seconds for use in uses),
        dict(sorted(Counter(use.failure for use in uses if use.failure).items())),
    )


def _report(verdicts: Sequence[Verdict]) -> Report:
    return report(verdicts, {str(kind): share for kind, share in GPU_TIME_SHARE.items()})
