"""The digest: what a merged delta shows, a pure function of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from diagnoser.compress import progress, templates, times, tracebacks
from diagnoser.compress.delta import Delta, Place, Row, Stat
from diagnoser.compress.lines import body_of
from diagnoser.compress.render import render
from diagnoser.compress.shapes import Kind
from diagnoser.compress.voices import Ranks
from diagnoser.model import Compression, Evidence, LeftOut, Line, Mark, Progress, Stream, Template

HEAD, TAIL = 5, 15
"""Lines of a stream that are shown whatever they say."""
NOVEL = 60
"""A shape seen once or twice, whose last line is among so many last lines of its stream, is news."""


@dataclass
class Digest:
    """The readable side of a delta."""

    delta: Delta
    _marks: dict[Place, Mark] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._marks = _choose(self.delta)

    @cached_property
    def ranks(self) -> Ranks:
        return Ranks(self.delta)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Kept lines in order of time, then stream, then number."""
        return tuple(line for line, _ in self._spoken)

    @cached_property
    def _spoken(self) -> list[tuple[Line, str]]:
        rows = [self.delta.rows[place] for place in sorted(self._marks)]
        found = [(self._line(row), row.voice) for row in rows]
        stamped = _with_times(found, rows)
        return sorted(stamped, key=lambda pair: (pair[0].time, pair[0].stream, pair[0].number))

    def _line(self, row: Row) -> Line:
        prefix, body = body_of(row.text.encode())
        return Line(
            row.stream,
            row.number,
            row.text,
            body.decode("utf-8", "replace"),
            self.ranks.of(row.stream, row.voice, prefix.rank),
            prefix.node or row.stream.node,
            row.time,
            self._marks[row.place],
            prefix.task,
        )

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """Shapes grouped by Drain3, most frequent first."""
        stats = sorted(self.delta.shapes.values(), key=lambda stat: (stat.first, stat.first_text))
        bodies = [body_of(stat.first_text.encode())[1].decode("utf-8", "replace") for stat in stats]
        severities = [_severity(stat.kind) for stat in stats]
        groups = templates.group(list(zip(bodies, severities, strict=True)))
        found = [self._template(group.text, [stats[index] for index in group.members]) for group in groups]
        return tuple(sorted(found, key=lambda one: (-one.count, one.first[1], one.first[0])))

    def _template(self, text: str, stats: list[Stat]) -> Template:
        first, last = min(stats, key=lambda stat: stat.first), max(stats, key=lambda stat: stat.last)
        samples = list(dict.fromkeys([first.first_text, *(stat.last_text for stat in stats[:2]), last.last_text]))
        ranks = frozenset().union(*(self.ranks.spread(stat.first[1], stat.ranks) for stat in stats))
        return Template(
            text,
            sum(stat.count for stat in stats),
            (first.first[1], first.first[0]),
            (last.last[1], last.last[0]),
            ranks,
            tuple(samples[:3]),
            stats[0].filtered,
        )

    @cached_property
    def progress(self) -> tuple[Progress, ...]:
        points = sorted(self.delta.points.values(), key=lambda row: (row.number, row.stream))
        return tuple(
            Progress(
                row.number,
                self.ranks.of(row.stream, row.voice, row.rank),
                row.time,
                row.point.step,
                row.point.loss,
                row.point.grad_norm,
                row.point.step_seconds,
                row.point.tokens_per_second,
                row.point.checkpoint,
                progress.DIALECTS[row.point.dialect].stage,
            )
            for row in points
        )

    @cached_property
    def left_out(self) -> LeftOut:
        missing = self.delta.lines - len(self._marks)
        why = ["routine lines are shown as templates with counts"] if missing else []
        if self.delta.crowded:
            uncounted = self.delta.lines - sum(stat.count for stat in self.delta.shapes.values())
            why.append(f"high cardinality: {uncounted} lines belong to shapes beyond the bound")
        if self.delta.cut_lines:
            why.append(f"{self.delta.cut_bytes} bytes were cut from the middle of {self.delta.cut_lines} long lines")
        return LeftOut(missing, "; ".join(why))

    @cached_property
    def compression(self) -> Compression:
        """bytes_out: size of the whole view, templates and kept lines."""
        size = sum(len(line.text.encode()) + 1 for line in self.lines)
        size += sum(len(one.text.encode()) + 1 for one in self.templates)
        return Compression(self.delta.lines, self.delta.bytes, len(self.lines), size)

    def evidence(self) -> Evidence:
        """All that later stages see."""
        ranks = {line.rank for line in self.lines if line.rank >= 0}
        for template in self.templates:
            ranks |= template.ranks
        nodes = {line.rank: line.node for line in reversed(self.lines) if line.rank >= 0 and line.node}
        return Evidence(
            self.lines,
            tracebacks.join(self.lines, [voice for _, voice in self._spoken]),
            self.progress,
            self.templates,
            frozenset(ranks),
            dict(sorted(nodes.items())),
            self.left_out,
            self.compression,
        )

    def render(self, budget_tokens: int) -> str:
        """The numbered view for a model or a person, within about ``budget_tokens``."""
        return render(self.lines, self.templates, self.progress, self.left_out, self.compression, budget_tokens)


