"""How sure a verdict is, and what else it could be. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diagnoser.model import AskReason, Diagnosis, Evidence, Rival
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of
from diagnoser.rules.calibration import Calibration, VerdictKind, review_kind, verdict_kind
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.outcome import EXIT_EVENT, Ending

_LAST_WORDS = 5
"""Lines before the end of a stream in which an exception ended it."""
_RIVALS = 2
"""Most rivals of an answer."""
_PLACED_ELSEWHERE = frozenset(
    {RejectionReason.LATER, RejectionReason.VAGUE, RejectionReason.EXPLAINED, RejectionReason.WRAPPER}
)
"""Reasons that speak against the place of a candidate, not against its being a failure."""


def ended_badly(evidence: Evidence, reported: Ending | None) -> bool:
    """Whether the run is known to have failed: it was reported, a launcher printed the end of a process, or the last
    words of a stream are an exception."""
    if reported is not None and reported.outcome is Outcome.FAILED:
        return True
    if any(report.failed for report in evidence.exits):
        return True
    last = evidence.last_numbers
    for trace in evidence.tracebacks:
        line = evidence.lines[trace.raised]
        if last[line.stream] - line.number < _LAST_WORDS:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Measure:
    """The measured confidence for one log. ended_badly: see ``verdict_kind``."""

    calibration: Calibration
    ended_badly: bool

    def verdict(self, causal: CausalResult, failure: FailureType, decider: str) -> tuple[FailureType, float]:
        """The type and its confidence; a failure that is not sure enough is unknown."""
        root, floor = causal.root, self.calibration.floor
        score = self._share(decider, failure, root)
        if causal.is_contested:
            score = min(score, self.calibration.contested)
        if category_of(failure) is Category.NONE:
            return failure, score
        if failure is FailureType.UNKNOWN:
            return failure, min(score, floor)
        if score < floor:
            return FailureType.UNKNOWN, score
        return failure, score

    def review_kind(self, causal: CausalResult, failure: FailureType, decider: str) -> str:
        """The verdicts that are wrong about as often as this one."""
        root = causal.root
        kind = self._kind(decider, failure, root)
        return review_kind(kind, failure, root.maturity if root else None)

    def rivals(self, evidence: Evidence, causal: CausalResult, failure: FailureType, score: float) -> tuple[Rival, ...]:
        """The likeliest other causes. Each takes, of what the answer and the rivals before it leave, the share in which
        such lines are right. failure, score: the answer."""
        rivals = []
        left = 1.0 if failure is FailureType.UNKNOWN else 1.0 - score
        for candidate, share in self._ranked(_others(causal, failure)):
            rivals.append(Rival(candidate.type, evidence.lines[candidate.line].number, round(left * share, 3)))
            left -= left * share
        return tuple(rivals)

    def _ranked(self, candidates: Iterable[Candidate]) -> list[tuple[Candidate, float]]:
        """The likeliest candidate of each of the likeliest types, and its share."""
        best: dict[FailureType, tuple[Candidate, float]] = {}
        for candidate in candidates:
            share = self._share(candidate.by, candidate.type, candidate)
            if candidate.type not in best or share > best[candidate.type][1]:
                best[candidate.type] = candidate, share
        return sorted(best.values(), key=lambda rival: -rival[1])[:_RIVALS]

    def _share(self, decider: str, failure: FailureType, root: Candidate | None) -> float:
        kind = self._kind(decider, failure, root)
        return self.calibration.bounded(self.calibration.of(kind), decider, root.maturity if root else None)

    def _kind(self, decider: str, failure: FailureType, root: Candidate | None) -> VerdictKind:
        return verdict_kind(decider, failure, root, ended_badly=self.ended_badly)


def _others(causal: CausalResult, failure: FailureType) -> Iterator[Candidate]:
    """Candidates that may be the cause in the place of the answer, the first of each source; where nothing is named,
    the root as well."""
    if failure is FailureType.UNKNOWN and causal.root:
        yield causal.root
    seen = set[tuple[str, FailureType]]()
    for candidate, reason in causal.rejected:
        source = candidate.by, candidate.type
        if reason not in _PLACED_ELSEWHERE:
            continue
        if candidate.type is failure:
            continue
        if source not in seen:
            seen.add(source)
            yield candidate


_AFTER = 5
"""Most kept lines that a run prints after it says that it completed. Behind a healthy log 12 of 26 verdicts with more
were wrong: the end was that of an earlier phase. Alone 5 of 1,717 logs print more."""


def review_reasons(
    diagnosis: Diagnosis, calibration: Calibration, *, outlived: bool = False, contested: bool = False
) -> tuple[AskReason, ...]:
    """Why a model reviews the verdict of the rules: nothing names the cause, or verdicts like it are often wrong, as
    ``review`` in ``rules/calibration.yaml`` measures; () where nothing speaks against it, or the scheduler says it.

    outlived: see ``is_outlived``.
    contested: see ``CausalResult.is_contested``.
    """
    if diagnosis.decided_by == EXIT_EVENT:
        return ()
    if diagnosis.category is Category.UNKNOWN:
        return () if diagnosis.outcome is Outcome.COMPLETED else (AskReason.UNKNOWN,)
    if outlived:
        return (AskReason.BELIED_END,)
    if contested:
        return (AskReason.CLOSE_RIVAL,)
    if calibration.wrong_share(diagnosis.review_kind) >= calibration.review_from:
        return (AskReason.UNSURE,)
    return ()


def is_outlived(evidence: Evidence, causal: CausalResult) -> bool:
    """Whether the run goes on after the last line that says that it completed."""
    root = causal.root
    if root is None or not root.is_completed:
        return False
    ends = [end.line for end in (root, *causal.rejected_as(RejectionReason.REPEATED)) if end.is_completed]
    return len(evidence.lines) - 1 - max(ends) > _AFTER
