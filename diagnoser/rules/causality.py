"""Which candidate is the cause, and why each of the others is not.

The order of the field: role first, then what explains what, then the earliest in corrected time (the order of
``Evidence.lines``), then the more specific (as in GPUAlert's ordered rules and L4's failure chains).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model import Evidence
from diagnoser.rules import exceptions
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.schema import Blame, Role
from diagnoser.taxonomy import Category, FailureType, category_of

_SAME_STORY = 40
"""Lines within which a more specific candidate of the same rank speaks of the same event."""


_REPORTED = 60
"""Lines within which a launcher reports a death that peers have noticed."""
_AS_EXACT = 20
"""A raised exception is shown rather than a log line of the same type that is more specific by no more than this."""
CLASS = 30
"""Specificity up to which a rule knows an exception by its class alone."""


_LEAVING = frozenset({FailureType.CONNECTION_ERROR, FailureType.NETWORK_ERROR, FailureType.NCCL_REMOTE_ERROR})
"""What processes print when their peers have left already."""


class Why(StrEnum):
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


@dataclass(frozen=True, slots=True)
class Story:
    """root: None when nothing qualifies. rejected: the other candidates with the reason."""

    root: Candidate | None
    rejected: tuple[tuple[Candidate, Why], ...] = ()

    @property
    def symptoms(self) -> tuple[Candidate, ...]:
        return tuple(other for other, why in self.rejected if why is Why.EXPLAINED)


class _Docket:
    """Candidates still in question, and those that were dismissed."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self.open = list(candidates)
        self.dismissed: list[tuple[Candidate, Why]] = []

    def dismiss(self, why: Why, test: Callable[[Candidate], bool], *, keep_last: bool = False) -> None:
        """Dismiss those that pass the test; with ``keep_last`` not when nobody would be left."""
        gone = [one for one in self.open if test(one)]
        if keep_last and len(gone) == len(self.open):
            return
        self.dismissed += [(one, why) for one in gone]
        self.open = [one for one in self.open if not test(one)]


def decide(
    evidence: Evidence,
    candidates: Sequence[Candidate],
    recovered: Callable[[Candidate], bool],
    *,
    diverged: bool = False,
) -> Story:
    """recovered: whether training went on after the candidate's line. diverged: the loss series broke for good."""
    docket = _Docket(candidates)
    docket.dismiss(Why.RECOVERED, lambda one: category_of(one.type) is not Category.NONE and recovered(one))
    _settle_end(docket, evidence, recovered, diverged=diverged)
    _settle_chains(docket, evidence)
    docket.dismiss(Why.TEARDOWN, lambda one: one.role is Role.TEARDOWN, keep_last=True)
    docket.dismiss(Why.WRAPPER, lambda one: one.role is Role.WRAPPER, keep_last=True)
    _settle_causes(docket)
    return _verdict(docket, evidence)


def _settle_end(docket: _Docket, evidence: Evidence, went_on: Callable[[Candidate], bool], *, diverged: bool) -> None:
    """A run that says it ended well, or was told to end, explains what follows; a completed run also what precedes.

    A job that hangs after a failure is ended by somebody: then the failure before the end is the cause.
    """
    _settle_completed(docket, evidence, went_on, diverged=diverged)
    told = [one for one in docket.open if _is_end(one) and one.type is not FailureType.COMPLETED]
    if not told:
        return
    first, last = told[0], told[-1]
    if any(one.line < first.line and _outweighs(one, first) for one in docket.open):
        docket.dismiss(Why.LATER, lambda one: one in told)
    elif went_on(last) and any(one.line > last.line and _is_fault(one) for one in docket.open):
        docket.dismiss(Why.EARLIER_ATTEMPT, lambda one: one.line <= last.line)
    else:
        docket.dismiss(Why.EXPLAINED, lambda one: one.line > first.line)


def _settle_completed(
    docket: _Docket, evidence: Evidence, went_on: Callable[[Candidate], bool], *, diverged: bool
) -> None:
    done = [one for one in docket.open if _is_end(one) and one.type is FailureType.COMPLETED]
    if not done:
        return
    last = done[-1]
    near = any(_is_fault(one) and 0 < last.line - one.line <= _SAME_STORY for one in docket.open)
    if last.specificity <= CLASS and near:
        docket.dismiss(Why.VAGUE_END, lambda one: one.type is FailureType.COMPLETED)
    elif diverged or any(_undoes(one, last, evidence, again=went_on(last)) for one in docket.open):
        docket.dismiss(Why.LATER, lambda one: one.type is FailureType.COMPLETED)
        docket.dismiss(Why.EARLIER_ATTEMPT, lambda one: one.line < last.line and not diverged)
    else:
        docket.dismiss(Why.FINISHED, lambda one: not _is_end(one))


