"""The digest: what a merged delta shows, a pure function of it."""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, cached_property
from itertools import chain, count, product, starmap
from operator import attrgetter

from diagnoser.compress import loss_shifts, templates
from diagnoser.compress.delta import Delta, DeltaRow, LinePosition, PointRow, StreamDelta, TemplateStats
from diagnoser.compress.line_flags import IMPORTANT, STAGES, LineFlag, stage_bit
from diagnoser.compress.line_masking import blurred, masked
from diagnoser.compress.lines import body_of
from diagnoser.compress.printer_ranks import PrinterRanks, RankResolver
from diagnoser.compress.record_lines import (
    Continuations,
    LineReader,
    OpenedLine,
    Spoken,
    has_one_logger,
    learned_reader,
    message_of,
)
from diagnoser.compress.render import numbers, render
from diagnoser.compress.sampling import Chosen, series_of
from diagnoser.dialects import mentions, rank_tables
from diagnoser.model import (
    NO_DIFF,
    Cap,
    Compression,
    Diff,
    Evidence,
    LeftOut,
    Line,
    Mark,
    Phase,
    ProcessLines,
    Progress,
    Stage,
    Stream,
    Template,
)
from diagnoser.model.evidence import Placement, process_of, rank_nodes
from diagnoser.records import batches
from diagnoser.records.process_names import ProcessNames
from diagnoser.records.reader import fields_of
from diagnoser.records.sections import Sections, find_sections
from diagnoser.structure import progress, times, tracebacks

_SEVERE, _TROUBLE = int(LineFlag.ANCHOR | LineFlag.EXCEPTION | LineFlag.FRAME), int(LineFlag.ERROR | LineFlag.WARNING)
HEAD, TAIL = 5, 15
"""First and last lines of a stream that are always shown."""
NOVEL = 60
"""A shape seen once or twice is news if its last line is among this many last lines of its stream."""
ALIKE = 2
"""Most voices shown that ended with a line of the same shape."""
WHEREABOUTS = 64
"""Most lines of a stream that are shown because they say where it runs."""
MANY = 256
"""Streams up to which the ends of each are shown. A job of 10,000 ranks would show nothing but ends."""

MOST_POINTS, LEAST_POINTS = 100_000, 4
"""Points of the progress series that are read of an attempt, and of any stream."""


