"""Which candidate is the cause, and why each of the others is not.

The order of the field: role first, then what explains what, then the earliest in corrected time (the order of
``Evidence.lines``), then the more specific (as in GPUAlert's ordered rules and L4's failure chains).
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from operator import attrgetter

from diagnoser.model import Evidence, Severity
from diagnoser.model.order import is_after
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import SAME_STORY, CandidateSet, RejectionReason
from diagnoser.rules.logged_errors import spoke_on
from diagnoser.rules.process_ends import (
    aborts_of_complaining,
    blames_peer,
    ends_of_processes,
    is_explained_by,
    killed_after_order,
    left_program,
)
from diagnoser.rules.run_end import RunTimeline, resolve_end, tells_of_lost_peer
from diagnoser.rules.schema import Blame, Role, Specificity

_REPORTED = 60
"""Lines after the peers' complaint within which a launcher reports the dead process."""
_DETAILS = 40
"""Lines of details that an exception's message may have."""
_HABIT = 3
"""How often a run has survived an exception before one more of its kind counts as handled."""
_LIBRARY = re.compile(r"/(?:lib|lib64)/python|-packages/")
_OF_CHILD = re.compile(r"\b(?:CalledProcessError|ChildProcessError)\b")
"""Classes of Python that say no more than that a child process failed."""
_MESSAGE = 200
"""Characters of a line in which the class of an exception is looked for."""
_CLOSING = 8
"""Lines at the end of a stream that tell how it ended."""


@dataclass(frozen=True, slots=True)
class CausalResult:
    """root: None when nothing qualifies. rejected: the other candidates with the reason. is_contested: nothing but
    their order speaks against a root of another type that knows more than a class or words."""

    root: Candidate | None
    rejected: tuple[tuple[Candidate, RejectionReason], ...] = ()
    is_contested: bool = False

    @property
    def symptoms(self) -> tuple[Candidate, ...]:
        return tuple(self.rejected_as(RejectionReason.EXPLAINED))

    def rejected_as(self, *reasons: RejectionReason) -> list[Candidate]:
        """The candidates that were rejected for one of these reasons."""
        return [other for other, why in self.rejected if why in reasons]


def decide(candidates: Sequence[Candidate], run: RunTimeline) -> CausalResult:
    """Dismiss candidates step by step, and choose the root among those that are left."""
    candidate_set = CandidateSet(candidates)
    for step in _STEPS:
        step(candidate_set, run)
    return _choose_root(candidate_set, run.evidence)


_Step = Callable[[CandidateSet, RunTimeline], None]
"""Dismisses the candidates that one reason speaks against."""


def _dismiss_benign(candidate_set: CandidateSet, _: RunTimeline) -> None:
    candidate_set.dismiss(RejectionReason.BENIGN, lambda c: c.role is Role.BENIGN)


