"""The part of the log that a diagnosis refers to: cited lines with the kept lines around them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter

from diagnoser.model import Diagnosis, EvidenceLine, Line, RootCause, Stream

AROUND = 5
AROUND_SYMPTOM = 1
SYMPTOMS_SHOWN = 8


class LineRole(StrEnum):
    """Role of a line in the verdict; the first that applies."""

    ROOT = "root"
    EVIDENCE = "evidence"
    SYMPTOM = "symptom"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class ExcerptRow:
    """One line of the excerpt. gap: lines between the row before and this one that are not shown. line_id: its name in
    the log of the attempt, "" where that does not hold it."""

    number: int
    text: str
    role: LineRole = LineRole.CONTEXT
    note: str = ""
    rank: int = -1
    gap: int = 0
    line_id: str = ""


@dataclass(frozen=True, slots=True)
class Excerpt:
    stream: Stream
    rows: tuple[ExcerptRow, ...]

    @property
    def is_central(self) -> bool:
        """Whether it holds more than symptoms and what stands around them."""
        return any(row.role in (LineRole.ROOT, LineRole.EVIDENCE) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Citation:
    """A line that a verdict refers to, by its source: a verdict does not name the stream."""

    source: str
    row: ExcerptRow


def excerpts(verdict: Diagnosis, kept: Sequence[Line] = ()) -> list[Excerpt]:
    """One excerpt a stream: every cited line and the first symptoms, with the kept lines around them."""
    by_stream: dict[Stream, list[Line]] = {}
    for line in sorted(kept, key=lambda line: line.number):
        by_stream.setdefault(line.stream, []).append(line)
    streams: dict[Stream, dict[int, ExcerptRow]] = {}
    for cite in citations(verdict):
        if cite.row.number <= 0:
            continue  # dumps have no lines
        stream = _stream_of(cite, by_stream)
        rows = streams.setdefault(stream, {})
        row = rows.get(cite.row.number)
        if row is None or row.role is LineRole.CONTEXT:
            rows[cite.row.number] = cite.row
        for line in _near(by_stream.get(stream, []), cite.row):
            rows.setdefault(line.number, ExcerptRow(line.number, line.text, rank=line.rank))
    return [Excerpt(stream, tuple(_finished(streams[stream].values()))) for stream in streams]


def citations(verdict: Diagnosis) -> Iterator[Citation]:
    """Cited lines, those that matter most first."""
    root = verdict.root_cause
    if root is not None:
        why = _why(root, verdict.evidence)
        yield Citation(root.source, ExcerptRow(root.line, root.text, LineRole.ROOT, why, _number(root.rank)))
    for item in verdict.evidence:
        yield Citation(item.source, ExcerptRow(item.line, item.text, LineRole.EVIDENCE, item.why, _number(item.rank)))
    for symptom in verdict.symptoms[:SYMPTOMS_SHOWN]:
        yield Citation(symptom.source, ExcerptRow(symptom.line, symptom.text, LineRole.SYMPTOM, symptom.type))


def _why(root: RootCause, evidence: Iterable[EvidenceLine]) -> str:
    """What the evidence says of the root line, "" where that line is not among it."""
    for item in evidence:
        if (item.source, item.line) == (root.source, root.line):
            return item.why
    return ""


def _number(rank: int | None) -> int:
    """-1 where it is not known, as rows have it."""
    return -1 if rank is None else rank


def _stream_of(cite: Citation, kept: dict[Stream, list[Line]]) -> Stream:
    """The stream of a cited line: several nodes may each have a ``stdout`` with that line number."""
    same_number: list[Stream] = []
    for stream, lines in kept.items():
        if stream.source != cite.source:
            continue
        for line in lines:
            if line.number != cite.row.number:
                continue
            if line.text == cite.row.text:
                return stream
            same_number.append(stream)
    return next(iter(same_number), Stream(cite.source))


def _near(lines: Sequence[Line], cited: ExcerptRow) -> list[Line]:
    """Kept lines before and after the cited one, without those too far from it to be context."""
    around = AROUND_SYMPTOM if cited.role is LineRole.SYMPTOM else AROUND
    before = bisect_left(lines, cited.number, key=attrgetter("number"))
    after = bisect_right(lines, cited.number, key=attrgetter("number"))
    near = [*lines[max(0, before - around) : before], *lines[after : after + around]]
    return [line for line in near if abs(line.number - cited.number) <= around * 4]


def _finished(rows: Iterable[ExcerptRow]) -> Iterator[ExcerptRow]:
    """In order, with the gaps counted; in a run of symptoms of one type only the first one names it."""
    previous = ExcerptRow(0, "")
    for row in sorted(rows, key=lambda row: row.number):
        repeated = row.role is previous.role is LineRole.SYMPTOM and row.note == previous.note
        yield replace(row, gap=row.number - previous.number - 1, note="" if repeated else row.note)
        previous = row