def _undoes(one: Candidate, end: Candidate, evidence: Evidence, *, again: bool) -> bool:
    """Whether ``one`` shows that the job failed after all, or that another one followed in the same log.

    What peers print when the first ones leave does not; nor does what tasks of the same step print when ``end`` is a
    verdict of the benchmark itself (explains all). again: training went on after ``end``: another run.
    """
    if one.line < end.line or one.role not in (Role.ROOT, Role.SYMPTOM):
        return False
    if again or one.type is FailureType.CANCELLED:
        return again
    if one.type in _LEAVING and one.role is Role.SYMPTOM and not one.raised:
        return False
    same_step = min(evidence.lines[one.line].task, evidence.lines[end.line].task) >= 0
    return one is not end and not ("all" in end.explains and same_step)


def _outweighs(one: Candidate, end: Candidate) -> bool:
    """Whether a failure before an ordered end is the reason for that end."""
    if category_of(one.type) is Category.NONE or one.role not in (Role.ROOT, Role.SYMPTOM):
        return False
    return one.role is Role.ROOT or end.type is not FailureType.PREEMPTED


def _is_end(one: Candidate) -> bool:
    return category_of(one.type) is Category.NONE and one.role is Role.ROOT


def _is_fault(one: Candidate) -> bool:
    return category_of(one.type) is not Category.NONE and one.role is Role.ROOT


def _settle_chains(docket: _Docket, evidence: Evidence) -> None:
    """Of exceptions raised from or while handling one another, keep the one that says what went wrong."""
    for chain in _chains(evidence):
        members = [one for one in docket.open if one.trace in chain]
        if len(members) > 1:
            kept = _speaker(sorted(members, key=lambda one: chain.index(one.trace)), evidence)
            docket.dismiss(Why.CHAINED, lambda one, m=members, k=kept: one in m and one is not k)  # type: ignore[misc]


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


def _speaker(members: list[Candidate], evidence: Evidence) -> Candidate:
    """The member that names the cause. ``members``: first cause first, last raised last.

    A rule that knows its message wins. The same type all along (an HTTP stack): the last, which names the service.
    Else the first that says something; what Python code raises and handles on purpose (KeyError while filling a cache)
    and what only carries (a refused connection under a storage client) comes after that.
    """
    known = [one for one in members if one.by.startswith("rule:") and one.specificity > CLASS]
    roots = [one for one in known if one.role is Role.ROOT] or [one for one in members if one.role is Role.ROOT]
    roots = roots or members
    best = max(_telling(one, evidence) for one in roots)
    roots = [one for one in roots if _telling(one, evidence) == best]
    return roots[-1] if len({one.type for one in roots}) == 1 else roots[0]


def _telling(one: Candidate, evidence: Evidence) -> tuple[int, int]:
    """How much an exception of a chain says: by kind of class, then by the exactness of its rule."""
    if one.specificity > CLASS and one.by.startswith("rule:"):
        return (1 if one.type is FailureType.CONNECTION_ERROR else 2), one.specificity
    if one.type in (FailureType.RUNTIME_ERROR, FailureType.CONNECTION_ERROR):
        return 0, 0
    return (1 if exceptions.is_control_flow(evidence.tracebacks[one.trace].exception) else 2), 0


def _settle_causes(docket: _Docket) -> None:
    """Roots explain symptoms; a root also explains the types it lists, a symptom only those after it."""
    docket.dismiss(Why.TEARDOWN, _is_told, keep_last=True)
    if any(one.role is Role.ROOT for one in docket.open):
        docket.dismiss(Why.EXPLAINED, lambda one: one.role is Role.SYMPTOM)
    causes = list(docket.open)
    docket.dismiss(Why.EXPLAINED, lambda one: any(_explains(other, one) for other in causes), keep_last=True)


def _is_told(one: Candidate) -> bool:
    """A signal or a cancelled step: how a job ends that somebody stops, or that fails for another reason."""
    return one.role is Role.SYMPTOM and category_of(one.type) is Category.NONE


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


def _verdict(docket: _Docket, evidence: Evidence) -> Story:
    if not docket.open:
        return Story(None, tuple(docket.dismissed))
    first = docket.open[0]
    near = [one for one in docket.open if _same_story(first, one, evidence)]
    root = max(near, key=lambda one: (one.specificity, -one.line))
    spoken = [one for one in near if one.type is root.type and one.specificity >= root.specificity - _AS_EXACT]
    raised = [one for one in spoken if one.raised and one.specificity > CLASS]
    root = root if root.raised or not raised else max(raised, key=lambda one: (one.specificity, -one.line))
    for one in docket.open:
        if one is not root:
            docket.dismissed.append((one, _why_later(root, one)))
    return Story(root, tuple(sorted(docket.dismissed, key=lambda pair: pair[0].line)))


def _same_story(first: Candidate, other: Candidate, evidence: Evidence) -> bool:
    here, there = evidence.lines[first.line], evidence.lines[other.line]
    return (
        here.stream == there.stream
        and (first.rank is None or other.rank is None or first.rank == other.rank)
        and abs(there.number - here.number) <= _SAME_STORY
    )


def _why_later(root: Candidate, other: Candidate) -> Why:
    if other.type is root.type:
        return Why.REPEATED
    return Why.VAGUE if other.line < root.line else Why.LATER
