"""Where attempts begin and end: launches in one log, runs that say they are complete, and ends that were ordered."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import attrgetter

from diagnoser.model import Evidence, Line
from diagnoser.model.order import is_after
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import SAME_STORY, CandidateSet, RejectionReason
from diagnoser.rules.left_behind import Processes
from diagnoser.rules.logged_errors import spoke_on
from diagnoser.rules.process_ends import left_program
from diagnoser.rules.schema import Role, Specificity

_LEAVING = frozenset({FailureType.CONNECTION_ERROR, FailureType.NETWORK_ERROR, FailureType.NCCL_REMOTE_ERROR})
"""What processes print when their peers have exited already."""
_COMPATIBLE_WITH_SUCCESS = frozenset({FailureType.COMPLETED, FailureType.LOSS_DIVERGENCE})
_WITH_CAUSE = (Role.ROOT, Role.SYMPTOM, Role.WRAPPER)
_IS_END = attrgetter("is_end")
_IS_FAILING, _IS_COMPLETED = attrgetter("is_failing"), attrgetter("is_completed")


@dataclass(frozen=True)
class RunTimeline:
    """What the log shows of the order of a job's launches and steps.

    recovered: whether training went on after a candidate's line.
    begins: lines at which later launches begin; an end does not explain what comes after the next launch.
    diverged: the loss series diverged and never came back.
    completed: what a witness outside the log says of the end; None without any.
    ended: the processes that say that they ended well.
    """

    evidence: Evidence
    recovered: Callable[[Candidate], bool]
    begins: Sequence[int] = ()
    diverged: bool = False
    completed: bool | None = None
    ended: Processes = field(default_factory=Processes)

    @cached_property
    def has_others(self) -> bool:
        """Whether the log shows that several processes print it."""
        if max(self.ended.found.processes.values(), default=0) > 1:
            return True
        return any(line.names_process for line in self.evidence.job_lines)

    def survived(self, candidate: Candidate) -> bool:
        """Whether the candidate is a failure after which training went on."""
        if candidate.names_no_failure:
            return False
        if self.left_behind(candidate):
            return False
        return self.was_handled(candidate) or self.recovered(candidate)

    def was_handled(self, candidate: Candidate) -> bool:
        """Whether an exception stayed within its program, and the very process that raised it took another turn of
        its loop."""
        line = self.evidence.lines[candidate.line]
        if candidate.trace < 0:
            return False
        if candidate.last_words:
            return False
        if left_program(self.evidence, candidate):
            return False
        return line.names_process and self.ended.found.went_on(line, 0)

    def left_behind(self, candidate: Candidate) -> bool:
        """Whether the process of the candidate states no end after it, though its peers state theirs."""
        return self.ended.left_behind(candidate.line)

    def outlived(self, candidate: Candidate) -> bool:
        """Whether the process of the candidate went on to its end. What ends a program, or reports the end of one,
        without naming it, is outlived by the others only."""
        line = self.evidence.lines[candidate.line]
        if candidate.last_words:
            return False
        if line.names_process:
            return self.ended.outlived(candidate.line, line) or _is_caught(candidate, self.evidence)
        if candidate.exit:
            return False
        if candidate.trace >= 0 and self.evidence.tracebacks[candidate.trace].left_program:
            return False
        return self.ended.outlived(candidate.line, line)


def resolve_end(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """A run that completed, or was ordered to stop, explains what follows; a completed run also what precedes.

    A job that hangs after a failure is stopped by somebody: then the failure before the end is the cause.
    """
    _resolve_known(candidate_set, run)
    _resolve_earlier_ends(candidate_set, run.begins)
    _resolve_completed(candidate_set, run)
    _resolve_ordered(candidate_set, run)


def _resolve_known(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """An exit status outweighs all words: after a bad one none of them ended the run well, after a good one nothing
    failed it but a loss that diverged."""
    if run.completed is None:
        return
    if run.completed:
        candidate_set.dismiss(RejectionReason.FINISHED, lambda c: c.type not in _COMPATIBLE_WITH_SUCCESS)
    else:
        candidate_set.dismiss(RejectionReason.DENIED, _says_completed)


def _resolve_earlier_ends(candidate_set: CandidateSet, begins: Sequence[int]) -> None:
    """When another run was launched after an end in the same log, the end of the later run counts.

    A job that was preempted or cancelled and then completed in the same log keeps the former as its outcome.
    """
    ends, failing = candidate_set.where(_IS_END), candidate_set.where(_IS_FAILING)
    for launch, begin in reversed(list(pairwise([0, *begins]))):
        before = {c.type for c in ends if launch <= c.line < begin}
        after = {c.type for c in failing if c.line >= begin}
        if not before:
            continue
        if after - ({FailureType.COMPLETED} - before):
            candidate_set.dismiss_before(begin)
            return


def _resolve_completed(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """Believe the last clean end, unless a reason speaks against it."""
    completed = candidate_set.where(_IS_COMPLETED)
    if not completed:
        return
    end = _CleanEnd(completed[-1], run, run.evidence.traceback_lines, again=run.recovered(completed[-1]))
    if end.is_of_some or candidate_set.has(end.is_doubted_by):
        candidate_set.dismiss(RejectionReason.VAGUE_END, _says_completed)
    elif run.diverged:
        candidate_set.dismiss(RejectionReason.LATER, _says_completed)
    elif candidate_set.has(end.is_contradicted_by):
        candidate_set.dismiss(RejectionReason.LATER, _says_completed)
        candidate_set.dismiss_before(end.line)
    else:
        candidate_set.dismiss(RejectionReason.FINISHED, lambda c: not c.is_end)


def _says_completed(candidate: Candidate) -> bool:
    return candidate.type is FailureType.COMPLETED


@dataclass(frozen=True, slots=True)
class _CleanEnd:
    """The last line that says that the run completed.

    traced: indices of the lines of tracebacks.
    again: training went on after the line: another run.
    """

    candidate: Candidate
    run: RunTimeline
    traced: Collection[int]
    again: bool

    @property
    def line(self) -> int:
        return self.candidate.line

    @property
    def is_of_some(self) -> bool:
        """Whether a process that trained stopped before the others ended. A rule that knows whose words these are knows
        that they are of the whole run."""
        if self.candidate.is_by_rule and self.candidate.specificity >= Specificity.MESSAGE:
            return False
        return self.run.ended.unfinished(self.run.evidence.lines[self.line].stream)

    def is_doubted_by(self, other: Candidate) -> bool:
        """Whether a failure shows that the end says nothing of the run, or not of all of it."""
        return self._is_belied_by(other) or self._is_outlived_by(other)

    def _is_belied_by(self, other: Candidate) -> bool:
        """Whether a failure before the end shows that its words are those of a script that prints them in any case."""
        if not self._is_uncaught_before(other) or self.candidate.specificity is Specificity.CODE:
            return False
        is_near = self.line - other.line <= SAME_STORY
        if self.candidate.is_by_rule:
            return all((self.candidate.is_vague, is_near, other.is_root))
        if other.exit:
            return True
        if other.role not in _WITH_CAUSE:
            return False
        if self.candidate.is_vague:
            return True
        return is_near and other.raised

    def _is_uncaught_before(self, other: Candidate) -> bool:
        """Whether a failure that nobody caught, and that its own process did not outlive, stands before the end."""
        if other.line >= self.line:
            return False
        if other.logged:
            return False
        if other.names_no_failure:
            return False
        return not self.run.outlived(other)

    def _is_outlived_by(self, other: Candidate) -> bool:
        """Whether another rank's own stream ends within an exception: that the end speaks well of the rest proves
        nothing of this one."""
        if not other.is_fault:
            return False
        if self.run.left_behind(other):
            return True
        if other.logged:
            return False
        line, last = self.run.evidence.lines[other.line], self.run.evidence.lines[self.line]
        if other.last_words and line.is_of_another(last):
            return True
        if not (other.raised or other.last_words):
            return False
        if not _is_another_rank(line, last):
            return False
        return not spoke_on(self.run.evidence, other.line, self.traced)

    def is_contradicted_by(self, other: Candidate) -> bool:
        """Whether the candidate shows that the job failed after all, or that another one followed in the same log."""
        if other.line < self.line:
            return False
        if not (other.is_failing or other.exit):
            return False
        if self.again:
            return True
        if other is self.candidate:
            return False
        if other.is_ordered_end:
            return False  # its work was done
        if _is_of_leaving_peer(other):
            return False
        if not other.logged:
            return not self._is_verdict_on(other)
        if spoke_on(self.run.evidence, other.line, self.traced):
            return False  # the program caught it
        return not self._is_verdict_on(other)

    def _is_verdict_on(self, other: Candidate) -> bool:
        """Whether the end is the benchmark's own verdict on a step, and the candidate is about tasks of that step: the
        end of one, its cancellation, or a line that one printed."""
        if not self.candidate.is_by_rule:
            return False
        if "all" not in self.candidate.explains:
            return False
        if other.exit:
            return True
        if (other.type, other.role) == (FailureType.CANCELLED, Role.SYMPTOM):
            return True
        lines = self.run.evidence.lines
        return min(lines[other.line].task, lines[self.line].task) >= 0


def _is_another_rank(line: Line, last: Line) -> bool:
    """Whether the lines are of two ranks."""
    return line.rank != last.rank and min(line.rank, last.rank) >= 0


def _is_of_leaving_peer(candidate: Candidate) -> bool:
    """Whether it is an error of a peer when the first ones exit."""
    return tells_of_lost_peer(candidate) and not candidate.raised


def tells_of_lost_peer(candidate: Candidate) -> bool:
    """Whether it is what processes print when their peers have exited already."""
    if candidate.role is not Role.SYMPTOM:
        return False
    return candidate.type in _LEAVING


def _resolve_ordered(candidate_set: CandidateSet, run: RunTimeline) -> None:
    """Believe that the run was ordered to stop, unless a failure led to the order or the run went on."""
    ordered = candidate_set.where(lambda c: c.is_end and not c.is_completed)
    if not ordered:
        return
    first, last = ordered[0], ordered[-1]
    if candidate_set.has(lambda c: _led_to(c, first, run.evidence)):
        candidate_set.dismiss(RejectionReason.LATER, ordered.__contains__)
    elif run.recovered(last) and candidate_set.has(lambda c: _comes_after(c, last)):
        candidate_set.dismiss_before(last.line + 1)
    else:
        candidate_set.dismiss(RejectionReason.EXPLAINED, lambda c: c.line > first.line)


def _comes_after(candidate: Candidate, end: Candidate) -> bool:
    """Whether what follows, once training has gone on, is the outcome: any fault, and a clean end unless the scheduler
    itself took the nodes away, which is what its attempt ended of."""
    if candidate.line <= end.line:
        return False
    if candidate.is_fault:
        return True
    if not candidate.is_end:
        return False
    return end.specificity < Specificity.CODE


def _is_caught(candidate: Candidate, evidence: Evidence) -> bool:
    """Whether an exception stayed within its program, and its process, which the log tells from others, spoke on."""
    if candidate.trace < 0 or left_program(evidence, candidate):
        return False
    if not evidence.lines[candidate.line].names_process:
        return False
    return spoke_on(evidence, candidate.line, evidence.traceback_lines)


def _led_to(candidate: Candidate, end: Candidate, evidence: Evidence) -> bool:
    """Whether a failure that may have come before an ordered end is the reason for it."""
    if candidate.names_no_failure:
        return False
    if not candidate.is_failing:
        return False
    if (candidate.role, end.type) == (Role.SYMPTOM, FailureType.PREEMPTED):
        return False
    if end.type is FailureType.PREEMPTED and _is_caught(candidate, evidence):
        return False
    return is_after(evidence.lines[candidate.line], evidence.lines[end.line]).after is not True
