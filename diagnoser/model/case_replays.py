"""How the rules do on the failures whose cause people named, replayed whenever rules or cases change."""

from dataclasses import dataclass

from diagnoser.model.jobs import AttemptKey
from diagnoser.model.taxonomy import FailureType


@dataclass(frozen=True, slots=True)
class CaseMark:
    """Which cases there are: how many failures people judged, and when the last of them changed."""

    count: int = 0
    changed: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What people say about a verdict, and what it said. time: of the verdict. known: the cause by people."""

    diagnosis: str
    time: float
    said: FailureType
    known: FailureType
    decided_by: str

    @property
    def was_right(self) -> bool:
        return self.said is self.known


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """One case. known: the cause that a person named. said: the verdict that the person judged. says: the verdict of a
    replay. root: whether the replay found the line that the person named, None where nobody named one."""

    diagnosis: str
    attempt: AttemptKey
    created: float
    known: FailureType
    said: FailureType
    says: FailureType
    root: bool | None = None

    @property
    def was_right(self) -> bool:
        return self.said is self.known

    @property
    def is_right(self) -> bool:
        return self.says is self.known


@dataclass(frozen=True, slots=True)
class CaseReplay:
    """All cases, diagnosed once more. version: of the software. ruleset: hash of the rules in force, learned ones
    included. outcomes: by the time of the verdict that was judged, oldest first."""

    time: float
    version: str
    ruleset: str
    mark: CaseMark
    outcomes: tuple[CaseOutcome, ...] = ()

    @property
    def right(self) -> int:
        return sum(outcome.is_right for outcome in self.outcomes)

    @property
    def was_right(self) -> int:
        return sum(outcome.was_right for outcome in self.outcomes)

    @property
    def roots(self) -> tuple[bool, ...]:
        """Count the cases with a known root line, and those where it was found."""
        return tuple(outcome.root for outcome in self.outcomes if outcome.root is not None)
