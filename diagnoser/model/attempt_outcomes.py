"""Attempts with what became of them: what the report of impact counts. Tuples: it makes hundreds of thousands."""

from typing import NamedTuple

from diagnoser.model.jobs import AttemptKey
from diagnoser.model.plans import Mode, PlanState
from diagnoser.model.taxonomy import Category, FailureType


class FailedRun(NamedTuple):
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


class PlanOutcome(NamedTuple):
    """How the plan for a failure went.

    reason: a ``PlanReason``. has_waited: whether it waited for a person at some time. is_vouched: whether a person
    stood in for a proof that was missing.
    """

    created: float
    mode: Mode
    state: PlanState
    reason: str
    has_waited: bool = False
    is_vouched: bool = False


class AttemptOutcome(NamedTuple):
    """An attempt and, where it failed, its failure.

    cluster: where it ran, as its verdict has it; a job may move. user: whom the scheduler knows the job to belong to.
    gpus: None where the job does not say. until: its end, else its last line. saved: when its newest durable checkpoint
    was saved, None where it reported none. failure, category, type, plan: None where it did not fail.
    incident, node: of the incident that the failure belongs to, "" for none. waited: seconds in the queue, None where
    no scheduler says it. startup: seconds from its start to its first step, None where no verdict has seen one.
    """

    attempt: AttemptKey
    opened: float
    until: float
    cluster: str = ""
    user: str = ""
    gpus: int | None = None
    saved: float | None = None
    failure: FailedRun | None = None
    category: Category | None = None
    type: FailureType | None = None
    plan: PlanOutcome | None = None
    incident: str = ""
    node: str = ""
    waited: float | None = None
    startup: float | None = None
