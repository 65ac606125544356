"""The stored log of an attempt, to be filtered, searched and read a window at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import re2
from numpy.typing import NDArray

from diagnoser.compress.attempt_log import AttemptLog
from diagnoser.compress.templates import mask
from diagnoser.logview.log_columns import (
    LEVELS,
    NOBODY,
    SEVERAL,
    LogColumns,
    LogLevel,
    Mask,
    Positions,
    codes_among,
    line_id,
    stream_key,
)
from diagnoser.logview.log_timeline import LogTimeline
from diagnoser.model import Stream, Template, expressions
from diagnoser.model.errors import BadInput
from diagnoser.model.recent import Recent

MATCHES_LIMIT = 10_000
"""Rows that a search finds at most: more than anybody steps through."""
PATTERN_MEMORY = 4 << 20
"""Bytes that RE2 may use for one pattern. Its time is linear in the text whatever the pattern is."""
HITS_LIMIT = 50
"""Places that are marked in one row."""
_LAST_LINES = 3
"""Rows that are shown of an ending."""
_ENDING = 400
"""Bytes by which last lines are compared."""
_SEARCHES_KEPT = 8
_DIGITS = 18
"""Of a line number: what is longer is none."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row. id: names the line for good, whatever lines come. rank: -1, node: "", time: 0.0 when not known.

    gap: lines of its stream just before it that are not shown. template: of the lines of which this is the first.
    hits: where the search matches, as (start, end) in ``text``.
    """

    id: str
    stream: Stream
    number: int
    text: str
    rank: int
    node: str
    time: float
    level: LogLevel
    gap: int = 0
    template: Template | None = None
    hits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LogSearch:
    """What is searched for: a part of a line in any case, or a regular expression of RE2."""

    text: str = ""
    is_regex: bool = False

    def compiled(self) -> Any:
        """Matches within one line. Raises BadInput."""
        options = expressions.quiet_options(PATTERN_MEMORY)
        options.never_nl = True
        pattern = f"(?m){self.text}" if self.is_regex else f"(?i){re2.escape(self.text)}"
        try:
            return expressions.compiled(pattern, options)
        except BadInput as error:
            raise BadInput(f"{self.text!r} is {error}") from None


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Rows that are shown: those that fit every field; an empty one asks for nothing. ranks: -1 for those of no rank.

    matches_only: leave out what the search does not match.
    """

    ranks: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    levels: frozenset[LogLevel] = frozenset()
    search: LogSearch = LogSearch()
    matches_only: bool = False


class Direction(StrEnum):
    START = "start"
    END = "end"
    AROUND = "around"
    AFTER = "after"
    BEFORE = "before"


@dataclass(frozen=True, slots=True)
class LogCursor:
    """Where a window lies. line: for the last three directions the id of a row, or ``SOURCE:NUMBER``, or a number."""

    direction: Direction = Direction.START
    line: str = ""


