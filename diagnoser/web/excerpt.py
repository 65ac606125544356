"""The part of the log that a diagnosis talks about: cited lines with the kept lines around them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model import Diagnosis, Line, Stream

AROUND = 5


class Role(StrEnum):
    """What a line is to the verdict; the first one that holds."""

    ROOT = "root"
    EVIDENCE = "evidence"
    SYMPTOM = "symptom"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the excerpt. gap: lines between the row before and this one that are not shown."""

    number: int
    text: str
    role: Role = Role.CONTEXT
    note: str = ""
    rank: int = -1
    gap: int = 0


@dataclass(frozen=True, slots=True)
class Excerpt:
    stream: Stream
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class _Cite:
    source: str
    row: Row


def excerpts(verdict: Diagnosis, kept: Sequence[Line] = (), around: int = AROUND) -> list[Excerpt]:
    """One excerpt a stream: every cited line, with up to ``around`` kept lines before and after it."""
    streams: dict[Stream, dict[int, Row]] = {}
    by_stream: dict[Stream, list[Line]] = {}
    for line in kept:
        by_stream.setdefault(line.stream, []).append(line)
    for cite in _cited(verdict):
        stream = _stream_of(cite, by_stream)
        rows = streams.setdefault(stream, {})
        known = rows.get(cite.row.number)
        if known is None or known.role is Role.CONTEXT:
            rows[cite.row.number] = cite.row
        for line in _near(by_stream.get(stream, []), cite.row.number, around):
            rows.setdefault(line.number, Row(line.number, line.text, rank=line.rank))
    return [Excerpt(stream, tuple(_with_gaps(streams[stream].values()))) for stream in streams]


def _cited(verdict: Diagnosis) -> Iterator[_Cite]:
    """Cited lines, those that matter most first."""
    root = verdict.root_cause
    if root is not None:
        why = next((one.why for one in verdict.evidence if (one.source, one.line) == (root.source, root.line)), "")
        rank = -1 if root.rank is None else root.rank
        yield _Cite(root.source, Row(root.line, root.text, Role.ROOT, why, rank))
    for one in verdict.evidence:
        rank = -1 if one.rank is None else one.rank
        yield _Cite(one.source, Row(one.line, one.text, Role.EVIDENCE, one.why, rank))
    for symptom in verdict.symptoms:
        yield _Cite(symptom.source, Row(symptom.line, symptom.text, Role.SYMPTOM, symptom.type))


def _stream_of(cite: _Cite, kept: dict[Stream, list[Line]]) -> Stream:
    """Which stream a cited line is of: several nodes may each have a ``stdout`` with such a number."""
    found = [
        (line.text == cite.row.text, stream)
        for stream, lines in kept.items()
        if stream.source == cite.source
        for line in lines
        if line.number == cite.row.number
    ]
    return max(found, default=(False, Stream(cite.source)), key=lambda pair: pair[0])[1]


def _near(lines: list[Line], number: int, around: int) -> list[Line]:
    lines = sorted(lines, key=lambda line: line.number)
    before = [line for line in lines if line.number < number][-around:]
    after = [line for line in lines if line.number > number][:around]
    return [line for line in before + after if abs(line.number - number) <= around * 4]


def _with_gaps(rows: Iterable[Row]) -> Iterator[Row]:
    last = 0
    for row in sorted(rows, key=lambda row: row.number):
        gap = row.number - last - 1
        yield Row(row.number, row.text, row.role, row.note, row.rank, gap)
        last = row.number
