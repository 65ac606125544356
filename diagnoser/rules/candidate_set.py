"""The candidates still in question, and why each of the others was dismissed."""

from collections.abc import Callable, Iterable
from enum import StrEnum

from diagnoser.model.taxonomy import Category, category_of
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.schema import Role

SAME_STORY = 40
"""Lines within which two candidates speak of the same event."""


class RejectionReason(StrEnum):
    """Why a candidate is not the root."""

    BENIGN = "looks like an error and is none"
    RECOVERED = "training went on after it"
    EARLIER_ATTEMPT = "belongs to an earlier attempt in the same log"
    CHAINED = "another exception of the same chain says more"
    WRAPPER = "repeats or carries an inner error"
    TEARDOWN = "printed while the job was being taken down"
    EXPLAINED = "explained by the root"
    REPEATED = "the same failure on another rank or line"
    LATER = "came after the root"
    VAGUE = "a more exact line tells the same event"
    VAGUE_END = "printed at the end of failed runs as well"
    FINISHED = "the run completed nevertheless"


class CandidateSet:
    """Candidates still in question, and those that were dismissed."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self.open = list(candidates)
        self.dismissed: list[tuple[Candidate, RejectionReason]] = []

    def dismiss(self, why: RejectionReason, test: Callable[[Candidate], bool], *, keep_last: bool = False) -> None:
        """Dismiss those that pass the test; with ``keep_last`` not when nobody would be left."""
        gone = [one for one in self.open if test(one)]
        if keep_last and len(gone) == len(self.open):
            return
        self.dismissed += [(one, why) for one in gone]
        self.open = [one for one in self.open if not test(one)]


def is_end(one: Candidate) -> bool:
    """A run that says it is complete, or was told to end."""
    return category_of(one.type) is Category.NONE and one.role is Role.ROOT


def is_fault(one: Candidate) -> bool:
    return category_of(one.type) is not Category.NONE and one.role is Role.ROOT