class Digest:
    """The readable side of a delta; each part is built on first use."""

    def __init__(self, delta: Delta) -> None:
        self.delta = delta
        self._ranks = RankResolver(delta)
        self._order = dict(zip(sorted(delta.shares), range(len(delta.shares)), strict=True))
        self._openers: dict[Stream, _Opener] = {}
        self._ways: dict[tuple[Stream | str, bool, bool], _Opener] = {}

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Kept lines in order of time, then stream, then number."""
        return tuple(each.line for each in self._spoken if each.line.part == 0)

    @cached_property
    def _spoken(self) -> list[Spoken]:
        """Lines with the voice that printed them; one for each text line of a record."""
        clock = times.LogClock(self._year)
        texts = chain.from_iterable(self._said(row, stream, mark, clock) for row, stream, mark in self._rows)
        spoken = _with_dated_heads(_named(Continuations().read(texts), self.process_names))
        return sorted(spoken, key=lambda each: (each.line.time, self._order[each.line.stream], each.line.number))

    @cached_property
    def _rows(self) -> list[tuple[DeltaRow, Stream, Mark]]:
        chosen, rows = _choose(self.delta), list[tuple[DeltaRow, Stream, Mark]]()
        for (number, stream), mark in chosen.items():
            rows.append((self.delta.shares[stream].rows[number], stream, mark))
        for stream, share in self.delta.shares.items():
            for row in _rises(share, self.delta.limits.rises):
                if (row.number, stream) not in chosen:
                    rows.append((row, stream, Mark.SAMPLE))
        return sorted(rows, key=lambda row: (row[0].number, self._order[row[1]]))

    @cached_property
    def _year(self) -> int:
        return times.year_of(
            (_text(row.text) for row, _, _ in self._rows), max((row.received for row, _, _ in self._rows), default=0.0)
        )

    def _said(self, row: DeltaRow, stream: Stream, mark: Mark, clock: times.LogClock) -> Iterator[Spoken]:
        """The text lines of a row."""
        text, first = _text(row.text), self._opened(row.text, row.number, stream)
        parts = count()
        for opened in (first, *first.more):
            record, prefix = opened.record, opened.prefix
            rank, node = self._speaker(opened, text, row.voice, stream)
            time, arrived = clock.time(stream, row.time or record.time, text, row.received)
            voice = "/".join(filter(None, (prefix.voice or row.voice, record.voice)))
            for body, part in zip(opened.texts, parts, strict=False):
                line = Line(
                    stream,
                    row.number,
                    text,
                    body,
                    rank,
                    node,
                    time,
                    mark,
                    prefix.task,
                    row.received,
                    arrived,
                    severity=record.severity,
                    part=part,
                    instance=opened.instance,
                    label=prefix.voice,
                )
                yield Spoken(line, voice, opened.carrier or row.voice, opened)

    def speaker(self, text: bytes, voice: str, stream: Stream, number: int = 0) -> tuple[int, str]:
        """Rank and node of who printed a line; -1 and "" where nothing tells."""
        return self._speaker(self._opened(text, number, stream), _text(text), voice, stream)

    def _speaker(self, opened: OpenedLine, text: str, voice: str, stream: Stream) -> tuple[int, str]:
        rank = self._ranks.of(stream, opened.prefix.voice or voice, opened.rank)
        if rank < 0:
            rank = self._printer_ranks.of(stream, opened)
        node = opened.prefix.node or stream.node or opened.record.host
        if opened.prefix.is_numbered or not _is_shared(stream):
            return rank, node
        return self.process_names.place(text, opened.texts[0], rank, node)

    @cached_property
    def process_names(self) -> ProcessNames:
        """The names of processes in the streams that are of no rank."""
        texts = list[str]()
        for stream, share in sorted(self.delta.shares.items()):
            if _is_shared(stream):
                texts += [_text(row.text) for row in share.rows.ordered() if not body_of(row.text)[0].is_numbered]
        return ProcessNames(texts)

    @cached_property
    def _printer_ranks(self) -> PrinterRanks:
        lines = list[tuple[Stream, OpenedLine]]()
        for stream, share in self.delta.shares.items():
            if stream.from_job and stream.rank < 0:
                for row in share.rows.ordered():
                    first = self._opened(row.text, row.number, stream)
                    lines += product((stream,), (first, *first.more))
        return PrinterRanks(lines)

    def _opened(self, text: bytes, number: int, stream: Stream) -> OpenedLine:
        """A line taken apart."""
        return self._opener(stream)[self._sections[stream].labelled(number, text)]

    def _opener(self, stream: Stream) -> "_Opener":
        """The way in which lines of a stream are taken apart. Thousands of ranks print the same lines, so that streams
        that are read in one way share what was read."""
        opener = self._openers.get(stream)
        if opener is None:
            way = "" if stream.rank >= 0 else stream, stream.from_job, self._is_logged(stream)
            if way not in self._ways:
                self._ways[way] = _Opener(self._reader(stream), stream)
            opener = self._openers[stream] = self._ways[way]
        return opener

    def _is_logged(self, stream: Stream) -> bool:
        return has_one_logger(_text(row.text) for row in self.delta.shares[stream].rows.ordered())

    def _reader(self, stream: Stream) -> LineReader:
        """A stream of one rank has no prefix to learn."""
        if stream.rank >= 0:
            return LineReader(is_logged=self._is_logged(stream))
        share, sections = self.delta.shares[stream], self._sections[stream]
        headings = set(sections.numbers)
        rows = [row for row in share.rows.ordered() if row.number not in headings]
        return learned_reader([_text(sections.labelled(row.number, row.text)) for row in rows])

    @cached_property
    def _sections(self) -> dict[Stream, Sections]:
        """The sections of each stream of the job, which a stream of one rank has none of."""
        counted = defaultdict[Stream, list[tuple[str, int]]](list)
        for stat in self.delta.shapes.values():
            counted[stat.first[1]].append((message_of(_text(stat.first_text)), stat.count))
        sections = dict.fromkeys(self.delta.shares, Sections())
        for stream, share in self.delta.shares.items():
            if stream.from_job and stream.rank < 0:
                lines = [(row.number, message_of(_text(row.text))) for row in share.rows.ordered()]
                sections[stream] = find_sections(lines, counted[stream])
        return sections

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """Shapes grouped by Drain3, most frequent first."""
        stats = sorted(
            self.delta.shapes.values(),
            key=lambda stat: (stat.first[0], self._order[stat.first[1]], stat.first_text),
        )
        entries = []
        for stat in stats:
            body = self._opened(stat.first_text, *stat.first).texts[0]
            entries.append((body, _severity(stat.kind)))
        groups = []
        for cluster in templates.group(entries, self.delta.limits.templates):
            groups.append(self._template(cluster.text, list(map(stats.__getitem__, cluster.members))))
        return tuple(sorted(groups, key=lambda group: (-group.count, group.first[1], group.first[0])))

    def _template(self, text: str, stats: list[TemplateStats]) -> Template:
        first, last = min(stats, key=lambda stat: stat.first), max(stats, key=lambda stat: stat.last)
        raw = dict.fromkeys([first.first_text, *(stat.last_text for stat in stats[:2]), last.last_text])
        ranks, count = set[int](), 0
        for stat in stats:
            ranks |= self._ranks.spread(stat.first[1], stat.ranks)
            count += stat.count
        processes = self._processes_of(stats)
        ranks.update(lines.process for lines in processes if isinstance(lines.process, int))
        return Template(
            text,
            count,
            (first.first[1], first.first[0]),
            (last.last[1], last.last[0]),
            frozenset(ranks),
            tuple(map(_text, list(raw)[:3])),
            stats[0].filtered,
            processes,
        )

    def _processes_of(self, stats: Iterable[TemplateStats]) -> tuple[ProcessLines, ...]:
        """The processes that print these shapes into one stream."""
        numbers: dict[int | str, list[int]] = {}
        for stat in stats:
            stream = stat.first[1]
            if stat.ranks or stream not in self._told_apart:
                continue
            edges = (stat.first[0], stat.first_text), (stat.last[0], stat.last_text)
            ends = [(number, self._process(text, number, stream)) for number, text in edges]
            kept = self._told_apart[stream].get(self._shape_of(stat.first_text, stat.first[0], stream), ())
            for number, process in (*ends, *kept):
                numbers.setdefault(process, []).append(number)
        numbers.pop(-1, None)
        return tuple(ProcessLines(process, tuple(sorted(set(lines)))) for process, lines in numbers.items())

    @cached_property
    def _told_apart(self) -> dict[Stream, dict[bytes, list[tuple[int, int | str]]]]:
        """The kept lines by their shapes, each with its process, of the streams into which several print, as learned
        prefixes, parallel shells, pods or records tell."""
        streams: dict[Stream, dict[bytes, list[tuple[int, int | str]]]] = {}
        for stream, share in self.delta.shares.items():
            if not stream.from_job or stream.rank >= 0:
                continue
            shapes: dict[bytes, list[tuple[int, int | str]]] = {}
            for row in share.rows.ordered():
                process = self._process(row.text, row.number, stream, row.voice)
                shapes.setdefault(self._shape_of(row.text, row.number, stream), []).append((row.number, process))
            processes = {process for lines in shapes.values() for _, process in lines}
            if len(processes - {-1}) > 1:
                streams[stream] = shapes
        return streams

    def _process(self, text: bytes, number: int, stream: Stream, voice: str = "") -> int | str:
        """Who printed a line, as of a ``Line``."""
        opened = self._opened(text, number, stream)
        rank, node = self._speaker(opened, _text(text), voice, stream)
        return process_of(rank, opened.instance, opened.prefix.voice, node)

    def _shape_of(self, text: bytes, number: int, stream: Stream) -> bytes:
        return masked(blurred(self._opened(text, number, stream).texts[0].encode()))

    @cached_property
    def progress(self) -> tuple[Progress, ...]:
        return tuple(point for _, point in self.placed_progress)

    @cached_property
    def placed_progress(self) -> list[tuple[Stream, Progress]]:
        """The points of the progress series, each with the stream that its line is of.

        Beyond ``MOST_POINTS`` whole series are read of the first streams, and of the others how they began and ended:
        ten thousand ranks make the same steps.
        """
        rows = list[tuple[PointRow, Stream]]()
        whole, most = MOST_POINTS // 2, max(LEAST_POINTS, MOST_POINTS // 2 // max(1, len(self.delta.shares)))
        is_large = sum(len(share.points) for share in self.delta.shares.values()) > MOST_POINTS
        for stream, share in sorted(self.delta.shares.items()):
            numbers = sorted(share.points)
            if is_large and len(rows) + len(numbers) > whole:
                numbers = sorted({*numbers[:1], *numbers[-most:]})
            rows += product(map(share.points.__getitem__, numbers), (stream,))
        return self._placed(rows)

    def sampled_progress(self, most: int) -> list[tuple[Stream, Progress]]:
        """Some of them, for a curve: of each dialect whole series until there are ``most`` points. A thousand ranks may
        print the same loss, and reading a line costs."""
        rows = list[tuple[PointRow, Stream]]()
        read = Counter[int]()
        for stream, share in sorted(self.delta.shares.items()):
            series: dict[tuple[str, int], list[PointRow]] = {}
            for _, row in sorted(share.points.items()):
                series.setdefault((row.voice, row.dialect), []).append(row)
            for (_, dialect), points in series.items():
                if read[dialect] < most:
                    read[dialect] += len(points)
                    rows += product(points, (stream,))
        return self._placed(rows)

    def _placed(self, rows: Iterable[tuple[PointRow, Stream]]) -> list[tuple[Stream, Progress]]:
        placed = list[tuple[Stream, Progress]]()
        read = list[PointRow]()
        for row, stream in rows:
            if point := self._progress(row, stream):
                placed.append((stream, point))
                read.append(row)
        if any(point.step is not None for _, point in placed):
            return placed
        # a log that counts epochs only has no other steps
        for place, (stream, point) in enumerate(placed):
            placed[place] = stream, replace(point, step=self._epoch(read[place]))
        return placed

    def _epoch(self, row: PointRow) -> int | None:
        return progress.epoch_of(row.dialect, _text(body_of(row.line)[1]))

    def _progress(self, row: PointRow, stream: Stream) -> Progress | None:
        if row.line.startswith(batches.BEGINS):
            return None  # cut, it does not tell whose step it is
        opener, text = self._opener(stream), self._sections[stream].labelled(row.number, row.line)
        line = opener[text]
        point = row.own or opener.point(row.dialect, text)
        if not progress.tells(point):
            return None
        rank, node = self._speaker(line, _text(row.line), row.voice, stream)
        printed = row.time or line.record.time or times.time_of(_text(row.line), self._year, 0.0, row.received)
        time, stage = printed or row.received, progress.stage_of(row.dialect)
        who = node, line.instance, line.prefix.voice
        measure = point.metric, point.is_objective, point.batch_size
        return Progress(row.number, rank, time, *point[:6], stage, row.received, stream, not printed, *who, *measure)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The stages of the run in order of their first lines."""
        stats_by_stage: dict[Stage, list[TemplateStats]] = {}
        for stat in self.delta.shapes.values():
            if not stat.kind & STAGES:
                continue
            for stage in Stage:
                if stat.kind & stage_bit(stage):
                    stats_by_stage.setdefault(stage, []).append(stat)
        phases = starmap(_phase, stats_by_stage.items())
        return tuple(sorted(phases, key=lambda phase: (phase.line, phase.stream, phase.stage)))

    @cached_property
    def left_out(self) -> LeftOut:
        caps, missing = set(self.delta.caps), self.delta.lines - len(self._rows)
        if len(self.templates) > self.delta.limits.templates:
            caps.add(Cap.TEMPLATES)
        return LeftOut(missing, "; ".join(self._why_left_out(missing, caps)), tuple(sorted(caps)))

    def _why_left_out(self, missing: int, caps: set[Cap]) -> Iterator[str]:
        delta = self.delta
        if missing:
            yield "routine lines are shown as templates with counts"
        if filtered := sum(stat.count for stat in delta.shapes.values() if stat.is_folded):
            yield f"{filtered} lines filtered as routine of the job family"
        if Cap.SHAPES in caps:
            uncounted = delta.lines - sum(map(attrgetter("count"), delta.shapes.values()))
            yield f"high cardinality: {uncounted} lines belong to shapes beyond the bound"
        for name, shapes in self._many():
            yield f"{name} prints about {shapes} shapes of lines"
        if delta.cut_lines:
            yield f"{delta.cut_bytes} bytes were cut from the middle of {delta.cut_lines} long lines"
        if delta.painted:
            yield f"{delta.painted} bytes were painted over on the screen"
        if others := sorted(caps - {Cap.SHAPES}):
            yield f"there was more than is held of: {', '.join(others)}"

    def _many(self) -> Iterator[tuple[str, int]]:
        """Streams whose lines have more shapes than are held of an attempt."""
        most = self.delta.limits.shapes
        for stream, share in sorted(self.delta.shares.items()):
            if share.variety > most:
                yield _name(stream), share.variety

    @cached_property
    def compression(self) -> Compression:
        """bytes_out: size of the whole view, templates and kept lines."""
        size = sum(len(line.text.encode()) + 1 for line in self.lines)
        size += sum(len(template.text.encode()) + 1 for template in self.templates)
        return Compression(self.delta.lines, self.delta.bytes, len(self.lines), size)

    @cached_property
    def evidence(self) -> Evidence:
        """All that later stages read."""
        return self._evidence

    @cached_property
    def _evidence(self) -> Evidence:
        lines, voices = tuple(each.line for each in self._spoken), [each.voice for each in self._spoken]
        ranks = {line.rank for line in lines if line.rank >= 0}
        for template in self.templates:
            ranks |= template.ranks
        return Evidence(
            lines,
            tracebacks.join(lines, voices),
            self.progress,
            self.templates,
            frozenset(ranks),
            self._rank_nodes(lines, ranks),
            self.left_out,
            self.compression,
            self.phases,
            self.placements,
            process_nouns=self.process_names.nouns,
            process_hosts=frozenset(self.process_names.hosts.values()),
        )

    def _rank_nodes(self, lines: Sequence[Line], ranks: Set[int]) -> dict[int, str]:
        """rank -> node: as lines and placements show it, else as the log counts its processes beside hosts."""
        counted = self.process_names.rank_hosts
        if max(ranks, default=0) >= len(counted):
            counted = {}  # of launchers that start several ranks each
        return dict(sorted({**counted, **rank_nodes(lines, self.placements)}.items()))

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Nodes that ranks run on, by stream, rank and weight."""
        placements = []
        for stream, share in sorted(self.delta.shares.items()):
            for (rank, weight), (number, node) in sorted(share.nodes.items()):
                placements.append(Placement(rank, node, weight, stream, number))
        return tuple(placements)

    def first_line(self, shape: int) -> Line:
        """The first line of a shape: as it was kept, else by its sample, at the time of the kept line before it."""
        stat = self.delta.shapes[shape]
        number, stream = stat.first
        if kept := self._places.get(stat.first):
            return kept
        kept_of_stream = self._times.get(stream, [(0, 0.0)])
        before = kept_of_stream[max(bisect(kept_of_stream, (number, 0.0)) - 1, 0)]
        sample = DeltaRow(number, stat.first_text, "", received=before[1])
        return next(self._said(sample, stream, Mark.CONTEXT, times.LogClock(self._year))).line

    @cached_property
    def _places(self) -> dict[LinePosition, Line]:
        return {(line.number, line.stream): line for line in self.lines}

    @cached_property
    def _times(self) -> dict[Stream, list[tuple[int, float]]]:
        """(number, time) of the kept lines of each stream, by number."""
        times_by_stream: dict[Stream, list[tuple[int, float]]] = {}
        for line in sorted(self.lines, key=lambda line: line.number):
            times_by_stream.setdefault(line.stream, []).append((line.number, line.time))
        return times_by_stream

    def render(
        self,
        budget_tokens: int,
        diff: Diff = NO_DIFF,
        pinned: Sequence[LinePosition] = (),
        once: Sequence[Line] = (),
    ) -> str:
        """The numbered view for a model or a person, within about ``budget_tokens``: first what is new.

        pinned: lines that are shown before all others are chosen, the most important first.
        once: of ``printed_once``, those that may be shown as lines.
        """
        lines = self._viewed(diff, once)
        return render(
            lines, self.templates, self.progress, self.left_out, self.compression, budget_tokens, diff, pinned
        )

    def numbered(self, diff: Diff = NO_DIFF, once: Sequence[Line] = ()) -> dict[int, Line]:
        """The lines by what ``render`` calls them."""
        lines = self._viewed(diff, once)
        return dict(zip(numbers(lines), lines, strict=True))

    def printed_once(self) -> list[Line]:
        """Lines that were not kept, of shapes that were printed only once."""
        shapes = self.delta.shapes.items()
        return [self.first_line(shape) for shape, stat in shapes if stat.count == 1 and stat.first not in self._places]

    def _viewed(self, diff: Diff, once: Sequence[Line]) -> Sequence[Line]:
        """Kept lines, the samples of new shapes of which none was kept, and lines that were printed once."""
        samples = {(line.number, line.stream): line for line in (*(added.line for added in diff.new), *once)}
        viewed = (samples | self._places).values()
        return sorted(viewed, key=lambda line: (line.time, line.stream, line.number))


class _Opener(dict[bytes, OpenedLine]):
    """Lines -> taken apart, each once; templates and points are of lines that are mostly kept, too."""

    def __init__(self, reader: LineReader, stream: Stream) -> None:
        self._open = reader.open if stream.from_job else reader.split
        self._points: dict[tuple[int, bytes], progress.Point] = {}

    def __missing__(self, text: bytes) -> OpenedLine:
        self[text] = opened = self._open(_text(text))
        return opened

    def point(self, dialect: int, text: bytes) -> progress.Point:
        """The values of a line of progress."""
        key = dialect, text
        if key not in self._points:
            self._points[key] = _point(dialect, self[text])
        return self._points[key]


def _rises(share: StreamDelta, most: int) -> Iterator[DeltaRow]:
    """The lines at which a loss rises and stays up, however far from the others that are kept."""
    series: dict[str, list[PointRow]] = {}
    for _, point in sorted(share.points.items()):
        series.setdefault(series_of(point.voice, point.dialect), []).append(point)
    for points in series.values():
        places = loss_shifts.rises(loss_shifts.losses_of([point.line for point in points]), most)
        for point in chain.from_iterable(points[max(0, place - 3) : place + 2] for place in places):
            row = DeltaRow(point.number, point.line, point.voice, time=point.time, received=point.received)
            yield share.rows.get(point.number, row)


def _point(dialect: int, line: OpenedLine) -> progress.Point:
    """The values of a line of progress: by the names of its fields, where it has some."""
    of_fields = progress.is_of_fields(dialect)
    fields = line.record.fields or (fields_of(line.texts[0]) if of_fields else {})
    point = progress.read_fields(dialect, fields)
    if of_fields or progress.tells(point):
        return point
    return progress.read(dialect, line.texts[0])


def digest(delta: Delta) -> Digest:
    return Digest(delta)


def _named(spoken: list[Spoken], names: ProcessNames) -> list[Spoken]:
    """The lines of a traceback that nothing names, with the process that is named right above it."""
    above: dict[tuple[Stream, str], Line] = {}
    named = []
    for each in spoken:
        line, key = each.line, (each.line.stream, each.carried)
        if _is_shared(line.stream) and names.index_of(line.text) >= 0:
            above.pop(key, None)
            if names.is_rare(line.text):
                above[key] = line
        elif key in above and tracebacks.may_go_on(line.body):
            rank = line.rank if line.rank >= 0 else above[key].rank
            each = each._replace(line=replace(line, rank=rank, node=above[key].node))
        else:
            above.pop(key, None)
        named.append(each)
    return named


def _is_shared(stream: Stream) -> bool:
    """Whether several processes of a job may print into it."""
    return stream.from_job and stream.rank < 0


def _with_dated_heads(spoken: list[Spoken]) -> list[Spoken]:
    """In a stream that prints times, the lines before the first time get that one: a banner is as old as what follows
    it, not as new as its arrival. spoken: in order of numbers within each stream."""
    first: dict[Stream, float] = {}
    for each in spoken:
        if each.line.is_dated:
            first.setdefault(each.line.stream, each.line.time)
    return [each._replace(line=_dated_head(each.line, first)) for each in spoken]


def _dated_head(line: Line, first: Mapping[Stream, float]) -> Line:
    if line.arrived and line.stream in first:
        return replace(line, time=first[line.stream], arrived=False)
    return line


def _name(stream: Stream) -> str:
    name = stream.source
    if stream.rank >= 0:
        name += f" of rank {stream.rank}"
    if stream.node:
        name += f" on {stream.node}"
    return name


def _phase(stage: Stage, stats: list[TemplateStats]) -> Phase:
    line, stream = min(map(attrgetter("first"), stats))
    last, last_stream = max(map(attrgetter("last"), stats))
    return Phase(stage, stream, line, last_stream, last)


def _text(line: bytes) -> str:
    """A line that is no UTF-8 decodes the same before and after a delta is stored."""
    return line.decode("utf-8", "replace")


def _severity(kind: int) -> int:
    if kind & _SEVERE:
        return 2
    return bool(kind & _TROUBLE)


def _mark(kind: int) -> Mark:
    if kind & IMPORTANT == LineFlag.HEADING:
        return Mark.CONTEXT
    if kind & LineFlag.ANCHOR:
        return Mark.ANCHOR
    if kind & (LineFlag.FRAME | LineFlag.EXCEPTION):
        return Mark.TRACEBACK
    return Mark.SEVERITY


def _choose(delta: Delta) -> dict[LinePosition, Mark]:
    """The lines that are shown, each with its strongest reason."""
    marks: dict[LinePosition, Mark] = {}
    if delta.lines <= delta.limits.small:
        for stream, share in delta.shares.items():
            marks.update(dict.fromkeys(product(share.rows, (stream,)), Mark.CONTEXT))
    chosen = Chosen(delta)
    for number, index in chosen.context:
        marks[number, chosen.streams[index]] = Mark.CONTEXT
    ending = cache(_ending)  # thousands of ranks end with the same line
    telling = _telling(delta, ending)
    edges = chain(_ends(delta, telling), _tails(delta, ending), _whereabouts(delta, telling))
    for places, mark in ((edges, Mark.EDGE), (_news(delta), Mark.NOVEL)):
        for number, stream in places:
            if number in delta.shares[stream].rows:
                marks[number, stream] = mark
    for spot in chosen.essential:
        marks[spot[0], chosen.streams[spot[1]]] = _mark(chosen.row(spot).kind)
    return marks


def _ends(delta: Delta, telling: Iterable[Stream]) -> Iterator[LinePosition]:
    """The first and last lines of streams."""
    for stream in telling:
        share = delta.shares[stream]
        low, high = share.ranges[0][0], share.ranges[-1][1]
        yield from product((*range(low, low + HEAD), *range(high - TAIL + 1, high + 1)), (stream,))


def _telling(delta: Delta, ending: Callable[[bytes], bytes]) -> Iterable[Stream]:
    """The streams whose ends are shown: all, or of many the first that fell silent behind each shape of last line."""
    if len(delta.shares) <= MANY:
        return delta.shares
    lasts = [(share.rows[max(share.rows)], stream) for stream, share in delta.shares.items() if share.rows]
    endings: dict[bytes, int] = {}
    streams = []
    for row, stream in sorted(lasts, key=lambda last: (last[0].time or last[0].received, last[1])):
        shape = ending(row.text)
        endings[shape] = endings.get(shape, 0) + 1
        if endings[shape] <= ALIKE:
            streams.append(stream)
    return streams[:MANY]


def _whereabouts(delta: Delta, telling: Iterable[Stream]) -> Iterator[LinePosition]:
    """Lines, among those that are held, that say on which machines and as which ranks the run runs."""
    if delta.lines <= delta.limits.small:
        return
    says_where = cache(mentions.says_where)
    for stream in telling:
        # those with a signature are shown for what they say
        rows = delta.shares[stream].rows.ordered()
        texts = {row.number: _text(row.text) for row in rows if not row.signature}
        numbers, places = list(texts), set[int]()
        for index, _ in rank_tables.statements(texts.values()):
            places.add(numbers[index])
        for number, text in texts.items():
            if says_where(text):
                places.add(number)
        yield from product(sorted(places)[:WHEREABOUTS], (stream,))


def _ending(line: bytes) -> bytes:
    return masked(blurred(body_of(_text(line).encode())[1]))


def _news(delta: Delta) -> Iterator[LinePosition]:
    ends = {stream: share.ranges[-1][1] for stream, share in delta.shares.items()}
    for stat in delta.shapes.values():
        if stat.filtered:
            continue
        if stat.count > 2:
            continue
        number, stream = stat.last
        if number > ends[stream] - NOVEL:
            yield stat.last


def _tails(delta: Delta, ending: Callable[[bytes], bytes]) -> Iterator[LinePosition]:
    """The last lines of voices: per shape of last line, those of the first voices to fall silent."""
    last = list[LinePosition]()
    for stream, share in delta.shares.items():
        numbers = share.rows.last_of_voices()
        numbers.pop("", None)
        last += product(numbers.values(), (stream,))
    endings: dict[bytes, int] = {}
    for number, stream in sorted(last):
        shape = ending(delta.shares[stream].rows[number].text)
        endings[shape] = endings.get(shape, 0) + 1
        if endings[shape] <= ALIKE:
            yield number, stream
