"""Finds the failures among attempts: when each one failed, and when and how its job was launched again."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest

from diagnoser.model import AttemptOutcome, FailedRun, PlanState
from diagnoser.model.taxonomy import FAILURES, Category, Outcome
from diagnoser.recovery import downtime

_FAILED = frozenset[str](FAILURES)
gpus_of = lru_cache(1024)(downtime.gpus_of)
"""Many attempts say the same."""


def failed_runs(outcomes: Sequence[AttemptOutcome]) -> list[FailedRun | None]:
    """List the failure of each attempt, None for one that did not fail. outcomes: ordered by job and number."""
    runs = list[FailedRun | None]()
    for outcome, following in zip_longest(outcomes, outcomes[1:]):
        if outcome.outcome not in _FAILED:
            runs.append(None)
        elif following is None or following.job != outcome.job:
            runs.append(_failed_run(outcome, None))
        else:
            runs.append(_failed_run(outcome, following))
    return runs


def _failed_run(outcome: AttemptOutcome, following: AttemptOutcome | None) -> FailedRun:
    """following: the next launch of its job."""
    assert outcome.diagnosed is not None, "a verdict says that it failed"
    failed = downtime.failed_at(
        hung=outcome.outcome == Outcome.HUNG, fatal=outcome.fatal, ended=outcome.ended, last_line=outcome.last_line
    )
    relaunched, next_succeeded = None, None
    if following is not None:
        relaunched = following.opened
        if following.category:
            next_succeeded = following.category == Category.NONE
    by_plan = outcome.state == PlanState.REACHED
    return FailedRun(failed, outcome.diagnosed, gpus_of(outcome.gpus), relaunched, by_plan, next_succeeded)
