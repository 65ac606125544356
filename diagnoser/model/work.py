"""Jobs, their attempts, who works on which, and what came of it."""

from dataclasses import dataclass

from diagnoser.model import Attempt, AttemptKey, Diagnosis, Feedback, Job, Plan


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds after which an attempt is due for diagnosis.

    exit_grace: after it ended. fatal_debounce: of quiet after a fatal line. fatal_debounce_max: after a fatal line
    while lines keep coming. exit_grace_after_fatal: after the end, when there is a fatal line but no verdict yet: late
    lines are then unlikely to matter, and those that do change the verdict later.
    """

    exit_grace: float
    fatal_debounce: float
    fatal_debounce_max: float
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