def _dismiss_recovered(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """Steps that follow show nothing of an exception that left its program, unless another one ended it later."""
    survived = candidate_set.where(run.survived)

    def is_ended_by(other: Candidate) -> bool:
        if other in survived:
            return False
        if _is_of_child(other, run.evidence):
            return False
        return _is_root_that_left(other, run.evidence)

    if not candidate_set.has(is_ended_by):
        survived = [candidate for candidate in survived if not _left_for_good(candidate, run)]
    candidate_set.dismiss(RejectionReason.RECOVERED, survived.__contains__)


def _is_root_that_left(candidate: Candidate, evidence: Evidence) -> bool:
    return candidate.is_root and left_program(evidence, candidate)


def _left_for_good(candidate: Candidate, run: RunTimeline) -> bool:
    """Whether nobody caught the exception of a process that the log does not tell from others, though there are some,
    and no launch began after it: the steps that follow are those of others."""
    if run.evidence.lines[candidate.line].names_process:
        return False
    if not run.has_others:
        return False
    if candidate.line <= max(run.begins, default=-1):
        return False
    return left_program(run.evidence, candidate)


def _dismiss_handled(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """An exception that was caught is not why a program ends that another one left."""
    handled = _caught(candidate_set, run.evidence)
    if not handled:
        return
    symptoms, last = {(Role.SYMPTOM, c.type) for c in handled}, handled[-1].line + _DETAILS
    details = candidate_set.where(lambda c: (c.role, c.type) in symptoms and c.line <= last)
    candidate_set.dismiss(RejectionReason.RECOVERED, [*handled, *details].__contains__)


def _caught(candidate_set: CandidateSet, evidence: Evidence) -> list[Candidate]:
    """The exceptions that were caught, where others left their programs: their processes printed more than errors
    later. What a rule knows by its message, or of the type of those, may be why they ended."""
    left = candidate_set.where(lambda c: _is_root_that_left(c, evidence))
    if not left:
        return []
    types = set(map(attrgetter("type"), left))
    ended = {evidence.lines[c.line].speaker for c in left}

    def is_caught(candidate: Candidate) -> bool:
        speaker = evidence.lines[candidate.line].speaker
        if speaker not in ended and not candidate.logged:
            return False  # a driver may end of what its worker raised
        if candidate.type in types:
            return False
        if candidate.specificity >= Specificity.MESSAGE:
            return False
        return _spoke_on_after(candidate, evidence)

    return candidate_set.where(is_caught)


def _spoke_on_after(candidate: Candidate, evidence: Evidence) -> bool:
    """Whether the candidate is an exception within its program, after which its process printed more than errors."""
    if candidate.trace < 0:
        return False
    if not candidate.is_failing:
        return False
    if candidate.exit:
        return False
    if candidate.last_words:
        return False
    if left_program(evidence, candidate):
        return False
    return spoke_on(evidence, candidate.line, evidence.traceback_lines)


def _dismiss_mild(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """What its own program calls information or a warning is no cause, unless the run ended badly and nothing else says
    why."""
    mild = candidate_set.where(lambda c: _is_mild(c, run.evidence) and not run.left_behind(c))
    others = candidate_set.has(lambda c: c.is_fault and c not in mild)
    ended_badly = _is_known_to_fail(candidate_set, run) or candidate_set.has(_carries_cause)
    if not any((others, ended_badly, candidate_set.has(attrgetter("is_end")))):
        mild = [c for c in mild if not _is_last_said(c, run.evidence)]
    if others or not ended_badly:
        candidate_set.dismiss(RejectionReason.MILD, mild.__contains__)


def _is_last_said(candidate: Candidate, evidence: Evidence) -> bool:
    """Whether the line is among the last ones of its stream, and tells of no machine: a launcher may carry as
    information what ends a program."""
    if category_of(candidate.type) is Category.INFRASTRUCTURE:
        return False
    line = evidence.lines[candidate.line]
    return evidence.last_numbers[line.stream] - line.number <= _CLOSING


def _is_known_to_fail(candidate_set: CandidateSet, run: RunTimeline) -> bool:
    """Whether a witness says that the run ended badly, or the end of a process does."""
    if run.completed is False:
        return True
    return candidate_set.has(attrgetter("exit"))


def _carries_cause(candidate: Candidate) -> bool:
    """Whether an exception that was raised says that another one is the cause."""
    return candidate.raised and candidate.role is Role.WRAPPER


def _is_mild(candidate: Candidate, evidence: Evidence) -> bool:
    severity = evidence.lines[candidate.line].severity
    if severity is None:
        return False
    if severity > Severity.WARNING:
        return False
    if not candidate.is_failure:
        return False
    if candidate.raised or candidate.exit:
        return False  # a launcher may carry what a process prints as information
    if candidate.type is FailureType.LOSS_DIVERGENCE:
        return False  # metrics are information, and NaN is what they say
    # libraries warn of what ends them: a rule that knows the message knows better
    return candidate.is_vague or severity is not Severity.WARNING


def _dismiss_recurring_handled(candidate_set: CandidateSet, _: RunTimeline) -> None:
    """A run that has survived an exception again and again handles it: when no other candidate is left, the last of
    them is no failure either."""
    survived = _survived_kinds(candidate_set)
    if candidate_set.has(lambda c: survived[_kind(c)] < _HABIT or not c.is_vague):
        return
    candidate_set.dismiss(RejectionReason.RECOVERED, lambda _: True)


def _survived_kinds(candidate_set: CandidateSet) -> Counter[tuple[str, FailureType, Role]]:
    """How often the run survived a candidate of each kind."""
    return Counter(map(_kind, candidate_set.dismissed_for(RejectionReason.RECOVERED)))


def _kind(candidate: Candidate) -> tuple[str, FailureType, Role]:
    return candidate.by, candidate.type, candidate.role


def _dismiss_overridden(candidate_set: CandidateSet, _: RunTimeline) -> None:
    overridden = frozenset[str]().union(*map(attrgetter("overrides"), candidate_set.open))
    candidate_set.dismiss(RejectionReason.OVERRIDDEN, lambda c: c.by in overridden)


def _reopen_survived(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """Where nothing but the end of a process explains an end that is bad, the last exception that its own stream
    outlived does, of those that came furthest out of their programs: of processes that share a stream without names, or
    of a manager of tasks, whose others went on."""
    if candidate_set.has(lambda c: c.is_failing and not c.exit):
        return
    if not (run.ended.complained or _is_known_to_fail(candidate_set, run)):
        return
    rare = [c for c in _rarely_survived(candidate_set) if not run.was_handled(c)]
    last = max(rare, key=lambda c: (_reach(c, run.evidence), c.line), default=None)
    if last is None:
        return
    chain = next((chain for chain in _chains(run.evidence) if last.trace in chain), [])
    candidate_set.reopen(RejectionReason.RECOVERED, [c for c in rare if c is last or c.trace in chain])


def _rarely_survived(candidate_set: CandidateSet) -> list[Candidate]:
    """The exceptions that nobody caught and logged, and that were survived, as those of their kind not often were."""
    survived = _survived_kinds(candidate_set)
    thrown = filter(_is_thrown, candidate_set.dismissed_for(RejectionReason.RECOVERED))
    return [c for c in thrown if survived[_kind(c)] < _HABIT]


def _reach(candidate: Candidate, evidence: Evidence) -> int:
    """How far out an exception came: to the module of its program, to its main function, which may log it, or less."""
    if candidate.trace < 0:
        return 0
    if left_program(evidence, candidate):
        return 2
    return int("".join(evidence.tracebacks[candidate.trace].frames[:1]).endswith(", in main"))


def _is_thrown(candidate: Candidate) -> bool:
    """Whether a fault is an exception that nobody caught and logged."""
    if candidate.logged:
        return False
    return candidate.raised and candidate.is_fault


def _resolve_chains(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """Of exceptions raised from or while handling one another, keep the one that says what went wrong."""
    by_trace = {candidate.trace: candidate for candidate in candidate_set.open}
    for chain in _chains(run.evidence):
        links = list(filter(None, map(by_trace.get, chain)))
        if len(links) < 2:
            continue
        links.remove(_most_informative(_without_first_tries(links, run.evidence)))
        candidate_set.dismiss(RejectionReason.CHAINED, links.__contains__)


def _without_first_tries(links: list[Candidate], evidence: Evidence) -> list[Candidate]:
    """The exceptions of a chain without those of the very call that failed last: a library that handles one of its
    errors and calls itself again, as ``mkdir`` for a parent, fails for the reason of the last."""
    *before, last = links
    call = evidence.tracebacks[last.trace].frames[-1:]
    if not _LIBRARY.search("".join(call)):
        return links
    return [*(link for link in before if evidence.tracebacks[link.trace].frames[-1:] != call), last]


def _chains(evidence: Evidence) -> list[list[int]]:
    """Tracebacks linked by their causes, first cause first."""
    follows = {trace.cause: number for number, trace in enumerate(evidence.tracebacks)}
    chains = []
    for number, trace in enumerate(evidence.tracebacks):
        if trace.cause >= 0:
            continue
        chain = [number]
        while chain[-1] in follows:
            chain.append(follows[chain[-1]])
        chains.append(chain)
    return chains


def _most_informative(members: list[Candidate]) -> Candidate:
    """The member that names the cause. ``members``: first cause first, last raised last.

    A rule that knows its message wins. The same type all along (an HTTP stack): the last, which names the service.
    Else the first that says something; an exception that code raises and handles on purpose (KeyError while filling a
    cache) and a mere carrier (a refused connection under a storage client) rank behind it.
    """
    roots = list(filter(attrgetter("is_root"), members))
    known = list(filter(_knows_message, roots)) or roots or members
    best = max(map(_informativeness, known))
    known = [c for c in known if _informativeness(c) == best]
    known = list(filterfalse(attrgetter("control_flow"), known)) or known
    return known[-1] if len(set(map(attrgetter("type"), known))) == 1 else known[0]


def _knows_message(candidate: Candidate) -> bool:
    return candidate.is_by_rule and not candidate.is_vague


def _informativeness(candidate: Candidate) -> tuple[int, int]:
    """How much an exception of a chain says: by kind of class, then by the exactness of its rule."""
    if _knows_message(candidate):
        return (1 if candidate.type is FailureType.CONNECTION_ERROR else 2), candidate.specificity
    if candidate.type in (FailureType.RUNTIME_ERROR, FailureType.CONNECTION_ERROR):
        return 0, 0
    return (1 if candidate.control_flow else 2), 0


def _dismiss_failed_commands(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """Of a child process that failed Python says only that: why says the exception that ended it, printed before."""
    commands = candidate_set.where(lambda c: _is_of_child(c, run.evidence))
    failures = candidate_set.where(lambda c: c.is_failure and c not in commands)
    ended = [c.line for c in failures if left_program(run.evidence, c)]
    behind = [c for c in commands if c.line > min(ended, default=math.inf)]
    candidate_set.dismiss(RejectionReason.WRAPPER, behind.__contains__)


def _is_of_child(candidate: Candidate, evidence: Evidence) -> bool:
    if not candidate.raised:
        return False
    if not candidate.is_root:
        return False
    return bool(_OF_CHILD.search(evidence.lines[candidate.line].body[:_MESSAGE]))


def _dismiss_lost_peers(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """An error about a peer is a symptom where another process ended by itself, however exact its rule."""
    aborts = aborts_of_complaining(run.evidence, candidate_set.open)
    candidate_set.dismiss(RejectionReason.WRAPPER, lambda c: c.exit and c.line in aborts)
    complaints = candidate_set.where(lambda c: c.is_failing and blames_peer(c, run.evidence.lines[c.line]))
    if not complaints:
        return
    killed = killed_after_order(run.evidence)
    candidate_set.dismiss(RejectionReason.TEARDOWN, lambda c: c.exit and c.line in killed)
    ends = ends_of_processes(run.evidence, candidate_set.open)

    def is_explained(complaint: Candidate) -> bool:
        return any(is_explained_by(end, complaint, run.evidence) for end in ends)

    explained = list(filter(is_explained, complaints))
    candidate_set.dismiss(RejectionReason.EXPLAINED, explained.__contains__)


def _dismiss_teardown(candidate_set: CandidateSet, _: RunTimeline) -> None:
    candidate_set.dismiss(RejectionReason.TEARDOWN, lambda c: c.role is Role.TEARDOWN, keep_last=True)


def _dismiss_wrappers(candidate_set: CandidateSet, _: RunTimeline) -> None:
    """Those that report no end of a process first: a report says more."""
    candidate_set.dismiss(RejectionReason.WRAPPER, lambda c: c.role is Role.WRAPPER and not c.exit, keep_last=True)
    candidate_set.dismiss(RejectionReason.WRAPPER, lambda c: c.role is Role.WRAPPER, keep_last=True)


def _dismiss_of_handlers(candidate_set: CandidateSet, _: RunTimeline) -> None:
    """Where nothing failed but the code that handles an interrupt, the interrupt is how the run ended."""
    ends = candidate_set.where(lambda c: c.is_ordered_end)
    rest = candidate_set.where(lambda c: not c.is_ordered_end)
    if all(_is_of_handler(c, ends) for c in rest):
        candidate_set.dismiss(RejectionReason.EXPLAINED, rest.__contains__)


def _is_of_handler(candidate: Candidate, ends: Sequence[Candidate]) -> bool:
    return any(_covers(end, candidate) for end in ends if end.line < candidate.line)


def _dismiss_ordered_ends(candidate_set: CandidateSet, _: RunTimeline) -> None:
    candidate_set.dismiss(RejectionReason.TEARDOWN, lambda c: c.is_ordered_end, keep_last=True)


def _dismiss_explained(candidate_set: CandidateSet, _: RunTimeline) -> None:
    """Roots explain symptoms; a root also explains the types it lists, a symptom only those after it."""
    if candidate_set.has(lambda c: c.is_root):
        candidate_set.dismiss(RejectionReason.EXPLAINED, lambda c: c.role is Role.SYMPTOM)
    causes = list(candidate_set.open)
    candidate_set.dismiss(RejectionReason.EXPLAINED, lambda c: _is_explained(c, causes), keep_last=True)


def _is_explained(candidate: Candidate, causes: Sequence[Candidate]) -> bool:
    return any(_explains(cause, candidate) for cause in causes)


_STEPS: tuple[_Step, ...] = (
    _dismiss_benign,
    _dismiss_recovered,
    _dismiss_handled,
    _dismiss_mild,
    _dismiss_recurring_handled,
    _dismiss_overridden,
    resolve_end,
    _reopen_survived,
    _resolve_chains,
    _dismiss_failed_commands,
    _dismiss_lost_peers,
    _dismiss_teardown,
    _dismiss_wrappers,
    _dismiss_of_handlers,
    _dismiss_ordered_ends,
    _dismiss_explained,
)


def _explains(cause: Candidate, other: Candidate) -> bool:
    if cause.type is other.type:
        return False
    if not _covers(cause, other):
        return False
    if _is_of_peer(other, cause):
        return False
    if other.line < cause.line and not _explains_earlier(cause, other):
        return False
    if (cause.line, -cause.specificity) < (other.line, -other.specificity):
        return True
    if not _covers(other, cause):
        return True
    return _is_of_peer(cause, other)


def _explains_earlier(cause: Candidate, other: Candidate) -> bool:
    """Whether a cause explains what was printed before it. Peers complain about a dead process before its launcher
    reports it."""
    if cause.is_root:
        return True
    if _is_of_peer(cause, other):
        return True
    if (cause.blame, other.blame) != (Blame.SELF, Blame.PEER):
        return False
    return cause.line - other.line <= _REPORTED


def _is_of_peer(cause: Candidate, other: Candidate) -> bool:
    """Whether ``cause`` is the report of a process's end, which may come when all are stopped, and ``other`` tells of
    the connection to that process, which broke at once."""
    if cause.role is Role.WRAPPER:
        return False
    if not cause.exit:
        return False
    return tells_of_lost_peer(other)


def _covers(cause: Candidate, other: Candidate) -> bool:
    return not cause.explains.isdisjoint(("all", other.type))


def _choose_root(candidate_set: CandidateSet, evidence: Evidence) -> CausalResult:
    if not candidate_set.open:
        return CausalResult(None, tuple(candidate_set.dismissed))
    first = _first(candidate_set.open, evidence)
    nearby = candidate_set.where(lambda c: _same_failure_window(first, c, evidence))
    root = _most_exact(nearby)
    for candidate in candidate_set.open:
        if candidate is not root:
            candidate_set.dismissed.append((candidate, _why_later(root, candidate)))
    rejected = tuple(sorted(candidate_set.dismissed, key=lambda pair: pair[0].line))
    is_contested = candidate_set.has(lambda c: c.is_root and not c.is_vague and c.type is not root.type)
    return CausalResult(_with_rank_of_repetition(root, nearby), rejected, is_contested)


def _first(candidates: Sequence[Candidate], evidence: Evidence) -> Candidate:
    """The first candidate; for a vague line of nobody in particular, whose place among the streams nobody knows, the
    first exception of a rank."""
    first = candidates[0]
    if first.rank is not None:
        return first
    if not first.is_vague:
        return first
    for other in filter(attrgetter("raised"), candidates):
        if other.rank is None:
            continue
        if is_after(evidence.lines[other.line], evidence.lines[first.line]).after is None:
            return other
    return first


def _most_exact(nearby: Sequence[Candidate]) -> Candidate:
    """The most specific candidate, else the first; for a log line the raised exception that says as much."""
    root = max(nearby, key=_exactness)
    if root.raised:
        return root
    if root.names_no_failure:
        return root
    least = max(root.specificity, Specificity.FAMILY)
    raised = [c for c in nearby if c.raised and c.type is root.type]
    if root.blame is Blame.SELF:  # who lost a peer knows less than who names it
        raised = [c for c in raised if c.blame is not Blame.PEER]
    best = max(raised, key=_exactness, default=root)
    return best if best.specificity >= least else root


def _exactness(candidate: Candidate) -> tuple[int, int]:
    return candidate.specificity, -candidate.line


def _with_rank_of_repetition(root: Candidate, nearby: Sequence[Candidate]) -> Candidate:
    """A library prints its line without a rank, and the one rank that fails of it repeats it in its exception."""
    if root.rank is not None:
        return root
    ranks = {c.rank for c in nearby if c.by == root.by} - {None}
    return replace(root, rank=ranks.pop()) if len(ranks) == 1 else root


def _same_failure_window(first: Candidate, other: Candidate, evidence: Evidence) -> bool:
    here, there = evidence.lines[first.line], evidence.lines[other.line]
    if here.stream != there.stream:
        return False
    if abs(there.number - here.number) > SAME_STORY:
        return False
    return first.rank == other.rank or None in (first.rank, other.rank)


def _why_later(root: Candidate, other: Candidate) -> RejectionReason:
    if other.type is root.type:
        return RejectionReason.REPEATED
    return RejectionReason.VAGUE if other.line < root.line else RejectionReason.LATER
