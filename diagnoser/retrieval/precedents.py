"""Precedents: failures that a person judged, for later ones of the same job family about which the rules say the same.

A correction holds from the next failure on, within bounds that its author cannot choose: the same tenant, the same
family, the same line (and frames) that the rules take for the cause, and no complaint that the judged failure had not.
Pure.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model.diagnosis import LIKELY_LINE, Diagnosis, RootCause
from diagnoser.model.evidence import Evidence, Line, Mark, Traceback
from diagnoser.model.feedback import ConfirmedFailure, Lesson, Signature
from diagnoser.model.jobs import AttemptKey
from diagnoser.model.lines import Stream
from diagnoser.model.taxonomy import FailureType, Outcome
from diagnoser.retrieval import hashing, signature

_CHARS = 600
_TELLING = 2
"""Words of its own that the root needs; a family's failures are few, and their other complaints are compared, too."""
_COMPLAINTS = 2_000
"""Shapes of complaints beyond which a failure teaches nothing: nobody could say that a later one is the same."""


class Precedents:
    """The judged failures, by tenant and family."""

    def __init__(self) -> None:
        self._by_family: dict[tuple[str, str], dict[str, ConfirmedFailure]] = {}
        self._families: dict[str, tuple[str, str]] = {}

    def put(self, judged: ConfirmedFailure) -> None:
        """Add, or replace what was said about the same diagnosis before; nothing where it teaches nothing."""
        self.drop(judged.diagnosis)
        if judged.lesson is None:
            return
        key = judged.tenant, judged.lesson.family
        self._by_family.setdefault(key, {})[judged.diagnosis] = judged
        self._families[judged.diagnosis] = key

    def drop(self, diagnosis: str) -> None:
        key = self._families.pop(diagnosis, None)
        if key is not None:
            del self._by_family[key][diagnosis]

    def lesson(self, diagnosis: str) -> Lesson | None:
        """What was taught with the judgement on a diagnosis."""
        key = self._families.get(diagnosis)
        return self._by_family[key][diagnosis].lesson if key else None

    def of_family(self, tenant: str, family: str) -> list[ConfirmedFailure]:
        """The newest judgement first."""
        judged = self._by_family.get((tenant, family), {}).values()
        return sorted(judged, key=lambda entry: (-entry.changed, entry.diagnosis))


def about(judged: Sequence[ConfirmedFailure], line: str) -> list[ConfirmedFailure]:
    """Those about a line of this shape: the rules took it for the cause, or a person named it."""
    return [entry for entry in judged if entry.lesson and line in (entry.lesson.root, entry.lesson.named)]


class LineShapes:
    """Lines of one log without what differs from run to run. A line that ends in a colon goes on in the next one, which
    counts where it was kept and is of who printed the first."""

    def __init__(self, evidence: Evidence) -> None:
        self._names = signature.node_names(evidence)
        self._next: dict[tuple[Stream, int], Line] = {(line.stream, line.number - 1): line for line in evidence.lines}

    def of(self, line: Line, *, places: bool = False) -> str:
        """ "" where the line announces another one that the log does not show. places: with its paths."""
        text = line.body[:_CHARS]
        if text.rstrip().endswith(":"):
            follows = self._next.get((line.stream, line.number))
            if follows is None or follows.speaker != line.speaker or not follows.body.strip():
                return ""
            text = f"{text} {follows.body[:_CHARS]}"
        return hashing.normalised(text, self._names, places=places)


def lesson_of(evidence: Evidence, root: Line | None, family: str, named: Line | None = None) -> Lesson | None:
    """What a failure teaches; None where its root is no line of the job, or says no more than any failure does.

    root: the line that the rules take for the cause. named: the one that a person named.
    """
    if root is None:
        return None
    if not root.stream.from_job:
        return None
    shapes, trace = LineShapes(evidence), signature.trace_of(evidence, root)
    frames = signature.frame_names(trace)
    line = shapes.of(root)
    named_line = shapes.of(named) if named else ""
    complaints = _complaints(evidence, shapes)
    if not line:
        return None
    if len(complaints) > _COMPLAINTS:
        return None
    if not signature.is_telling(Signature(" ".join((line, named_line, *frames))), _TELLING):
        return None
    return Lesson(family, line, frames, _exact(root, trace, shapes), named_line, complaints)


