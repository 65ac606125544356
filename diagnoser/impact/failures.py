"""Finds the failures among attempts: when each one failed, and when and how its job was launched again."""

from functools import lru_cache

import numpy as np

from diagnoser.impact.columns import Attempts
from diagnoser.model import PlanState
from diagnoser.model.taxonomy import FAILURES, Category, Outcome
from diagnoser.recovery import downtime
from diagnoser.recovery.failed_runs import Bools, FailedRuns, Floats, floats

_FAILED = frozenset[str | None](FAILURES)
gpus_of = lru_cache(1024)(downtime.gpus_of)
"""Many attempts say the same."""


def failed_runs(attempts: Attempts) -> FailedRuns:
    """Find the failure of each attempt; one that did not fail has no time of it."""
    gpus = floats([gpus_of(label) or 0 for label in attempts.gpus.values])
    has_verdict = ~attempts.category.is_any((None, ""))
    succeeded = np.where(has_verdict, attempts.category.is_any((Category.NONE,)), np.nan)
    return FailedRuns(
        failed=_failed_at(attempts, attempts.outcome.is_any(_FAILED)),
        diagnosed=attempts.diagnosed,
        gpus=gpus[attempts.gpus.codes],
        relaunched=attempts.of_next(attempts.opened),
        by_plan=attempts.state.is_any((PlanState.REACHED,)),
        next_succeeded=attempts.of_next(succeeded),
    )


def _failed_at(attempts: Attempts, has_failed: Bools) -> Floats:
    """NaN for attempts that did not fail."""
    is_hung = attempts.outcome.is_any((Outcome.HUNG,))
    columns = is_hung, attempts.fatal, np.nan_to_num(attempts.ended), attempts.last_line
    runs = zip(*[column[has_failed].tolist() for column in columns], strict=True)
    failed = np.full(len(attempts), np.nan)
    failed[has_failed] = [
        downtime.failed_at(hung=hung, fatal=fatal, ended=ended, last_line=last_line)
        for hung, fatal, ended, last_line in runs
    ]
    return failed
