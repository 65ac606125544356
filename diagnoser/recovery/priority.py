"""Orders incidents by what they cost: the sum of named terms, each with its reason. Pure.

A point is a doubling: an incident that costs twice as much in one respect has one point more. So no single figure, such
as the GPUs that a job claims for itself, decides alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import FailedRun, Incident, IncidentState
from diagnoser.model.taxonomy import Category
from diagnoser.recovery.downtime import GIVEN_UP, HOUR, lost_hours

ESCALATED = 100.0
"""More than all other terms together."""
MACHINE = 4.0
OWNERS = -4.0
IN_HAND = -2.0
HALF_LIFE = 6 * HOUR
"""Time without another failure after which an incident counts half."""
FADED = -12.0
MOST_GPUS = 16_384
"""Of one job: what a job says of itself is not believed beyond this."""


@dataclass(frozen=True, slots=True)
class Term:
    """A reason for the place of an incident. points: positive ones lift it."""

    points: float
    why: str


@dataclass(frozen=True, slots=True)
class RankedIncident:
    """terms: the one that weighs most first."""

    incident: Incident
    terms: tuple[Term, ...]

    @property
    def points(self) -> float:
        return sum(term.points for term in self.terms)


@dataclass(frozen=True, slots=True)
class _Case:
    """runs: its failures of the last day, as far as they are known."""

    incident: Incident
    runs: Sequence[FailedRun]
    now: float


def by_cost(incidents: Iterable[Incident], runs: Mapping[str, Sequence[FailedRun]], now: float) -> list[RankedIncident]:
    """The one first that costs most. runs: incident -> its failures of the last day."""
    ranked = []
    for incident in incidents:
        believed = [_believed(run) for run in runs.get(incident.id, ())]
        ranked.append(_ranked(_Case(incident, believed, now)))
    return sorted(ranked, key=lambda row: (-row.points, -row.incident.last_seen, row.incident.id))


def is_one_off(incident: Incident) -> bool:
    """Whether it is one script error, which only its owner can fix and nobody here has taken up."""
    if incident.category is not Category.SCRIPT:
        return False
    if incident.state is not IncidentState.OPEN:
        return False
    if incident.assignee or incident.escalated:
        return False
    return incident.failures == 1


def _believed(run: FailedRun) -> FailedRun:
    return run if run.gpus is None else replace(run, gpus=min(run.gpus, MOST_GPUS))


def _ranked(case: _Case) -> RankedIncident:
    terms = list(filter(None, (term(case) for term in _TERMS)))
    return RankedIncident(case.incident, tuple(sorted(terms, key=lambda term: -abs(term.points))))


def _escalated(case: _Case) -> Term | None:
    if not case.incident.escalated:
        return None
    return Term(ESCALATED, "it was escalated")


def _gpus_held(case: _Case) -> Term | None:
    """Jobs that failed and are not running again. After a script error others have their GPUs."""
    if case.incident.category is Category.SCRIPT:
        return None
    down = []
    for run in case.runs:
        if run.relaunched is None and case.now - run.failed < GIVEN_UP:
            down.append(run.gpus or 0)
    if not any(down):
        return None
    return _doublings(sum(down), f"{sum(down):,} GPUs of {_counted(len(down), 'job')} do not run again yet")


def _hours_lost(case: _Case) -> Term | None:
    hours = sum(lost_hours(run, case.now) for run in case.runs)
    if hours < 1:
        return None
    return _doublings(hours, f"{hours:,.0f} GPU hours lost in the last day")


def _repeats(case: _Case) -> Term | None:
    if case.incident.failures < 2:
        return None
    return _doublings(case.incident.failures, f"it happened {case.incident.failures:,} times")


def _spread(case: _Case) -> Term | None:
    if case.incident.jobs < 2:
        return None
    return _doublings(case.incident.jobs, f"it hit {case.incident.jobs:,} jobs")


def _machine(case: _Case) -> Term | None:
    if case.incident.category is not Category.INFRASTRUCTURE:
        return None
    where = case.incident.node or "the same machines"
    return Term(MACHINE, f"the next job on {where} may fail as well")


def _owners(case: _Case) -> Term | None:
    if case.incident.category is not Category.SCRIPT:
        return None
    return Term(OWNERS, "a script error: its owner can fix it")


def _in_hand(case: _Case) -> Term | None:
    if case.incident.state is not IncidentState.ACKNOWLEDGED:
        return None
    return Term(IN_HAND, f"{case.incident.assignee or 'somebody'} works on it")


def _age(case: _Case) -> Term | None:
    quiet = max(0.0, case.now - case.incident.last_seen)
    points = max(-quiet / HALF_LIFE, FADED)
    if points > -1:
        return None
    return Term(points, f"no failure for {_hours(quiet)}")


_TERMS: tuple[Callable[[_Case], Term | None], ...] = (
    _escalated,
    _gpus_held,
    _hours_lost,
    _repeats,
    _spread,
    _machine,
    _owners,
    _in_hand,
    _age,
)


def _doublings(amount: float, why: str) -> Term:
    return Term(math.log2(1 + amount), why)


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def _hours(seconds: float) -> str:
    return f"{seconds / 86_400:.0f} days" if seconds >= 2 * 86_400 else f"{seconds / HOUR:.0f} hours"
