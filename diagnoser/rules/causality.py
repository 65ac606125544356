"""Which candidate is the cause, and why each of the others is not.

The order of the field: role first, then what explains what, then the earliest in corrected time (the order of
``Evidence.lines``), then the more specific (as in GPUAlert's ordered rules and L4's failure chains).
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import Evidence
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.rules.candidate_set import SAME_STORY, CandidateSet, RejectionReason
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.run_end import LEAVING, resolve_attempts, resolve_end
from diagnoser.rules.schema import Blame, Role, Specificity

_REPORTED = 60
"""Lines after the peers' complaint within which a launcher reports the dead process."""
_DETAILS = 40
"""Lines of details that an exception's message may have."""
_HABIT = 3
"""How often a run has survived an exception before one more of its kind counts as handled."""
_LIBRARY_FILE = re.compile(r'File "([^"]*/(?:site|dist)-packages/[^"]*)"')
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
    diverged: the loss series diverged and never came back.
    """
    candidate_set = CandidateSet(candidates)
    candidate_set.dismiss(RejectionReason.BENIGN, lambda c: c.role is Role.BENIGN)
    resolve_attempts(candidate_set, evidence)
    candidate_set.dismiss(
        RejectionReason.RECOVERED,
        lambda c: category_of(c.type) is not Category.NONE and not c.precursor and recovered(c),
    )
    _dismiss_handled(candidate_set)
    _dismiss_habits(candidate_set)
    overridden = {decider for c in candidate_set.open for decider in c.overrides}
    candidate_set.dismiss(RejectionReason.OVERRIDDEN, lambda c: c.by in overridden)
    resolve_end(candidate_set, evidence, recovered, begins, diverged=diverged)
    _settle_chains(candidate_set, evidence)
    _dismiss_kill_on_bad_exit(candidate_set)
    candidate_set.dismiss(RejectionReason.TEARDOWN, lambda c: c.role is Role.TEARDOWN, keep_last=True)
    candidate_set.dismiss(RejectionReason.WRAPPER, lambda c: c.role is Role.WRAPPER and not c.exit, keep_last=True)
    candidate_set.dismiss(RejectionReason.WRAPPER, lambda c: c.role is Role.WRAPPER, keep_last=True)
    _settle_causes(candidate_set)
    return _choose_root(candidate_set, evidence)


def _dismiss_handled(candidate_set: CandidateSet) -> None:
    """An error that the program logged, saying how it goes on, is not why it fails of something else later."""
    later = [c for c in candidate_set.open if c.role is Role.ROOT and not c.logged]
    handled = [c for c in candidate_set.open if c.goes_on and _fails_otherwise(c, later)]
    if not handled:
        return
    types, last = {c.type for c in handled}, max(c.line for c in handled)
    candidate_set.dismiss(
        RejectionReason.RECOVERED,
        lambda c: c in handled or (c.type in types and _is_detail(c, last)),
    )


def _is_detail(candidate: Candidate, last: int) -> bool:
    """Whether the line may be one of the details of an error that was logged at ``last``, or earlier."""
    return candidate.role is Role.SYMPTOM and candidate.line <= last + _DETAILS


def _fails_otherwise(candidate: Candidate, later: Sequence[Candidate]) -> bool:
    return any(other.line > candidate.line and other.type is not candidate.type for other in later)


def _dismiss_habits(candidate_set: CandidateSet) -> None:
    """A run that has survived an exception again and again handles it: when no other candidate is left, the last of
    them is no failure either."""
    survived = Counter(_key(c) for c, why in candidate_set.dismissed if why is RejectionReason.RECOVERED)
    if all(c.specificity <= Specificity.CLASS and survived[_key(c)] >= _HABIT for c in candidate_set.open):
        candidate_set.dismiss(RejectionReason.RECOVERED, lambda _: True)


def _key(candidate: Candidate) -> tuple[str, FailureType, Role]:
    return candidate.by, candidate.type, candidate.role


def _settle_chains(candidate_set: CandidateSet, evidence: Evidence) -> None:
    """Of exceptions raised from or while handling one another, keep the one that says what went wrong."""
    for chain in _chains(evidence):
        links = sorted((c for c in candidate_set.open if c.trace in chain), key=lambda c: chain.index(c.trace))
        if len(links) > 1:
            pairs = zip(links, [*links[1:], None], strict=True)
            original = [c for c, later in pairs if not (later and _is_translated(c, later, evidence))]
            teller = _most_telling(original)
            candidate_set.dismiss(RejectionReason.CHAINED, lambda c, m=links, t=teller: c in m and c is not t)  # type: ignore[misc]


def _is_translated(candidate: Candidate, later: Candidate, evidence: Evidence) -> bool:
    """Whether a library caught its own exception and raised another in its place: only the second is for users."""
    innermost = ["".join(evidence.tracebacks[c.trace].frames[-1:]) for c in (candidate, later)]
    files = [match[1] if (match := _LIBRARY_FILE.match(frame)) else "" for frame in innermost]
    vague = candidate.specificity <= Specificity.CLASS and candidate.type is not later.type
    return vague and files[0] == files[1] != ""


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


def _most_telling(members: list[Candidate]) -> Candidate:
    """The member that names the cause. ``members``: first cause first, last raised last.

    A rule that knows its message wins. The same type all along (an HTTP stack): the last, which names the service.
    Else the first that says something; an exception that code raises and handles on purpose (KeyError while filling a
    cache) and a mere carrier (a refused connection under a storage client) rank behind it.
    """
    by_rule = [c for c in members if c.by.startswith("rule:") and c.specificity > Specificity.CLASS]
    roots = [c for c in by_rule if c.role is Role.ROOT] or [c for c in members if c.role is Role.ROOT]
    roots = roots or members
    best = max(map(_telling, roots))
    roots = [c for c in roots if _telling(c) == best]
    return roots[-1] if len({c.type for c in roots}) == 1 else roots[0]


def _telling(candidate: Candidate) -> tuple[int, int]:
    """How much an exception of a chain says: by kind of class, then by the exactness of its rule."""
    if candidate.control_flow and candidate.type is FailureType.FILE_NOT_FOUND_ERROR:
        return 0, 0  # a folder was missing and should be made: what then failed is the cause
    if candidate.specificity > Specificity.CLASS and candidate.by.startswith("rule:"):
        return (1 if candidate.type is FailureType.CONNECTION_ERROR else 2), candidate.specificity
    if candidate.type in (FailureType.RUNTIME_ERROR, FailureType.CONNECTION_ERROR):
        return 0, 0
    return (1 if candidate.control_flow else 2), 0


def _dismiss_kill_on_bad_exit(candidate_set: CandidateSet) -> None:
    """A launcher that stops the other ranks because one has failed cancels nothing: the failed one is the reason."""
    failed = [c.line for c in candidate_set.open if c.exit]
    if failed:
        candidate_set.dismiss(RejectionReason.TEARDOWN, lambda c: _is_ordered_end(c) and c.line > failed[0])


def _settle_causes(candidate_set: CandidateSet) -> None:
    """Roots explain symptoms; a root also explains the types it lists, a symptom only those after it."""
    _dismiss_of_handlers(candidate_set)
    candidate_set.dismiss(RejectionReason.TEARDOWN, _is_ordered_end, keep_last=True)
    if any(c.role is Role.ROOT for c in candidate_set.open):
        candidate_set.dismiss(RejectionReason.EXPLAINED, lambda c: c.role is Role.SYMPTOM)
    causes = list(candidate_set.open)
    candidate_set.dismiss(
        RejectionReason.EXPLAINED, lambda c: any(_explains(other, c) for other in causes), keep_last=True
    )


def _dismiss_of_handlers(candidate_set: CandidateSet) -> None:
    """Where nothing failed but the code that handles an interrupt, the interrupt is how the run ended."""
    ends = [c for c in candidate_set.open if _is_ordered_end(c)]
    rest = [c for c in candidate_set.open if c not in ends]
    if all(any(end.line < c.line and _covers(end, c) for end in ends) for c in rest):
        candidate_set.dismiss(RejectionReason.EXPLAINED, lambda c: c in rest)


def _is_ordered_end(candidate: Candidate) -> bool:
    """A signal or a cancelled step: seen when somebody stops a job, and when it fails for another reason."""
    return candidate.role is Role.SYMPTOM and _is_none(candidate)


def _is_none(candidate: Candidate) -> bool:
    return category_of(candidate.type) is Category.NONE


def _explains(cause: Candidate, other: Candidate) -> bool:
    if cause is other or cause.type is other.type or not _covers(cause, other) or _is_of_peer(other, cause):
        return False
    lost = _lost_peer(cause, other)
    if cause.role is not Role.ROOT and other.line < cause.line and not lost:
        return False
    first = (cause.line, -cause.specificity) < (other.line, -other.specificity)
    return first or not _covers(other, cause) or _is_of_peer(cause, other)


def _lost_peer(cause: Candidate, other: Candidate) -> bool:
    """Peers complain about a dead process before its launcher reports it."""
    near = other.blame is Blame.PEER and cause.line - other.line <= _REPORTED
    return (cause.blame is Blame.SELF and near) or _is_of_peer(cause, other)


def _is_of_peer(cause: Candidate, other: Candidate) -> bool:
    """Whether ``cause`` is the report of a process's end, which may come when all are stopped, and ``other`` tells of
    the connection to that process, which broke at once."""
    return cause.exit and cause.role is not Role.WRAPPER and other.role is Role.SYMPTOM and other.type in LEAVING


def _covers(cause: Candidate, other: Candidate) -> bool:
    return "all" in cause.explains or other.type in cause.explains


def _choose_root(candidate_set: CandidateSet, evidence: Evidence) -> CausalResult:
    if not candidate_set.open:
        return CausalResult(None, tuple(candidate_set.dismissed))
    first = candidate_set.open[0]
    nearby = [c for c in candidate_set.open if _same_story(first, c, evidence)]
    root = _most_exact(nearby)
    for candidate in candidate_set.open:
        if candidate is not root:
            candidate_set.dismissed.append((candidate, _why_later(root, candidate)))
    rejected = tuple(sorted(candidate_set.dismissed, key=lambda pair: pair[0].line))
    return CausalResult(_with_rank_of_repetition(root, nearby), rejected)


def _most_exact(nearby: Sequence[Candidate]) -> Candidate:
    """The most specific candidate, else the first; for a log line the raised exception that says nearly as much."""
    root = max(nearby, key=_exactness)
    if root.raised:
        return root
    same_type = [c for c in nearby if c.type is root.type and c.specificity >= root.specificity - _AS_EXACT]
    raised = [c for c in same_type if c.raised and c.specificity > Specificity.CLASS and not _is_none(c)]
    return max(raised, key=_exactness, default=root)


def _exactness(candidate: Candidate) -> tuple[int, int]:
    return candidate.specificity, -candidate.line


def _with_rank_of_repetition(root: Candidate, nearby: Sequence[Candidate]) -> Candidate:
    """A library prints its line without a rank, and the one rank that fails of it repeats it in its exception."""
    ranks = {c.rank for c in nearby if c.by == root.by and c.rank is not None}
    return replace(root, rank=ranks.pop()) if root.rank is None and len(ranks) == 1 else root


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
