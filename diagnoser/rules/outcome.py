"""How the attempt ended, before why: the strongest witness decides.

Witnesses outside the log (scheduler, agent, exit status) speak before any candidate is weighed, and bound what may be
the cause. The log's own witnesses (reports of ended processes, last words) are lines, so they are weighed among the
candidates; the outcome then follows from the one that was chosen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diagnoser.model import LIKELY_LINE, Event, EventKind
from diagnoser.model.taxonomy import FailureType, Outcome
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_sources import EXIT_SIGNAL, SIGNALS
from diagnoser.rules.schema import Role

_T = FailureType
_BY_TYPE = {
    _T.COMPLETED: Outcome.COMPLETED,
    _T.CANCELLED: Outcome.CANCELLED,
    _T.PREEMPTED: Outcome.PREEMPTED,
    _T.TIME_LIMIT: Outcome.TIME_LIMIT,
}
_ORDERED = {2: _T.CANCELLED, 15: _T.CANCELLED}
"""Signals by which a person or a scheduler asks a process to end, where nothing in the log says why."""
_TIMEOUT = 124
"""Exit code of ``timeout`` when it ended the program."""
EXIT_EVENT = "heuristic:exit_event"
HINT = (
    "Nothing in the log shows how the run ended. Its exit status would decide: `diagnose --exit-code N` for a file, "
    "an exit event for a job."
)
BELIED = "the exit status is 0, but the log ends in a failure: a pipe or a later command of the script may hide it"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended.

    type: what the ending alone says of the cause; unknown where it says no more than that the run failed.
    """

    outcome: Outcome
    type: FailureType
    decided_by: str

    @property
    def is_failure(self) -> bool:
        """Whether the run cannot have completed."""
        return self.outcome is not Outcome.COMPLETED


@dataclass(frozen=True, slots=True)
class Testimony:
    """What is known of an end.

    reported: what witnesses outside the log say, None without any.
    root: the cause that was chosen from the log.
    hung: nothing advances in a run that is still open.
    ended_badly: something else than the root shows that the run failed.
    """

    reported: Ending | None
    root: Candidate | None
    hung: bool = False
    ended_badly: bool = False


_Witness = Callable[[Testimony], Ending | None]
"""The ending that a witness tells of, None where it says nothing."""


def reported(events: Iterable[Event]) -> Ending | None:
    """The ending that the scheduler, the agent or an exit status tells of; None when none does.

    The newest event about the whole attempt counts. Without one the ranks' own exits do: one that failed outweighs all
    that ended well.
    """
    newest_first = sorted(events, key=lambda event: event.time, reverse=True)
    of_ranks = list[Ending]()
    seen = set[int]()
    for event in newest_first:
        ending = _ending_of(event)
        if ending is None:
            continue
        if event.rank is None:
            return ending
        if event.rank not in seen:
            of_ranks.append(ending)
        seen.add(event.rank)
    return _worst(of_ranks)


def is_success(ending: Ending | None) -> bool | None:
    """Whether the run completed; None where nobody says so, or says that it was taken away."""
    if ending is None:
        return None
    if ending.outcome not in (Outcome.COMPLETED, Outcome.FAILED):
        return None
    return not ending.is_failure


def _worst(endings: Sequence[Ending]) -> Ending | None:
    failures = [ending for ending in endings if ending.is_failure]
    return next(iter((*failures, *endings)), None)


def _ending_of(event: Event) -> Ending | None:
    """The ending that an event tells of. An exit with neither code nor signal only says that the attempt is over."""
    match event.kind:
        case EventKind.CANCELLED:
            return Ending(Outcome.CANCELLED, _T.CANCELLED, EXIT_EVENT)
        case EventKind.PREEMPTED:
            return Ending(Outcome.PREEMPTED, _T.PREEMPTED, EXIT_EVENT)
        case EventKind.EXIT if (event.code, event.signal) != (None, None):
            return of_status(event.code or 0, event.signal or 0)
    return None


