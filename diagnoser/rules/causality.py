"""Which candidate is the cause, and why each of the others is not.

The order of the field: role first, then what explains what, then the earliest in corrected time (the order of
``Evidence.lines``), then the more specific (as in GPUAlert's ordered rules and L4's failure chains).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnoser.model import Evidence
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.rules.candidate_set import SAME_STORY, CandidateSet, RejectionReason
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.run_end import resolve_attempts, resolve_end
from diagnoser.rules.schema import Blame, Role, Specificity

_REPORTED = 60
"""Lines within which a launcher reports a death that peers have noticed."""
_HABIT = 3
"""Times that a run has survived an exception before one more of its kind is taken for handled."""
_AS_EXACT = 1
"""Levels by which a log line of the same type may be more specific than the raised exception that is shown instead."""


@dataclass(frozen=True, slots=True)
class CausalResult:
    """root: None when nothing qualifies. rejected: the other candidates with the reason."""

    root: Candidate | None
    rejected: tuple[tuple[Candidate, RejectionReason], ...] = ()

    @property
    def symptoms(self) -> tuple[Candidate, ...]:
        return tuple(other for other, why in self.rejected if why is RejectionReason.EXPLAINED)


def decide(
    evidence: Evidence,
    candidates: Sequence[Candidate],
    recovered: Callable[[Candidate], bool],
    begins: Sequence[int] = (),
    *,
    diverged: bool = False,
) -> CausalResult:
    """recovered: whether training went on after the candidate's line. begins: where later launches begin.
    diverged: the loss series broke for good.
    """
    candidate_set = CandidateSet(candidates)
    candidate_set.dismiss(RejectionReason.BENIGN, lambda one: one.role is Role.BENIGN)
    resolve_attempts(candidate_set, evidence)
    candidate_set.dismiss(
        RejectionReason.RECOVERED, lambda one: category_of(one.type) is not Category.NONE and recovered(one)
    )
    _dismiss_habits(candidate_set)
    resolve_end(candidate_set, evidence, recovered, begins, diverged=diverged)
    _settle_chains(candidate_set, evidence)
    candidate_set.dismiss(RejectionReason.TEARDOWN, lambda one: one.role is Role.TEARDOWN, keep_last=True)
    candidate_set.dismiss(RejectionReason.WRAPPER, lambda one: one.role is Role.WRAPPER, keep_last=True)
    _settle_causes(candidate_set)
    return _verdict(candidate_set, evidence)


def _dismiss_habits(candidate_set: CandidateSet) -> None:
    """A run that has survived an exception again and again handles it: where nothing else speaks of a failure, the last
    one of them is none either."""
    survived = Counter(_key(one) for one, why in candidate_set.dismissed if why is RejectionReason.RECOVERED)
    if all(one.specificity <= Specificity.CLASS and survived[_key(one)] >= _HABIT for one in candidate_set.open):
        candidate_set.dismiss(RejectionReason.RECOVERED, lambda _: True)


def _key(one: Candidate) -> tuple[str, FailureType, Role]:
    return one.by, one.type, one.role


def _settle_chains(candidate_set: CandidateSet, evidence: Evidence) -> None:
    """Of exceptions raised from or while handling one another, keep the one that says what went wrong."""
    for chain in _chains(evidence):
        members = [one for one in candidate_set.open if one.trace in chain]
        if len(members) > 1:
            kept = _speaker(sorted(members, key=lambda one: chain.index(one.trace)))
            candidate_set.dismiss(RejectionReason.CHAINED, lambda one, m=members, k=kept: one in m and one is not k)  # type: ignore[misc]


def _chains(evidence: Evidence) -> list[list[int]]:
    """Tracebacks linked by their causes, first cause first."""
    follows = {trace.cause: number for number, trace in enumerate(evidence.tracebacks) if trace.cause >= 0}
    chains = []
    for number, trace in enumerate(evidence.tracebacks):
        if trace.cause >= 0 or number not in follows:
            continue
        chain = [number]
        while chain[-1] in follows:
            chain.append(follows[chain[-1]])
        chains.append(chain)
    return chains


def _speaker(members: list[Candidate]) -> Candidate:
    """The member that names the cause. ``members``: first cause first, last raised last.

    A rule that knows its message wins. The same type all along (an HTTP stack): the last, which names the service.
    Else the first that says something; what Python code raises and handles on purpose (KeyError while filling a cache)
    and what only carries (a refused connection under a storage client) comes after that.
    """
    known = [one for one in members if one.by.startswith("rule:") and one.specificity > Specificity.CLASS]
    roots = [one for one in known if one.role is Role.ROOT] or [one for one in members if one.role is Role.ROOT]
    roots = roots or members
    best = max(map(_telling, roots))
    roots = [one for one in roots if _telling(one) == best]
    return roots[-1] if len({one.type for one in roots}) == 1 else roots[0]


def _telling(one: Candidate) -> tuple[int, int]:
    """How much an exception of a chain says: by kind of class, then by the exactness of its rule."""
    if one.specificity > Specificity.CLASS and one.by.startswith("rule:"):
        return (1 if one.type is FailureType.CONNECTION_ERROR else 2), one.specificity
    if one.type in (FailureType.RUNTIME_ERROR, FailureType.CONNECTION_ERROR):
        return 0, 0
    return (1 if one.control_flow else 2), 0


def _settle_causes(candidate_set: CandidateSet) -> None:
    """Roots explain symptoms; a root also explains the types it lists, a symptom only those after it."""
    candidate_set.dismiss(RejectionReason.TEARDOWN, _is_told, keep_last=True)
    if any(one.role is Role.ROOT for one in candidate_set.open):
        candidate_set.dismiss(RejectionReason.EXPLAINED, lambda one: one.role is Role.SYMPTOM)
    causes = list(candidate_set.open)
    candidate_set.dismiss(
        RejectionReason.EXPLAINED, lambda one: any(_explains(other, one) for other in causes), keep_last=True
    )


def _is_told(one: Candidate) -> bool:
    """A signal or a cancelled step: how a job ends that somebody stops, or that fails for another reason."""
    return one.role is Role.SYMPTOM and _is_none(one)


def _is_none(one: Candidate) -> bool:
    return category_of(one.type) is Category.NONE


def _explains(cause: Candidate, other: Candidate) -> bool:
    if cause is other or cause.type is other.type or not _covers(cause, other):
        return False
    if cause.role is not Role.ROOT and other.line < cause.line and not _lost_peer(cause, other):
        return False
    return not _covers(other, cause) or (cause.line, -cause.specificity) < (other.line, -other.specificity)


def _lost_peer(cause: Candidate, other: Candidate) -> bool:
    """Peers complain about a dead process before its launcher reports it."""
    return cause.blame is Blame.SELF and other.blame is Blame.PEER and cause.line - other.line <= _REPORTED


def _covers(cause: Candidate, other: Candidate) -> bool:
    return "all" in cause.explains or other.type in cause.explains


def _verdict(candidate_set: CandidateSet, evidence: Evidence) -> CausalResult:
    if not candidate_set.open:
        return CausalResult(None, tuple(candidate_set.dismissed))
    first = candidate_set.open[0]
    near = [one for one in candidate_set.open if _same_story(first, one, evidence)]
    root = max(near, key=lambda one: (one.specificity, -one.line))
    spoken = [one for one in near if one.type is root.type and one.specificity >= root.specificity - _AS_EXACT]
    raised = [one for one in spoken if one.raised and one.specificity > Specificity.CLASS and not _is_none(one)]
    root = root if root.raised or not raised else max(raised, key=lambda one: (one.specificity, -one.line))
    for one in candidate_set.open:
        if one is not root:
            candidate_set.dismissed.append((one, _why_later(root, one)))
    return CausalResult(root, tuple(sorted(candidate_set.dismissed, key=lambda pair: pair[0].line)))


def _same_story(first: Candidate, other: Candidate, evidence: Evidence) -> bool:
    here, there = evidence.lines[first.line], evidence.lines[other.line]
    return (
        here.stream == there.stream
        and (first.rank is None or other.rank is None or first.rank == other.rank)
        and abs(there.number - here.number) <= SAME_STORY
    )


def _why_later(root: Candidate, other: Candidate) -> RejectionReason:
    if other.type is root.type:
        return RejectionReason.REPEATED
    return RejectionReason.VAGUE if other.line < root.line else RejectionReason.LATER
