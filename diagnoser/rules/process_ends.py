"""Which processes ended, by themselves or because another had, and who complains of a peer that is gone.

A process ends by itself in an exception, an abort or a signal that nobody is known to have sent. Its peers then lose a
connection: their errors are true, and say nothing of the cause, however exact the rule is that knows their words.
"""

import signal
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from diagnoser.model import Evidence, ExitReport, Line, Stream, expressions
from diagnoser.model.order import is_after
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.logged_errors import is_logged, spoke_on
from diagnoser.rules.schema import Blame

_T = FailureType
_BY_ANOTHER = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE})
"""Signals that a launcher, a scheduler or a person sends, and the one of a peer that is gone."""
_LOST = frozenset({_T.CONNECTION_ERROR, _T.NETWORK_ERROR, _T.NCCL_REMOTE_ERROR, _T.NCCL_TIMEOUT_ERROR})
"""Types of what a process sees of a peer that is gone."""
_OF_PEERS = frozenset({_T.NCCL_REMOTE_ERROR, _T.NCCL_TIMEOUT_ERROR})
"""Types of a process that ended because a peer or the network failed it, whoever the line blames."""
_NATIVE = frozenset({_T.SEGMENTATION_FAULT, _T.HOST_OUT_OF_MEMORY})
"""Types that a process ends of without an exception."""
COMPLAINTS = (
    r"(?i)connection (?:was |has been )?(?:reset|closed|aborted|lost) by (?:the )?(?:remote )?peer",
    r"(?i)\bconnection reset\b|\bsocket closed\b|\bbroken pipe\b|\bunexpected end of file\b.{0,40}\bsocket\b",
    r"(?i)\b(?:rank|peer|worker|node|process|task)\b[ #:=]{0,2}\d{0,6} (?:has |was )?(?:closed|dropped|reset|lost)\b"
    r".{0,20}\bconnection\b|\bconnection (?:was )?(?:closed|reset|dropped) by (?:rank|worker|node|process|task)\b",
    r"(?i)\b(?:remote|peer) process (?:has )?(?:exited|died|ended|is gone)",
    r"(?i)\blost (?:the )?connection to (?:peer|rank)\b",
    r"(?i)\b(?:actor|worker|peer|rank \d{1,6}|engine core) (?:process )?(?:has )?(?:died|is dead|exited) unexpectedly",
    r"\b(?:RayActorError|ActorDiedError|ActorUnavailableError)\b|The actor died because",
    r"(?i)\bbarrier (?:timed out|timeout)|\bstopped sending heartbeats\b|\btasks? (?:are|is) unhealthy\b",
    r"(?i)wait timeout after \d{1,12} ?ms|received errors while waiting for send/recv from rank",
)
"""How libraries print that a peer is gone."""
_PEER = (r"(?i)\b(?:rank|peer|worker|replica|process|task|actor)[ _#:=]{0,3}\d{1,6}\b|\bpeer\b",)
"""How an error about a connection names the process at its other end."""
_NO_ROUTE = (r"(?i)no route to host|network is (?:unreachable|down)|name or service not known|link (?:down|failure)",)
"""Words of a network that is at fault itself: no process that ends does that."""
_LONGEST = 2048
"""Characters of a line that are read."""
_TABLES = frozenset({"torchelastic"})
"""Launchers that report the ends of several processes at once."""
_PRINTED = 2.0
"""Seconds by which an end may be printed after its peers' complaints."""
_REPORTED = 60
"""Lines of a file by which it may be."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """Where a log shows that a process ended.

    line: index into ``Evidence.lines``.
    ranks: empty where nothing names them.
    by_itself: whether no other process or person is known to have ended it.
    """

    line: int
    ranks: frozenset[int]
    by_itself: bool


def ends_of_processes(evidence: Evidence, candidates: Sequence[Candidate]) -> tuple[ProcessEnd, ...]:
    """The ends of the candidates' processes: those that launchers report, and those of processes that raised or aborted
    and then printed no more."""
    complaining = _complaining(evidence, candidates)
    lines, traced = {candidate.line for candidate in candidates}, evidence.traceback_lines
    ends = [end for end in _reported(evidence, complaining) if end.line in lines]
    for candidate in candidates:
        if _ends_process(candidate, evidence, traced):
            by_another = candidate.type in _OF_PEERS or blames_peer(candidate, evidence.lines[candidate.line])
            ends.append(ProcessEnd(candidate.line, _ranks(candidate), not by_another))
    return tuple(sorted(ends, key=lambda end: end.line))


def _complaining(evidence: Evidence, candidates: Iterable[Candidate]) -> frozenset[int]:
    """The ranks that complain of a peer."""
    complaints = (candidate for candidate in candidates if blames_peer(candidate, evidence.lines[candidate.line]))
    return frozenset[int]().union(*map(_ranks, complaints))


def aborts_of_complaining(evidence: Evidence, candidates: Sequence[Candidate]) -> frozenset[int]:
    """Lines that report the abort of a rank that complains of a peer: its own watchdog, or the uncaught error, ended
    it."""
    complaining = _complaining(evidence, candidates)
    aborts = [report for report in evidence.exits if report.signal == signal.SIGABRT]
    of_ranks = {report.line for report in aborts if set() < set(report.ranks) <= complaining}
    return frozenset(of_ranks | set(_aborts_of_uncaught(aborts, candidates)))


def _aborts_of_uncaught(aborts: Sequence[ExitReport], candidates: Iterable[Candidate]) -> Iterator[int]:
    """The reports beside the last words of a process, one for each: it aborted because nobody caught them."""
    left = [report for report in aborts if not report.ranks]
    for candidate in candidates:
        if not candidate.last_words:
            continue
        for report in left:
            if abs(report.line - candidate.line) <= _REPORTED:
                left.remove(report)
                yield report.line
                break


def killed_after_order(evidence: Evidence) -> frozenset[int]:
    """Lines that report a process killed after its launcher had begun to stop the others: it did not heed the order.
    Agents print tables of failures in no order: what they report tells nothing here."""
    stopping, lines = set[tuple[str, Stream]](), set[int]()
    for report in evidence.exits:
        reporter = report.launcher, evidence.lines[report.line].stream
        if report.launcher in _TABLES:
            continue
        if report.signal == signal.SIGTERM:
            stopping.add(reporter)
        elif report.signal == signal.SIGKILL and reporter in stopping:
            lines.add(report.line)
    return frozenset(lines)


def left_program(evidence: Evidence, candidate: Candidate) -> bool:
    """Whether the candidate is an exception that nobody caught, up to the module of a program, or one that led to it.
    What a program logs there it has caught."""
    if candidate.trace < 0:
        return False
    for number, trace in enumerate(evidence.tracebacks):
        if not trace.left_program:
            continue
        if candidate.trace not in (number, trace.cause):
            continue
        if not is_logged(evidence, trace.raised, number):
            return True
    return False


def _reported(evidence: Evidence, complaining: frozenset[int]) -> Iterator[ProcessEnd]:
    """Ends by signals, of which only the first tells anything where nobody says whose it is. A code does not tell
    whether the process failed of another one's end; launchers kill those that are left.

    complaining: ranks that complain of a peer.
    """
    failed = [report for report in evidence.exits if report.failed]
    for report in failed:
        if report.signal is None:
            continue
        is_first = report is failed[0]
        ranks = frozenset(report.ranks) or frozenset({evidence.lines[report.line].rank}) - {-1}
        if not (is_first or ranks):
            continue
        by_another = _BY_ANOTHER if is_first else {*_BY_ANOTHER, signal.SIGKILL}
        by_itself = report.signal not in by_another and complaining.isdisjoint(ranks)
        yield ProcessEnd(report.line, ranks, by_itself)


def _ends_process(candidate: Candidate, evidence: Evidence, traced: Collection[int]) -> bool:
    if candidate.exit:
        return False
    if candidate.logged:
        return False
    if not candidate.is_failure:
        return False
    if candidate.type in _NATIVE:
        return True  # what its process prints behind it is its stack
    if not candidate.raised:
        return False
    return not spoke_on(evidence, candidate.line, traced)


def _ranks(candidate: Candidate) -> frozenset[int]:
    return frozenset() if candidate.rank is None else frozenset({candidate.rank})


def blames_peer(candidate: Candidate, line: Line) -> bool:
    """Whether the candidate tells of a connection to another process, not of a fault of its own."""
    if _matches(_NO_ROUTE, line.body):
        return False
    if (candidate.blame, candidate.type in _LOST) == (Blame.PEER, True):
        return True
    if not candidate.raised:
        return False
    if candidate.type not in _LOST:
        return _matches(COMPLAINTS, line.body)
    if _matches(_PEER, line.body):
        return True
    return _matches(COMPLAINTS, line.body)


def is_explained_by(end: ProcessEnd, complaint: Candidate, evidence: Evidence) -> bool:
    """Whether another process ended by itself, and the complaint may be about that."""
    if not end.by_itself:
        return False
    ended, complained = evidence.lines[end.line], evidence.lines[complaint.line]
    if not _is_another(end, ended, complaint, complained):
        return False
    order = is_after(ended, complained)
    if not order.after:
        return True
    if ended.stream == complained.stream:
        return ended.number - complained.number <= _REPORTED
    if not (ended.is_dated and complained.is_dated):
        return False
    return ended.time - complained.time <= _PRINTED


def _is_another(end: ProcessEnd, ended: Line, complaint: Candidate, complained: Line) -> bool:
    if end.ranks and complaint.rank is not None:
        return complaint.rank not in end.ranks
    if ended.stream != complained.stream:
        return True
    return ended.speaker != complained.speaker


def _matches(patterns: tuple[str, ...], body: str) -> bool:
    return bool(_compiled(patterns).Match(body[:_LONGEST]))


@lru_cache(maxsize=3)
def _compiled(patterns: tuple[str, ...]) -> Any:
    return expressions.search_set(patterns)
