"""Lines of an attempt as they came: from the raw pieces that are not compressed yet, else from the archive."""

import asyncio
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress.raw_chunks import unpack
from diagnoser.compress.segments import NumberedLine, lines_of, read_segment, stream_order
from diagnoser.model import AttemptKey, LineBlock, Stream
from diagnoser.model.errors import BadInput
from diagnoser.model.logs import StoredPiece
from diagnoser.ports import Archive

WINDOW_LINES = 5_000
"""Most lines of a window."""
WINDOW_BYTES = 4 << 20
"""Text of a window; the line that crosses the bound is the last one."""
LINE_BYTES = 64 << 10
"""Text of a line that is shown; the rest of a longer one is counted."""
_PIECES_BYTES = 8 << 20
_READ_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class OriginalLine:
    """time: when it was printed, None where the log does not say. received: when it arrived. Seconds since the epoch.

    cut: bytes behind ``text`` that are left out.
    """

    number: int
    text: str
    time: float | None
    received: float
    cut: int = 0


@dataclass(frozen=True, slots=True)
class LineWindow:
    """Lines first..last (closed) of a stream, as far as they are left. end: its last line so far, 0 if it has none.

    compressed: closed ranges of lines of which only the compressed log is left. never_sent: numbers that never arrived.
    """

    stream: Stream
    first: int
    last: int
    end: int
    lines: tuple[OriginalLine, ...] = ()
    compressed: tuple[tuple[int, int], ...] = ()
    never_sent: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OriginalLines:
    """archive: None where there is none; lines last until they are compressed then."""

    store: SqlStore
    archive: Archive | None = None

    async def window(self, attempt: AttemptKey, stream: Stream, first: int, last: int) -> LineWindow:
        """Lines first..last (closed); fewer where they are many or long. Raises Unavailable."""
        cursors = await self.store.logs.stream_cursors({attempt: [stream]})
        cursor = cursors[attempt].get(stream)
        ranges = cursor.covered if cursor else ()
        end = ranges[-1][1] if ranges else 0
        last = min(last, end, first + WINDOW_LINES - 1)
        sent = _inside(ranges, first, last)
        # Raw pieces before the archive: lines that are compacted in between are in both then, and never in neither.
        lines = await self._from_pieces(attempt, stream, sent)
        if len(lines) < len(sent) and self.archive:
            lines |= await self._from_archive(self.archive, attempt, stream, sent - lines.keys())
        shown = tuple(_bounded(map(lines.__getitem__, sorted(lines))))
        if len(shown) < len(lines):
            last = shown[-1].number
        return LineWindow(
            stream,
            first,
            last,
            end,
            shown,
            _ranges(number for number in sorted(sent - lines.keys()) if number <= last),
            _ranges(number for number in range(first, last + 1) if number not in sent),
        )

    async def _from_pieces(self, attempt: AttemptKey, stream: Stream, wanted: set[int]) -> dict[int, OriginalLine]:
        lines: dict[int, OriginalLine] = {}
        after = 0
        while len(lines) < len(wanted):
            pieces = await self.store.logs.raw_pieces(attempt, _PIECES_BYTES, after)
            if not pieces:
                break
            blocks = await asyncio.to_thread(_unpacked, pieces)
            lines |= _wanted(lines_of(blocks, stream, min(wanted), max(wanted)), wanted)
            after = pieces[-1].id
        return lines

    async def _from_archive(
        self, archive: Archive, attempt: AttemptKey, stream: Stream, wanted: set[int]
    ) -> dict[int, OriginalLine]:
        """An object that is gone or damaged holds no lines."""
        first, last = min(wanted), max(wanted)
        segments = await self.store.archive.archived_segments(attempt, stream_order(stream), first, last)
        lines: dict[int, OriginalLine] = {}
        for start in range(0, len(segments), _READ_AT_ONCE):
            if len(lines) == len(wanted):
                break
            read = (archive.get(part.key, part.start, part.size) for part in segments[start : start + _READ_AT_ONCE])
            for data in filter(None, await asyncio.gather(*read)):
                lines |= _wanted(await asyncio.to_thread(_lines_in, data, stream, first, last), wanted)
        return lines


def _unpacked(pieces: Iterable[StoredPiece]) -> list[LineBlock]:
    return list(chain.from_iterable(map(unpack, map(attrgetter("data"), pieces))))


def _lines_in(data: bytes, stream: Stream, first: int, last: int) -> list[NumberedLine]:
    try:
        return list(read_segment(data, stream, first, last))
    except BadInput:  # cut short, or changed by somebody: what is left of the log is shown all the same
        return []


def _wanted(lines: Iterable[NumberedLine], wanted: set[int]) -> dict[int, OriginalLine]:
    return {line.number: shown_line(line) for line in lines if line.number in wanted}


def shown_line(line: NumberedLine) -> OriginalLine:
    """A line as it is shown: the text of a long one is cut."""
    text = line.text[:LINE_BYTES].decode("utf-8", "replace")
    time = None if math.isnan(line.time) else line.time
    return OriginalLine(line.number, text, time, line.received, max(0, len(line.text) - LINE_BYTES))


def _bounded(lines: Iterable[OriginalLine]) -> Iterator[OriginalLine]:
    size = 0
    for line in lines:
        yield line
        size += len(line.text)
        if size >= WINDOW_BYTES:
            return


def _inside(ranges: Iterable[tuple[int, int]], first: int, last: int) -> set[int]:
    """Numbers of closed ranges, as far as they are in first..last."""
    numbers = set[int]()
    for low, high in ranges:
        numbers.update(range(max(low, first), min(high, last) + 1))
    return numbers


def _ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Closed ranges of ascending numbers."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)