def of_status(code: int, signal: int = 0) -> Ending:
    """The ending that an exit status tells of. code: also 128 + a signal, or a signal negated. signal: 0 for none."""
    signal = signal or signal_of(code)
    if not code and not signal:
        return Ending(Outcome.COMPLETED, _T.COMPLETED, EXIT_EVENT)
    if code == _TIMEOUT:
        return Ending(Outcome.FAILED, _T.TIME_LIMIT, EXIT_SIGNAL)
    if signal in _ORDERED:
        return Ending(Outcome.FAILED, _ORDERED[signal], EXIT_SIGNAL)
    if signal in SIGNALS:
        return Ending(Outcome.FAILED, SIGNALS[signal][0], EXIT_SIGNAL)
    return Ending(Outcome.FAILED, _T.UNKNOWN, "heuristic:no_evidence")


def signal_of(code: int) -> int:
    """The signal in an exit code, 0 for none: shells add 128, Python negates."""
    if code < 0:
        return -code
    return max(code - 128, 0)


def decide_ending(testimony: Testimony) -> Ending:
    """The ending by the first witness that says something."""
    for witness in _WITNESSES:
        ending = witness(testimony)
        if ending is not None:
            return ending
    return Ending(Outcome.UNKNOWN, _T.UNKNOWN, "heuristic:no_evidence")


def _clean_status(testimony: Testimony) -> Ending | None:
    """A status of success, which only a diverged loss contradicts."""
    known, root = testimony.reported, testimony.root
    if known is None:
        return None
    if known.is_failure:
        return None
    if root is None:
        return known
    if root.type is _T.LOSS_DIVERGENCE:
        return None
    return known


def _order(testimony: Testimony) -> Ending | None:
    """The scheduler's word that it took the run away, unless a failure came before."""
    known, root = testimony.reported, testimony.root
    if known is None:
        return None
    if known.outcome not in (Outcome.CANCELLED, Outcome.PREEMPTED):
        return None
    if root is None:
        return known
    if root.is_root:
        return None
    return known


def _cause(testimony: Testimony) -> Ending | None:
    """The line that was chosen: a cause means a failure, whatever was logged after it."""
    known, root = testimony.reported, testimony.root
    if root is None:
        return None
    kind = _T.UNKNOWN if _says_nothing(root) else root.type
    if root.type is _T.LOSS_DIVERGENCE:
        known = None
    if all((root.by == LIKELY_LINE, known is None, not testimony.ended_badly)):
        # a line that looks like a cause does not show that the run failed
        return Ending(Outcome.UNKNOWN, kind, root.by)
    return Ending(decide_outcome(known, root.type, hung=testimony.hung), kind, root.by)


def _status(testimony: Testimony) -> Ending | None:
    """What an exit status says by itself, where no line says more."""
    known = testimony.reported
    if known is None:
        return None
    if known.type is _T.UNKNOWN and testimony.hung:
        return None
    return Ending(_BY_TYPE.get(known.type, known.outcome), known.type, known.decided_by)


def _silence(testimony: Testimony) -> Ending | None:
    """A run that is still open, in which nothing advances."""
    return Ending(Outcome.HUNG, _T.UNKNOWN, "heuristic:no_progress") if testimony.hung else None


_WITNESSES: tuple[_Witness, ...] = (_clean_status, _order, _cause, _status, _silence)


def _says_nothing(root: Candidate) -> bool:
    """A launcher's exception alone shows that something failed, but not what; an exit code shows that the program ended
    itself."""
    if root.exit:
        return False
    if root.role not in (Role.WRAPPER, Role.TEARDOWN):
        return False
    return root.by.startswith("heuristic:")


def decide_outcome(known: Ending | Outcome | None, cause: FailureType, *, hung: bool) -> Outcome:
    """The outcome where a cause was named, by a rule, a person or a model. known: by witnesses outside the log."""
    if cause in _BY_TYPE:
        return _BY_TYPE[cause]
    if known is not None:
        return known.outcome if isinstance(known, Ending) else known
    if hung:
        return Outcome.HUNG
    return Outcome.UNKNOWN if cause is _T.UNKNOWN else Outcome.FAILED
