"""When what happened in a log: stages, the progress series, and who printed when. By the clock of the log itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from diagnoser.compress.digest import Digest
from diagnoser.logview.log_columns import LEVELS, NOBODY, LogColumns, LogLevel
from diagnoser.model import Progress, Stage, Stream

QUIET, LINES, WARNINGS, ERRORS = range(4)
"""What a rank printed within a span of time, the worst of it: nothing, lines, warnings, errors."""
_POINTS = 2_000
"""Points of each dialect that make a curve."""
_HEAT = {LogLevel.ERROR: ERRORS, LogLevel.WARNING: WARNINGS}


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stage of the run, from its first line to its last."""

    stage: Stage
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class TimedProgress:
    """A point of the progress series and when its line was printed."""

    time: float
    point: Progress


@dataclass(frozen=True, slots=True)
class RankSpan:
    """From when to when lines of a rank are held, and how many of them complain. node: "" when not known."""

    rank: int
    node: str
    first: float
    last: float
    errors: int
    warnings: int


class LogTimeline:
    """Built once for a log, from its columns. Times are seconds; ``is_timed`` says of what.

    A log without any times came in one piece, so that all of its lines have one time: its "times" are then positions in
    the log, which still tell what came before what. received: when the first and the last of its held lines came in, by
    the service's own clock; zeros when not known.
    """

    def __init__(self, columns: LogColumns, digest: Digest) -> None:
        self.received = columns.received
        self._columns = columns
        self._digest = digest
        known = columns.time[columns.time > 0]
        self.is_timed = bool(len(known)) and float(known.max() - known.min()) > 0
        self._times = columns.time
        if not self.is_timed:
            self._times = known = np.arange(len(columns), dtype=np.float64)
        self.begin, self.end = 0.0, 0.0
        if len(known):
            self.begin, self.end = float(known.min()), float(known.max())

    def time_at(self, position: int) -> float:
        """Time of the row at a position of the log."""
        return float(self._times[position])

    def time_of(self, stream: Stream, number: int) -> float:
        """Time of a line, whether it is held or not: between the times of those around it. The log's begin where the
        stream has no line.
        """
        if stream not in self._places:
            return self.begin
        numbers, times = self._places[stream]
        return float(np.interp(number, numbers, times))

    @cached_property
    def stages(self) -> tuple[StageSpan, ...]:
        """List the stages in order of their first lines."""
        spans = []
        for phase in self._digest.phases:
            begin = self.time_of(phase.stream, phase.line)
            end = self.time_of(phase.last_stream, phase.last)
            spans.append(StageSpan(phase.stage, begin, max(begin, end)))
        return tuple(sorted(spans, key=lambda span: (span.begin, span.end)))

    @cached_property
    def progress(self) -> tuple[TimedProgress, ...]:
        """List progress by time: enough for a curve. Only the time axis asks for it."""
        timed = []
        for stream, point in self._digest.sampled_progress(_POINTS):
            timed.append(TimedProgress(self._time_of_point(stream, point), point))
        return tuple(sorted(timed, key=lambda point: point.time))

    @cached_property
    def unnamed(self) -> int:
        """Count lines that name their rank behind something else, such as a time: they are counted by their shape, and
        nobody knows which of them are whose."""
        count = 0
        for template in self._digest.templates:
            stream = template.first[0]
            if template.ranks:
                continue
            if stream.rank >= 0:
                continue
            if any(self._digest.speaker(text.encode(), "", stream)[0] >= 0 for text in template.samples):
                count += template.count
        return count

    @cached_property
    def ranks(self) -> tuple[RankSpan, ...]:
        """List the ranks that lines or templates tell of, in order."""
        columns = self._columns
        speaks = columns.rank > NOBODY
        if self.is_timed:
            speaks &= self._times > 0
        spoken = np.flatnonzero(speaks)
        ranks = np.unique(np.concatenate([columns.rank[spoken], *(spread.ranks for spread in columns.spreads)]))
        row_of = np.searchsorted(ranks, columns.rank[spoken])
        first, last = np.full(len(ranks), np.inf), np.full(len(ranks), -np.inf)
        np.minimum.at(first, row_of, self._times[spoken])
        np.maximum.at(last, row_of, self._times[spoken])
        for spread in columns.spreads:
            rows = np.searchsorted(ranks, spread.ranks)
            first[rows] = np.minimum(first[rows], self._times[spread.position])
            last[rows] = np.maximum(last[rows], self._times[spread.position])
        levels = columns.level[spoken]
        errors = np.bincount(row_of[levels == LEVELS.index(LogLevel.ERROR)], minlength=len(ranks))
        warnings = np.bincount(row_of[levels == LEVELS.index(LogLevel.WARNING)], minlength=len(ranks))
        spans = []
        for row, rank in enumerate(ranks.tolist()):
            node, begin, end = self._nodes.get(rank, ""), float(first[row]), float(last[row])
            spans.append(RankSpan(rank, node, begin, end, int(errors[row]), int(warnings[row])))
        return tuple(spans)

    def heat(self, edges: Sequence[float], row_of: Mapping[int, int], rows: int) -> NDArray[np.int8]:
        """Rows by bins: what was printed between two edges, as of ``QUIET`` to ``ERRORS``.

        edges: ascending, one more than there are bins.
        row_of: rank -> row, for the ranks that are wanted.
        """
        columns, bins = self._columns, len(edges) - 1
        cells = np.zeros(rows * bins, dtype=np.int8)
        wanted = sorted(row_of)
        spoken = np.flatnonzero(np.isin(columns.rank, wanted))
        rows_of = np.array(list(map(row_of.__getitem__, wanted)), dtype=np.int64)
        row = rows_of[np.searchsorted(wanted, columns.rank[spoken])]
        column = np.clip(np.searchsorted(edges, self._times[spoken], side="right") - 1, 0, bins - 1)
        worst = np.array([_HEAT.get(level, LINES) for level in LEVELS], dtype=np.int8)[columns.level[spoken]]
        np.maximum.at(cells, row * bins + column, worst)
        return cells.reshape(rows, bins)

    @cached_property
    def _places(self) -> dict[Stream, tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Line numbers that are held, and their times, by stream."""
        columns = self._columns
        order = np.lexsort((columns.number, columns.stream))
        bounds = np.searchsorted(columns.stream[order], np.arange(len(columns.streams) + 1))
        return {
            stream: (columns.number[places], self._times[places])
            for code, stream in enumerate(columns.streams)
            if len(places := order[bounds[code] : bounds[code + 1]])
        }

    @cached_property
    def _nodes(self) -> dict[int, str]:
        columns = self._columns
        spoken = np.flatnonzero((columns.rank > NOBODY) & (columns.node != columns.nodes.index("")))
        ranks, places = np.unique(columns.rank[spoken], return_index=True)
        nodes = columns.node[spoken[places]].tolist()
        return dict(zip(ranks.tolist(), map(columns.nodes.__getitem__, nodes), strict=True))

    def _time_of_point(self, stream: Stream, point: Progress) -> float:
        """A line that prints no time has that of those around it."""
        if not self.is_timed:
            return self.time_of(stream, point.line)
        if point.time not in (0, point.received):
            return point.time
        return self.time_of(stream, point.line)
