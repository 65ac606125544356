"""The candidates still in question, and why each of the others was dismissed."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from itertools import filterfalse

from diagnoser.rules.candidate import Candidate
from diagnoser.rules.schema import Specificity

SAME_STORY = 40
"""Lines within which two candidates describe the same event."""


class RejectionReason(StrEnum):
    """Why a candidate is not the root."""

    BENIGN = "looks like an error and is none"
    RECOVERED = "training went on after it"
    MILD = "its own program calls it no error"
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
    DENIED = "the exit status says that the run failed"
    FINISHED = "the run completed nevertheless"


Test = Callable[[Candidate], bool]


class CandidateSet:
    """Candidates still in question, and those that were dismissed."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self.open = list(candidates)
        self.dismissed: list[tuple[Candidate, RejectionReason]] = []

    def dismiss(self, reason: RejectionReason, test: Test, *, keep_last: bool = False) -> None:
        """Dismiss the candidates that pass the test; with ``keep_last`` none when they are all that is left."""
        dismissed = self.where(test)
        if keep_last and len(dismissed) == len(self.open):
            return
        self.dismissed += ((candidate, reason) for candidate in dismissed)
        self.open = list(filterfalse(test, self.open))

    def reopen(self, reason: RejectionReason, again: Iterable[Candidate]) -> None:
        """Open candidates that were dismissed for a reason, as guesses at best."""
        for candidate in again:
            self.dismissed.remove((candidate, reason))
            self.open.append(replace(candidate, specificity=Specificity.WORD))

    def dismissed_for(self, reason: RejectionReason) -> list[Candidate]:
        """The candidates that were dismissed for a reason."""
        return [candidate for candidate, why in self.dismissed if why is reason]

    def dismiss_before(self, line: int) -> None:
        """Dismiss what belongs to an attempt that was over before a line."""
        self.dismiss(RejectionReason.EARLIER_ATTEMPT, lambda candidate: candidate.line < line)

    def where(self, test: Test) -> list[Candidate]:
        """The open candidates that pass the test."""
        return list(filter(test, self.open))

    def has(self, test: Test) -> bool:
        """Whether some open candidate passes the test."""
        return any(map(test, self.open))
