"""Search the lines of an attempt as they came, an answer at a time, from the newest ones backwards."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress.raw_chunks import read_blocks, unpack
from diagnoser.compress.segments import NumberedLine, numbered, stream_order
from diagnoser.diagnosis.original_lines import WINDOW_BYTES, OriginalLine, shown_line
from diagnoser.logview.log_index import LogSearch, hits_in
from diagnoser.model import AttemptKey, LineBlock, Stream
from diagnoser.model.errors import BadInput, NotFound
from diagnoser.ports import Archive

ANSWER_BYTES = 256 << 20
"""Text that an answer searches, about a second of work; the next answer goes on where it ended."""
ANSWER_LINES = 500
"""Lines of an answer. Further ones are only counted: nobody reads more, and a narrower search finds them."""
_PIECES_BYTES = 8 << 20
_READ_AT_ONCE = 8
_RAW, _ARCHIVE = "raw", "archive"
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class MatchingLine:
    """hits: where the search matches, as (start, end) in the text."""

    stream: Stream
    line: OriginalLine
    hits: tuple[tuple[int, int], ...]

    @property
    def order(self) -> tuple[float, bytes, int]:
        time = self.line.received if self.line.time is None else self.line.time
        return time, stream_order(self.stream), self.line.number


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Streams that are searched; None stands for any."""

    source: str | None = None
    node: str | None = None
    rank: int | None = None
    provenance: str | None = None

    def fits(self, stream: Stream) -> bool:
        if self.source is not None and stream.source != self.source:
            return False
        if self.node is not None and stream.node != self.node:
            return False
        if self.rank is not None and stream.rank != self.rank:
            return False
        return self.provenance is None or stream.provenance == self.provenance


EVERY_STREAM = StreamFilter()


@dataclass(slots=True)
class SearchAnswer:
    """What an answer found, the newest line first.

    searched: lines that it looked at. matches: those that match, also where ``lines`` has no room for them.
    place: where the next answer goes on, "" at the end. bytes, shown: text that it looked at and
    holds.
    """

    lines: list[MatchingLine] = field(default_factory=list)
    searched: int = 0
    matches: int = 0
    place: str = ""
    bytes: int = 0
    shown: int = 0

    def add(self, blocks: Iterable[LineBlock], pattern: Any, wanted: StreamFilter) -> None:
        for block in blocks:
            self.bytes += len(block.data)  # also of what is left out: it was read
            if not wanted.fits(block.stream):
                continue
            self.searched += block.lines
            for line in _matching(block, pattern):
                self.matches += 1
                if self.matches <= ANSWER_LINES and self.shown < WINDOW_BYTES:
                    shown = shown_line(line)
                    self.shown += len(shown.text)
                    self.lines.append(MatchingLine(block.stream, shown, hits_in(pattern, shown.text)))

    @property
    def is_full(self) -> bool:
        return self.bytes >= ANSWER_BYTES or self.matches >= ANSWER_LINES


@dataclass(frozen=True, slots=True)
class LineSearch:
    """archive: None where there is none; lines can be searched until they are compressed then."""

    store: SqlStore
    archive: Archive | None = None

    async def answer(
        self, attempt: AttemptKey, search: LogSearch, wanted: StreamFilter = EVERY_STREAM, place: str = ""
    ) -> SearchAnswer:
        """Search on from a place, "" for the beginning. Raises BadInput for a pattern or a place that is none,
        Unavailable.

        Raw pieces come before the archive: lines that are archived in between are met twice then, and never missed.
        """
        pattern, answer = search.compiled(), SearchAnswer()
        kind, number = _read_place(place)
        if kind == _RAW:
            await self._search_pieces(attempt, pattern, wanted, number, answer)
            number = 0
        if not answer.place and self.archive:
            await self._search_archive(self.archive, attempt, pattern, wanted, number, answer)
        answer.lines.sort(key=attrgetter("order"), reverse=True)
        return answer

    async def total(self, attempt: AttemptKey, wanted: StreamFilter = EVERY_STREAM) -> int:
        """Lines that came, whether they are left or not. Raises NotFound where no such stream sent any."""
        cursors = (await self.store.logs.cursors([attempt]))[attempt]
        streams = [cursor.covered for stream, cursor in cursors.items() if wanted.fits(stream)]
        if not streams:
            raise NotFound(
                f"attempt {attempt.number} of {attempt.job!r} has no such stream: see {attempt.number}/streams"
            )
        return sum(last - first + 1 for covered in streams for first, last in covered)

    async def _search_pieces(
        self, attempt: AttemptKey, pattern: Any, wanted: StreamFilter, after: int, answer: SearchAnswer
    ) -> None:
        while pieces := await self.store.logs.raw_pieces(attempt, _PIECES_BYTES, after):
            for piece in pieces:
                await asyncio.to_thread(_add_piece, piece.data, pattern, wanted, answer)
            after = pieces[-1].id
            if answer.is_full:
                answer.place = f"{_RAW}:{after}"
                return

    async def _search_archive(
        self,
        archive: Archive,
        attempt: AttemptKey,
        pattern: Any,
        wanted: StreamFilter,
        skipped: int,
        answer: SearchAnswer,
    ) -> None:
        """skipped: segments that earlier answers searched. What is archived meanwhile shifts the rest, so that some
        segments are searched twice and none is missed."""
        while segments := await self.store.archive.newest_segments(attempt, skipped, _READ_AT_ONCE):
            read = [archive.get(segment.key, segment.start, segment.size) for segment in segments]
            for segment, data in zip(segments, await asyncio.gather(*read), strict=True):
                answer.bytes += segment.size
                if data is not None:
                    await asyncio.to_thread(_add_segment, data, pattern, wanted, answer)
            skipped += len(segments)
            if answer.is_full:
                answer.place = f"{_ARCHIVE}:{skipped}"
                return


def _read_place(place: str) -> tuple[str, int]:
    """Where an answer begins. Raises BadInput."""
    kind, _, number = (place or f"{_RAW}:0").partition(":")
    if kind not in (_RAW, _ARCHIVE) or not number.isdecimal() or len(number) > _DIGITS:
        raise BadInput(f"{place!r} is no place of a search: use `next` of the answer before")
    return kind, int(number)


def _add_piece(data: bytes, pattern: Any, wanted: StreamFilter, answer: SearchAnswer) -> None:
    answer.add(unpack(data), pattern, wanted)


def _add_segment(data: bytes, pattern: Any, wanted: StreamFilter, answer: SearchAnswer) -> None:
    """An object that is cut short or changed holds no lines: the rest of the log is searched all the same."""
    try:
        blocks = read_blocks(data)
    except BadInput:
        return
    answer.add(blocks, pattern, wanted)


def _matching(block: LineBlock, pattern: Any) -> Iterator[NumberedLine]:
    """The lines of a block that match. The whole text is searched at once: a call a line would cost more."""
    data, number, start, counted = block.data, block.first, 0, 0
    while start < len(data) and (match := pattern.search(data, start)):
        begin = data.rfind(b"\n", 0, match.start()) + 1
        if begin >= len(data):  # an empty match behind the last line
            return
        end = data.find(b"\n", match.start())
        if end < 0:
            end = len(data)
        number += data.count(b"\n", counted, begin)
        yield numbered(block, number, data[begin:end])
        start, counted = end + 1, begin
