"""Jobs, their attempts, who works on which, and what came of it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import Attempt, AttemptKey, Diagnosis, Event, Feedback, Job, OutboxMessage, Plan, TransitionResult
from diagnoser.model.access import EVERYTHING, Owner, Viewer
from diagnoser.ports.recovery import PlanTransition


class JobStore(Protocol):
    async def register(self, job: Job, attempt: int | None = None) -> Job:
        """Insert or update a job: fields that are set win, empty ones keep what is stored.

        Its nodes become those of the attempt (the latest one by default). When an agent registers it for its tenant,
        it becomes what tokens of that tenant have sent under its id before (``model.own_job_id``), and no more than
        that: what tokens of others have sent stays theirs. An end that no scheduler told does not count any more, and
        plans that were made for it are withdrawn.
        """

    async def owners(self, ids: Collection[str]) -> dict[str, Owner]:
        """Of those of the jobs that are known."""

    async def assign_owner(self, ids: Collection[str], owner: Owner, now: float) -> dict[str, Owner]:
        """Job -> whose it is. One that is not known is made, and is this owner's. One that belongs to no cluster
        becomes one of this one's; the tenant of a known job stays, also none: what others have sent is not given
        away."""

    async def add_event(self, attempt: AttemptKey, event: Event, sender: Viewer = EVERYTHING) -> bool:
        """Whether it is new: idempotent for an equal event, and for a phase of a checkpoint that is known. Creates job
        and attempt when needed. Of an attempt with very many checkpoints, the oldest are dropped.

        Where a scheduler has an agent, an end that it did not tell ends nothing: it only makes the attempt be looked at
        after a shorter silence. Raises OwnerMoved when the job is not the sender's any more."""

    async def checkpoint_events(self, before: AttemptKey) -> list[tuple[Event, ...]]:
        """The checkpoint events of the job's attempts before this one, the oldest attempt first."""

    async def diagnose_again(self, attempt: AttemptKey, now: float) -> None:
        """Make an attempt due again whose diagnosis rests on what does not hold any more."""

    async def job(self, id: str) -> Job | None: ...

    async def attempts(self, job: str) -> list[Attempt]: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds after which an attempt is due for diagnosis.

    exit_grace: after it ended. fatal_debounce: of quiet after a fatal line. fatal_debounce_max: after a fatal line
    while lines keep coming. exit_grace_after_fatal: after the end, when there is a fatal line but no verdict yet: late
    lines are then unlikely to matter, and those that do change the verdict later.
    """

    exit_grace: float
    fatal_debounce: float
    fatal_debounce_max: float = 60.0
    exit_grace_after_fatal: float = 0.3


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on a due attempt. ``token`` proves it at the save.

    tries: how often the attempt was claimed since its last diagnosis, this time included. patience: shortest silence,
    in seconds, for which it is looked at; 0.0 before the first look. has_scheduler: an agent tells how it ends,
    and what others say of it is not among the events. hinted: when the job itself said last that it ended, 0.0 if it
    did not.
    """

    attempt: Attempt
    job: Job
    token: str
    tries: int = 1
    patience: float = 0.0
    has_scheduler: bool = False
    hinted: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether the scheduler shows it running, as far as its agent told."""
        return self.has_scheduler and self.attempt.ended is None


@dataclass(frozen=True, slots=True)
class DiagnosisRecord:
    """A stored diagnosis. ``current`` is False once a later revision of the same attempt replaced it."""

    id: str
    attempt: AttemptKey
    revision: int
    created: float
    current: bool
    diagnosis: Diagnosis
    plan: Plan | None = None
    feedback: tuple[Feedback, ...] = ()  # what people said, the newest first


class WorkStore(Protocol):
    async def claim_attempts(self, now: float, timing: Timing, lease: float, limit: int) -> list[Claim]: ...

    async def next_end(self, timing: Timing) -> float | None:
        """When the first of the attempts that have ended and that nobody works on becomes due; None without one."""

    async def claim_silent(self, now: float, silent: float, lease: float, limit: int) -> list[Claim]:
        """Running attempts without a fatal line that have printed nothing for ``silent`` seconds, nor for their own
        patience: they may hang. Longest silent first.

        Not those whose silence was put off until later, and none that fell silent more than a day ago.
        """

    async def save_diagnosis(
        self,
        claim: Claim,
        record: DiagnosisRecord,
        plan: Plan | None,
        effects: Sequence[OutboxMessage],
        transition: PlanTransition | None = None,
    ) -> TransitionResult:
        """One transaction: diagnosis, plan, messages, attempt marked as diagnosed at the claim's revision, lease ended.

        Without ``transition`` a plan whose key exists already is left as it is; with it, its result is stored.
        A message whose key exists already is left as it is. Raises Conflict when the lease was lost.
        """

    async def release(self, claim: Claim, until: float = 0.0, patience: float | None = None) -> None:
        """The log shows no failure: no diagnosis is stored, and the attempt's fatal mark is cleared.

        A fatal line that came after the claim keeps the mark. Ignored when the lease was lost. until: when this silence
        may be checked again; an end, a fatal line, a dump or a new silence after new lines makes it due earlier.
        patience: shortest silence, in seconds, that is checked from now on; None leaves it as it is.
        """

    async def extend(self, claim: Claim, until: float) -> None:
        """Move the end of the lease: to keep it during long work, or to put off the next try. Raises Conflict."""

    async def replace_diagnosis(
        self,
        replaced: str,
        record: DiagnosisRecord,
        plan: Plan | None,
        effects: Sequence[OutboxMessage],
        transition: PlanTransition | None = None,
    ) -> TransitionResult | None:
        """Replace the diagnosis ``replaced`` (an id) by a better one of the same revision, with plan and messages.

        None, and nothing is stored, when ``replaced`` is not the current one any more.
        """
