"""Feedback of people on verdicts, and the confirmed failures that are stored from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diagnoser.model.jobs import AttemptKey
from diagnoser.model.lines import Stream
from diagnoser.model.taxonomy import FailureType


class FeedbackVerdict(StrEnum):
    CONFIRMED = "confirmed"
    CORRECTED = "corrected"


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a person says about a diagnosis. type, root_line, node, rank: the correct value, None where it was right.

    root_stream: the stream that the root line is of, None where the person named no line, or its number alone.
    The newest one counts; the others stay as history.
    """

    id: str
    diagnosis: str
    created: float
    verdict: FeedbackVerdict
    by: str
    type: FailureType | None = None
    root_line: int | None = None
    node: str | None = None
    comment: str = ""
    root_stream: Stream | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """What identifies a failure when it comes again, without what differs from run to run.

    message: root line, or the lines that complain. chain: types, root first. frames: innermost first.
    """

    message: str = ""
    chain: str = ""
    frames: str = ""

    @property
    def text(self) -> str:
        return "\n".join(filter(None, (self.message, self.chain, self.frames)))


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a later failure must share with a judged one, so that the person's word holds for it as well.

    family: of the job. root: shape of the line that the rules took for the cause. frames: of its traceback, innermost
    first. exact: the line and the frames again, with their paths. named: shape of the line that the person named, ""
    where they named none. complaints: digests of the shapes of all lines that complained.
    """

    family: str
    root: str
    frames: tuple[str, ...] = ()
    exact: str = ""
    named: str = ""
    complaints: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConfirmedFailure:
    """A failure whose cause a person confirmed. type ``unknown``: nothing can be learned from it (any more).

    done: what was done about it, in words. vectors: name of what made it -> little-endian float32. tenant: whose job
    failed, "" where that is not known. lesson: None where the word decides no later failure that rules know.
    feedback: id of the person's word, "" where a recovery confirmed the failure.
    """

    diagnosis: str
    attempt: AttemptKey
    created: float
    changed: float
    type: FailureType
    verdict: FeedbackVerdict
    by: str
    signature: Signature
    line: str = ""
    done: str = ""
    comment: str = ""
    vectors: Mapping[str, bytes] = field(default_factory=dict)
    tenant: str = ""
    lesson: Lesson | None = None
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Similar:
    """A confirmed failure and how near it is: 1 is the same."""

    confirmed: ConfirmedFailure
    score: float


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
