"""Attempts with what became of them: what the report of impact counts."""

from typing import NamedTuple


class FailedRun(NamedTuple):
    """A launch that failed. Times are seconds since the epoch.

    failed: its last progress, as far as it shows (``recovery.downtime.failed_at``). diagnosed: when its verdict was
    made. gpus: of the job, None where it does not say. relaunched: when its job was launched again, None if it was not.
    by_plan: whether an agent carried out the plan for it. next_succeeded: whether that launch ended without a failure,
    None while it has no verdict.
    """

    failed: float
    diagnosed: float
    gpus: int | None = None
    relaunched: float | None = None
    by_plan: bool = False
    next_succeeded: bool | None = None

    @property
    def known_gpus(self) -> int:
        """GPUs of the job, 0 where it does not say."""
        return self.gpus or 0


class AttemptOutcome(NamedTuple):
    """An attempt with its verdict, the plan for it and its incident, as they are stored.

    ended, last_line, fatal: as of ``Attempt``. saved: when its newest durable checkpoint was saved, None where it
    reported none. waited: seconds in the queue, None where no scheduler says it. startup: seconds from its start to its
    first step, None where no verdict has seen one. cluster: where it ran, as its verdict has it; a job may move. user:
    whom the scheduler knows the job to belong to. gpus: as the job says them, None where it does not.

    outcome, category, type, diagnosed: of its verdict, None where it has none. state, planned, mode, reason,
    has_waited, is_vouched: of the plan, None where nothing was planned; has_waited: whether it waited for a person at
    some time; is_vouched: whether a person stood in for a proof that was missing. incident, node: of the incident that
    its failure belongs to.
    """

    job: str
    number: int
    opened: float
    ended: float | None = None
    last_line: float = 0.0
    fatal: float | None = None
    saved: float | None = None
    waited: float | None = None
    startup: float | None = None
    cluster: str = ""
    user: str = ""
    gpus: str | None = None
    outcome: str | None = None
    category: str | None = None
    type: str | None = None
    diagnosed: float | None = None
    state: str | None = None
    planned: float | None = None
    mode: str | None = None
    reason: str | None = None
    has_waited: bool | None = None
    is_vouched: bool | None = None
    incident: str | None = None
    node: str | None = None
