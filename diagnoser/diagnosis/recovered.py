"""Whether the job went on after a candidate."""

import signal
from bisect import bisect_right
from collections import defaultdict
from functools import cached_property

from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model import Evidence, ExitReport, Line, Stream
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.schema import Role
from diagnoser.structure.loops import Loops

_T = FailureType
_DEATHS = frozenset({_T.SEGMENTATION_FAULT, _T.HOST_OUT_OF_MEMORY, _T.NODE_FAILURE})
"""Types after which a process is gone."""
_BUFFERED = 20
"""Steps whose lines may still arrive after a process has died."""
_TURNS = 2
"""Turns of its own loop after an error that show that its process went on."""
_REPORTED = 12
"""Lines after an uncaught exception within which a launcher reports the end of its process."""
_LAST_WORDS = 60
"""Lines after the last words of a process, which are known to be its last, within which it does."""


class RecoveryCheck:
    """Whether the job went on after a candidate.

    After a death, buffered lines still arrive, so it takes more steps; after an error that the program itself logged,
    one step is enough. Whatever others do, an exception is not survived by a process that is reported dead next.
    """

    def __init__(self, evidence: Evidence, timeline: ProgressTimeline, loops: Loops) -> None:
        self._lines, self._timeline = evidence.lines, timeline
        self._loops = loops
        self._deaths = {report.line: report for report in evidence.exits if report.failed}

    def __call__(self, candidate: Candidate) -> bool:
        line = self._lines[candidate.line]
        if candidate.type is _T.LOSS_DIVERGENCE:
            return self._calmed(candidate)
        if candidate.line in self._deaths:
            return self._lived_on(self._deaths[candidate.line])
        if self._died_of(candidate):
            return False
        if candidate.last_words:
            return False
        if candidate.type in _DEATHS:
            return self._timeline.went_on(line, _BUFFERED)
        return self._turned_on(line) or self._went_on(candidate)

    def _turned_on(self, line: Line) -> bool:
        """Whether its process made more turns of its loop, as shapes count them or, of a rank, as its lines show."""
        if self._loops.went_on(line, _TURNS):
            return True
        if not line.names_process and self._loops.all_went_on(line, _TURNS):
            return True
        turns = self._turns.get((line.stream, line.rank), [])
        return len(turns) - bisect_right(turns, line.number) > _TURNS

    @cached_property
    def _turns(self) -> dict[tuple[Stream, int], list[int]]:
        """The kept lines of each rank that are turns of a measured loop."""
        turns = defaultdict[tuple[Stream, int], list[int]](list)
        for line in self._lines:
            if line.rank < 0:
                continue
            if self._loops.is_turn(line, measured=True):
                turns[line.stream, line.rank].append(line.number)
        return turns

    def _went_on(self, candidate: Candidate) -> bool:
        """Whether steps followed; one is enough after an error that the program logged."""
        line = self._lines[candidate.line]
        if not candidate.logged:
            return self._timeline.went_on(line)
        return self._killed_later(candidate) or self._timeline.went_on(line, 0)

    def _calmed(self, candidate: Candidate) -> bool:
        """Whether the loss came back after a line that only tells of it."""
        return candidate.role is Role.SYMPTOM and self._timeline.calmed(self._lines[candidate.line])

    def _killed_later(self, candidate: Candidate) -> bool:
        """Whether its process is reported killed from outside: no error that a program catches does that to it."""
        rank = self._lines[candidate.line].rank
        for report in self._deaths.values():
            if report.signal != signal.SIGKILL:
                continue
            if report.line <= candidate.line:
                continue
            if rank < 0:
                return True
            if rank in report.ranks:
                return True
        return False

    def _died_of(self, candidate: Candidate) -> bool:
        """Whether the process that raised is reported dead soon after, and trained no more."""
        if candidate.logged:
            return False
        near = _REPORTED if candidate.raised else _LAST_WORDS
        for report in self._deaths.values():
            if not 0 <= report.line - candidate.line <= near:
                continue
            if self._is_of(report, candidate) and not self._lived_on(report):
                return True
        return False

    def _is_of(self, report: ExitReport, candidate: Candidate) -> bool:
        """Whether the process that is reported dead may be the one that printed the candidate."""
        line = self._lines[candidate.line]
        is_of_node = report.node == line.node != ""
        if not (is_of_node or candidate.raised or candidate.last_words):
            return False
        if line.rank < 0:
            return True
        return not report.ranks or line.rank in report.ranks

    def _lived_on(self, report: ExitReport) -> bool:
        """Whether the ranks that are reported dead trained on: they were started again."""
        steps = 0
        if not report.ranks:
            steps = _BUFFERED
        return self._timeline.lived_on(self._lines[report.line], report.ranks, steps)
