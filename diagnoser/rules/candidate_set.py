"""The candidates still in question, and why each of the others was dismissed."""

from collections.abc import Callable, Iterable
from enum import StrEnum

from diagnoser.model.taxonomy import Category, category_of
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.schema import Role

SAME_STORY = 40
"""Lines within which two candidates describe the same event."""


class RejectionReason(StrEnum):
    """Why a candidate is not the root."""

    BENIGN = "looks like an error and is none"
    RECOVERED = "training went on after it"
    EARLIER_ATTEMPT = "belongs to an earlier attempt in the same log"
    CHAINED = "another exception of the same chain says more"
    WRAPPER = "repeats or carries an inner error"
    TEARDOWN = "printed while the job was being taken down"
    OVERRIDDEN = "a rule that stands before this one hits as well"
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

    def dismiss(self, reason: RejectionReason, test: Callable[[Candidate], bool], *, keep_last: bool = False) -> None:
        """Dismiss the candidates that pass the test; with ``keep_last`` none when they are all that is left."""
        dismissed = [c for c in self.open if test(c)]
        if keep_last and len(dismissed) == len(self.open):
            return
        self.dismissed += [(c, reason) for c in dismissed]
        self.open = [c for c in self.open if not test(c)]


def is_end(candidate: Candidate) -> bool:
    """The line says that the run is complete, or that it was ordered to stop."""
    return category_of(candidate.type) is Category.NONE and candidate.role is Role.ROOT


def is_fault(candidate: Candidate) -> bool:
    return category_of(candidate.type) is not Category.NONE and candidate.role is Role.ROOT
