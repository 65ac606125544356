"""Runs that failed, and what became of them."""

from dataclasses import dataclass

from diagnoser.model.jobs import AttemptKey


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A launch that failed. Times are seconds since the epoch.

    failed: its last progress, as far as it shows (``recovery.downtime.failed_at``). diagnosed: when its verdict was
    made. gpus: of the job, None where it does not say. relaunched: when its job was launched again, None if it was not.
    by_plan: whether an agent carried out the plan for it. next_succeeded: whether that launch ended without a fault,
    None while it has no verdict.
    """

    attempt: AttemptKey
    failed: float
    diagnosed: float
    gpus: int | None = None
    relaunched: float | None = None
    by_plan: bool = False
    next_succeeded: bool | None = None