@dataclass(frozen=True, slots=True)
class LogFacets:
    """Rows by value, most frequent first: of each field those that fit the filter's other fields."""

    ranks: tuple[tuple[int, int], ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    sources: tuple[tuple[str, int], ...] = ()
    levels: tuple[tuple[LogLevel, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LogEnding:
    """The last rows of one speaker. ranks: of all whose last line looks like that; speakers: how many they are."""

    ranks: tuple[int, ...]
    speakers: int
    rows: tuple[LogRow, ...]


@dataclass(frozen=True, slots=True)
class LogWindow:
    """rows: in order. before, total: rows that fit the filter before the window, and in all.

    target: id of the row that the cursor led to, "" where it led to none. is_exact: whether it is the line that was
    asked for; else the nearest one before it that is shown. matches: rows that fit the filter and the search.
    previous_match, next_match: ids of the nearest ones outside of the window.
    """

    rows: tuple[LogRow, ...]
    before: int
    total: int
    target: str = ""
    is_exact: bool = True
    matches: int = 0
    previous_match: str = ""
    next_match: str = ""

    @property
    def after(self) -> int:
        """Rows that fit the filter behind the window."""
        return self.total - self.before - len(self.rows)


class LogIndex:
    """Building it takes a second for the largest logs: use a thread, and keep it. Nothing changes it but its memory of
    the latest searches."""

    def __init__(self, log: AttemptLog) -> None:
        self.log = log
        self.lines = log.delta.lines
        self._columns = LogColumns(log)
        self.timeline = LogTimeline(self._columns, log.digest)
        self._keys = list(map(stream_key, self._columns.streams))
        self._searches = Recent[LogSearch, Positions](_SEARCHES_KEPT)

    def __len__(self) -> int:
        return len(self._columns)

    def streams_with(self, number: int) -> tuple[Stream, ...]:
        streams = []
        for stream, share in sorted(self.log.delta.shares.items()):
            if any(low <= number <= high for low, high in share.ranges):
                streams.append(stream)
        return tuple(streams)

    def stream_named(self, key: str) -> Stream | None:
        """The stream of which the ids of rows begin with this; None where there is none."""
        if key not in self._keys:
            return None
        return self._columns.streams[self._keys.index(key)]

    def id_of(self, source: str, number: int, text: str) -> str:
        """Id of the row of a line, by its source: several nodes may each have a ``stdout`` of that number, so its text
        decides among them. "" where no such line is held."""
        position = self.position(source, number, text)
        if position < 0:
            return ""
        return self._id(position)

    def position(self, source: str, number: int, text: str) -> int:
        """Find the place of that row in the log; -1 where it is not there."""
        columns, first = self._columns, -1
        for place in np.flatnonzero(columns.number == number).tolist():
            if columns.streams[columns.stream[place]].source != source:
                continue
            if columns.texts[place].decode("utf-8", "replace") == text:
                return int(place)
            if first < 0:
                first = place
        return first

    def neighbours(self, position: int, most: int) -> tuple[LogRow, ...]:
        """The row at a position with at most so many lines of its stream before and behind it."""
        columns = self._columns
        is_line = columns.level != LEVELS.index(LogLevel.ROUTINE)
        places = np.flatnonzero(is_line & (columns.stream == columns.stream[position]))
        here = int(np.searchsorted(places, position))
        return self._rows(places[max(here - most, 0) : here + most + 1])

    def endings(self, limit: int) -> tuple[LogEnding, ...]:
        """Group ranks by their last lines, those that fell silent first in front: lines that look alike are one ending.
        Streams of no rank count as one speaker each.
        """
        columns = self._columns
        lines = np.flatnonzero(columns.level != LEVELS.index(LogLevel.ROUTINE))[::-1]
        speakers = np.where(columns.rank >= 0, columns.rank, SEVERAL - columns.stream)[lines]
        _, firsts = np.unique(speakers, return_index=True)
        alike: dict[str, list[int]] = {}
        for first in firsts.tolist():
            shape = mask(columns.texts[lines[first]][-_ENDING:].decode("utf-8", "replace"))
            alike.setdefault(shape, []).append(first)
        groups = sorted(alike.values(), key=lambda group: min(float(columns.time[lines[first]]) for first in group))
        endings = []
        for group in groups[:limit]:
            last = lines[speakers == speakers[group[0]]][:_LAST_LINES][::-1]
            ranks = sorted(int(speakers[first]) for first in group if speakers[first] >= 0)
            endings.append(LogEnding(tuple(ranks), len(group), self._rows(last)))
        return tuple(endings)

    @property
    def last_number(self) -> int:
        """The largest line number that came; 0 where no line did."""
        return max((share.ranges[-1][1] for share in self.log.delta.shares.values() if share.ranges), default=0)

    def window(self, wanted: LogFilter, cursor: LogCursor, limit: int) -> LogWindow:
        """At most ``limit`` rows that fit the filter. Raises BadInput for a search or a cursor that cannot be read."""
        matching = self._matching(wanted.search)
        mask = self._mask(wanted)
        if wanted.matches_only and wanted.search.text:
            is_match = np.zeros(len(self), dtype=bool)
            is_match[matching] = True
            mask &= is_match
        shown, matching = np.flatnonzero(mask), matching[mask[matching]]
        position, is_exact = self._position(cursor, matching)
        if position < 0:
            cursor, position = LogCursor(), 0
        index = int(np.searchsorted(shown, position))
        is_shown = index < len(shown) and int(shown[index]) == position
        if cursor.direction is Direction.AROUND and not is_shown:
            index = max(index - 1, 0)
        start, stop = _bounds(cursor.direction, index, is_shown, len(shown), limit)
        window = shown[start:stop]
        previous_match, next_match = self._matches_around(matching, window, position)
        target = ""
        if cursor.direction is Direction.AROUND and len(window):
            target = self._id(int(shown[index]))
            is_exact &= is_shown
        return LogWindow(
            rows=self._rows(window, wanted.search),
            before=start,
            total=len(shown),
            target=target,
            is_exact=is_exact,
            matches=len(matching),
            previous_match=previous_match,
            next_match=next_match,
        )

    def facets(self, wanted: LogFilter) -> LogFacets:
        columns = self._columns
        return LogFacets(
            columns.rank_counts(self._mask(wanted, but="ranks")),
            columns.node_counts(self._mask(wanted, but="nodes")),
            columns.source_counts(self._mask(wanted, but="sources")),
            columns.level_counts(self._mask(wanted, but="levels")),
        )

    def _mask(self, wanted: LogFilter, but: str = "") -> Mask:
        """The rows that fit the chosen values of all fields but one."""
        columns = self._columns
        mask = np.ones(len(self), dtype=bool)
        fields: tuple[tuple[str, Any, Callable[[Any], Mask]], ...] = (
            ("ranks", wanted.ranks, columns.of_ranks),
            ("nodes", wanted.nodes, columns.of_nodes),
            ("sources", wanted.sources, columns.of_sources),
            ("levels", wanted.levels, columns.of_levels),
        )
        for field, values, rows_of in fields:
            if values and field != but:
                mask &= rows_of(values)
        return mask

    def _matching(self, search: LogSearch) -> Positions:
        """Find the first rows that a search matches."""
        if not search.text:
            return np.empty(0, dtype=np.intp)
        if search not in self._searches:
            self._searches[search] = self._find(search.compiled())
        return self._searches[search]

    def _find(self, pattern: Any) -> Positions:
        """All texts are searched as one: a call for each row would cost more than the search itself."""
        text, starts = self._text
        matching: list[int] = []
        start = 0
        while len(matching) < MATCHES_LIMIT and start < len(text) and (match := pattern.search(text, start)):
            position = int(np.searchsorted(starts, match.start(), side="right")) - 1
            matching.append(position)
            start = int(starts[position + 1]) if position + 1 < len(starts) else len(text)
        return np.array(matching, dtype=np.intp)

    @cached_property
    def _text(self) -> tuple[bytes, NDArray[np.int64]]:
        """The texts of all rows, a line each, and where each of them begins."""
        texts = self._columns.texts
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)) + 1
        return b"\n".join(texts), np.cumsum(lengths) - lengths

    def _position(self, cursor: LogCursor, matching: Positions) -> tuple[int, bool]:
        """Position of the row that a cursor names, or of the last one of its stream before that line, and whether it is
        that very line; -1 where it has no such stream. Without a line: the first match."""
        if not cursor.line:
            return int(matching[0]) if len(matching) else 0, True
        columns = self._columns
        streams, number = self._named(cursor.line)
        places = np.flatnonzero(np.isin(columns.stream, streams))
        numbers = columns.number[places]
        exact, earlier = places[numbers == number], places[numbers < number]
        if len(exact):
            return int(exact[0]), True
        if len(earlier):
            return int(earlier[-1]), False
        return int(places[0]) if len(places) else -1, False

    def _named(self, line: str) -> tuple[list[int], int]:
        """Codes of the streams that a line may be of, and its number. Raises BadInput."""
        key, dash, id_number = line.rpartition("-")
        source, _, number = line.rpartition(":")
        if all((dash, id_number.isdecimal(), not source)):
            return codes_among(self._keys, (key,)), int(id_number[:_DIGITS])
        if not number.isdecimal():
            raise BadInput(f"{line!r} names no line: give its number, SOURCE:NUMBER, or the id of a row")
        streams = self._columns.streams
        codes = [code for code, stream in enumerate(streams) if source in ("", stream.source)]
        return codes, int(number[:_DIGITS])

    def _id(self, position: int) -> str:
        columns = self._columns
        return line_id(columns.streams[columns.stream[position]], int(columns.number[position]))

    def _matches_around(self, matching: Positions, window: Positions, position: int) -> tuple[str, str]:
        """Ids of the matches before and behind a window. position: where an empty window stands."""
        first, last = position, position
        if len(window):
            first, last = int(window[0]), int(window[-1])
        return self._first_id(matching[matching < first][::-1]), self._first_id(matching[matching > last])

    def _first_id(self, positions: Positions) -> str:
        return self._id(int(positions[0])) if len(positions) else ""

    def _rows(self, positions: Positions, search: LogSearch = LogSearch()) -> tuple[LogRow, ...]:
        """The rows at these positions, with what a search matches in them."""
        pattern = search.compiled() if search.text else None
        return tuple(self.row(position, pattern) for position in positions.tolist())

    def row(self, position: int, pattern: Any = None) -> LogRow:
        """pattern: of a search, whose matches in the row are marked."""
        columns = self._columns
        text, template = columns.texts[position].decode("utf-8", "replace"), int(columns.template[position])
        return LogRow(
            id=self._id(position),
            stream=columns.streams[columns.stream[position]],
            number=int(columns.number[position]),
            text=text,
            rank=max(int(columns.rank[position]), NOBODY),
            node=columns.nodes[columns.node[position]],
            time=float(columns.time[position]),
            level=LEVELS[columns.level[position]],
            gap=int(columns.gap[position]),
            template=columns.templates[template] if template >= 0 else None,
            hits=hits_in(pattern, text),
        )


def hits_in(pattern: Any, text: str) -> tuple[tuple[int, int], ...]:
    """Where a compiled search matches in a row's text. pattern: None where nothing is searched for."""
    if pattern is None:
        return ()
    matches = islice(pattern.finditer(text), HITS_LIMIT)
    return tuple(match.span() for match in matches if match.end() > match.start())


def _bounds(direction: Direction, index: int, is_shown: bool, total: int, limit: int) -> tuple[int, int]:
    """Where a window begins and ends among ``total`` rows. index: of the row that is named, else of the next one."""
    if direction is Direction.START:
        start = 0
    elif direction is Direction.END:
        start = total - limit
    elif direction is Direction.AROUND:
        start = min(index - limit // 2, total - limit)
    elif direction is Direction.AFTER:
        start = index + is_shown
    else:
        return max(index - limit, 0), index
    start = max(start, 0)
    return start, min(start + limit, total)
