"""Orders incidents by what they cost: the sum of named terms, each with its reason. Pure.

A point is a doubling: an incident that costs twice as much in one respect has one point more. So no single figure, such
as the GPUs that a job claims for itself, decides alone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from diagnoser.model import FailedRun, Incident, IncidentState
from diagnoser.model.taxonomy import Category
from diagnoser.recovery.downtime import GIVEN_UP, HOUR
from diagnoser.recovery.failed_runs import FailedRuns, lost_hours

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


def by_cost(incidents: Iterable[Incident], runs: Mapping[str, Sequence[FailedRun]], now: float) -> list[RankedIncident]:
    """The one first that costs most. runs: incident -> its failures of the last day."""
    ranked = []
    for incident in incidents:
        believed = [run._replace(gpus=min(run.known_gpus, MOST_GPUS)) for run in runs.get(incident.id, ())]
        terms = [*_costs(incident, believed, now), *_standing(incident, now)]
        ranked.append(RankedIncident(incident, tuple(sorted(terms, key=lambda term: -abs(term.points)))))
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


def _costs(incident: Incident, runs: Sequence[FailedRun], now: float) -> Iterator[Term]:
    """What the incident costs. runs: its failures of the last day, as far as they are known."""
    if incident.category is not Category.SCRIPT:  # after a script error others have the GPUs
        down = [run.known_gpus for run in runs if _is_down(run, now)]
        if any(down):
            yield _doublings(sum(down), f"{sum(down):,} GPUs of {_counted(len(down), 'job')} do not run again yet")
    hours = sum(lost_hours(FailedRuns.of(runs), now).tolist())
    if hours >= 1:
        yield _doublings(hours, f"{hours:,.0f} GPU hours lost in the last day")
    if incident.failures > 1:
        yield _doublings(incident.failures, f"it happened {incident.failures:,} times")
    if incident.jobs > 1:
        yield _doublings(incident.jobs, f"it hit {incident.jobs:,} jobs")


def _is_down(run: FailedRun, now: float) -> bool:
    """Tell whether somebody still waits for the job to run again."""
    return run.relaunched is None and now - run.failed < GIVEN_UP


def _standing(incident: Incident, now: float) -> Iterator[Term]:
    """What it means for the next jobs, whose it is, and how fresh."""
    if incident.escalated:
        yield Term(ESCALATED, "it was escalated")
    if incident.category is Category.INFRASTRUCTURE:
        yield Term(MACHINE, f"the next job on {incident.node or 'the same machines'} may fail as well")
    if incident.category is Category.SCRIPT:
        yield Term(OWNERS, "a script error: its owner can fix it")
    if incident.state is IncidentState.ACKNOWLEDGED:
        yield Term(IN_HAND, f"{incident.assignee or 'somebody'} works on it")
    quiet = max(0.0, now - incident.last_seen)
    points = max(-quiet / HALF_LIFE, FADED)
    if points <= -1:
        lasted = f"{quiet / 86_400:.0f} days" if quiet >= 2 * 86_400 else f"{quiet / HOUR:.0f} hours"
        yield Term(points, f"no failure for {lasted}")


def _doublings(amount: float, why: str) -> Term:
    return Term(math.log2(1 + amount), why)


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