def find_line(evidence: Evidence, wanted: str) -> Line | None:
    shapes = LineShapes(evidence)
    for line in evidence.job_lines:
        if shapes.of(line) == wanted:
            return line
    return None


def rules_root(evidence: Evidence, diagnosis: Diagnosis) -> Line | None:
    """The line that the rules take for the cause, also where a model decided."""
    use = diagnosis.model
    if use is None or use.before is None or not diagnosis.decided_by.startswith("llm:"):
        return signature.root_line(evidence, diagnosis.root_cause)
    for line in evidence.job_lines:
        if line.number == use.before.line:
            return line
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """The precedent of a failure. root: the line here that is like the one which the person named; None where they
    named none."""

    judged: ConfirmedFailure
    root: RootCause | None = None


def newest(judged: Sequence[ConfirmedFailure], here: Lesson, attempt: AttemptKey, evidence: Evidence) -> Found | None:
    """The newest judgement of the same failure. judged: of failures with the root line of the one here."""
    for entry in judged:
        if entry.attempt == attempt:
            continue
        if not _is_same(entry, here):
            continue
        wanted = entry.lesson.named if entry.lesson else ""
        if not wanted:
            return Found(entry)
        if line := find_line(evidence, wanted):
            return Found(entry, as_root(evidence, line))
    return None


def _is_same(judged: ConfirmedFailure, here: Lesson) -> bool:
    """Whether a judged failure is the one here, in all that both show of the cause."""
    lesson = judged.lesson
    if lesson is None:
        return False
    if (lesson.root, lesson.frames) != (here.root, here.frames):
        return False
    if judged.type is not FailureType.COMPLETED:
        return here.complaints <= lesson.complaints
    if lesson.exact != here.exact:
        return False
    return here.complaints <= lesson.complaints


def contradicted(judged: Sequence[ConfirmedFailure]) -> ConfirmedFailure | None:
    """The newest judgement that says of the line that it was a failure; None where all say that it was none."""
    for entry in judged:
        if entry.type is not FailureType.COMPLETED:
            return entry
    return None


def lines_of(evidence: Evidence, here: Lesson) -> set[int]:
    """Indices of the lines that read exactly as the root here, with their tracebacks and the causes of these."""
    shapes, traces = LineShapes(evidence), {trace.raised: trace for trace in evidence.tracebacks}
    indices = set[int]()
    for index, line in enumerate(evidence.lines):
        if not line.stream.from_job:
            continue
        if shapes.of(line) != here.root:
            continue
        trace = traces.get(index)
        if _exact(line, trace, shapes) != here.exact:
            continue
        indices.add(index)
        while trace is not None:
            indices.update(trace.lines)
            trace = evidence.tracebacks[trace.cause] if trace.cause >= 0 else None
    return indices


def ended_well(evidence: Evidence, indices: set[int], remaining: Diagnosis) -> bool:
    """Whether a run without these lines shows no failure: it ended by itself, or trained on after the last of them.

    remaining: the verdict without them.
    """
    if remaining.outcome is Outcome.COMPLETED:
        return remaining.root_cause is None
    if remaining.decided_by != LIKELY_LINE and (remaining.outcome, remaining.root_cause) != (Outcome.UNKNOWN, None):
        return False
    timeline = ProgressTimeline(evidence)
    return all(timeline.went_on(evidence.lines[index], 0) for index in indices)


def as_root(evidence: Evidence, line: Line) -> RootCause:
    node = line.node or evidence.rank_nodes.get(line.rank) or None
    stream = line.stream
    return RootCause(line.number, line.text, line.known_rank, node, source=stream.source, provenance=stream.provenance)


def _complaints(evidence: Evidence, shapes: LineShapes) -> frozenset[str]:
    """Digests of the shapes of all lines of the job that complain."""
    digests = set[str]()
    for line in evidence.job_lines:
        if line.mark >= Mark.SEVERITY:
            digests.add(hashlib.sha256(shapes.of(line).encode("utf-8", "replace")).hexdigest()[:16])
    return frozenset(digests)


def _exact(line: Line, trace: Traceback | None, shapes: LineShapes) -> str:
    """The line and its frames with their paths."""
    parts = [shapes.of(line, places=True)]
    if trace is not None:
        parts += (f"{path}:{function}" for path, function in signature.innermost_frames(trace))
    return "\n".join(parts)