def digest(delta: Delta) -> Digest:
    return Digest(delta)


def _severity(kind: Kind) -> int:
    if kind & (Kind.ANCHOR | Kind.EXCEPTION | Kind.FRAME):
        return 2
    return 1 if kind & (Kind.ERROR | Kind.WARNING) else 0


def _mark(kind: Kind) -> Mark:
    if kind & Kind.ANCHOR:
        return Mark.ANCHOR
    if kind & (Kind.FRAME | Kind.EXCEPTION):
        return Mark.TRACEBACK
    return Mark.SEVERITY


def _choose(delta: Delta) -> dict[Place, Mark]:
    """The places that are shown, each with the highest reason."""
    marks: dict[Place, Mark] = {}
    if delta.lines <= delta.limits.small:
        marks.update(dict.fromkeys(delta.rows, Mark.CONTEXT))
    essential = set(delta.essential())
    marks.update(dict.fromkeys(delta.context(essential), Mark.CONTEXT))
    for places, mark in ((_ends(delta), Mark.EDGE), (_news(delta), Mark.NOVEL), (_tails(delta), Mark.EDGE)):
        marks.update(dict.fromkeys((place for place in places if place in delta.rows), mark))
    marks.update({place: _mark(delta.rows[place].kind) for place in essential})
    return marks


def _ends(delta: Delta) -> Iterable[Place]:
    for stream, ranges in delta.ranges.items():
        yield from ((number, stream) for number in range(ranges[0][0], ranges[0][0] + HEAD))
        yield from ((number, stream) for number in range(ranges[-1][1] - TAIL + 1, ranges[-1][1] + 1))


def _news(delta: Delta) -> Iterable[Place]:
    ends = {stream: ranges[-1][1] for stream, ranges in delta.ranges.items()}
    for stat in delta.shapes.values():
        number, stream = stat.last
        if stat.count <= 2 and number > ends.get(stream, number) - NOVEL:
            yield stat.last


def _tails(delta: Delta) -> Iterable[Place]:
    """The last lines of voices, of each shape of ending those of the first few voices to fall silent."""
    last: dict[tuple[Stream, str], Row] = {}
    for place in sorted(delta.rows):
        row = delta.rows[place]
        if row.voice:
            last[row.stream, row.voice] = row
    endings: dict[bytes, list[Place]] = {}
    for row in sorted(last.values(), key=lambda row: row.place):
        body = body_of(row.text.encode())[1]
        endings.setdefault(templates.mask(body.decode("utf-8", "replace")).encode(), []).append(row.place)
    for places in endings.values():
        yield from places[:2]


def _with_times(found: list[tuple[Line, str]], rows: list[Row]) -> list[tuple[Line, str]]:
    """Lines with times: their own, else that of the line before in the stream, else of arrival."""
    received = min((row.received for row in rows if row.received), default=0.0)
    year = times.year_of([line.text for line, _ in found], received)
    last: dict[Stream, float] = {}
    stamped = []
    for (line, voice), row in zip(found, rows, strict=True):
        time = line.time or times.read_time(line.body, year) or last.get(line.stream, 0.0) or row.received
        time = max(time, last.get(line.stream, 0.0))
        last[line.stream] = time
        stamped.append((replace(line, time=time), voice))
    return stamped
