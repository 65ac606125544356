"""The summary of some of an attempt's lines, and how summaries merge.

Everything in a ``Delta`` is a sum, a minimum, a maximum, a union, or a selection S with S(S(A) | S(B)) = S(A | B): of
each group the first, the last, or those of smallest hash. So any split into blocks, in any order, over any number of
replicas gives the same merged delta, as long as each line is fed once (the store guards that with covered ranges).
Only which points are kept around the rises of a loss (``loss_shifts``) depends on the split where the loss is noise.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import add
from typing import Any, NamedTuple

from diagnoser.compress.limits import CompressorLimits
from diagnoser.compress.line_flags import LineFlag
from diagnoser.model import Cap, Stream
from diagnoser.structure.progress import Point

LEAST = 64
LEARNED = "learned/"
"""Before the id of a learned filter, where shipped ones have ``<family>/``."""
FATAL = int(LineFlag.FATAL | LineFlag.EXCEPTION)
"""Of lines that may end the run."""
NumberRanges = tuple[tuple[int, int], ...]
LinePosition = tuple[int, Stream]
"""(line number, stream): the order in which "first" and "last" are meant."""


class DeltaRow(NamedTuple):
    """A kept line, not decoded yet, for most rows are dropped again. signature: 0 where the line matters only because
    of its place. time: 0.0 when not known.
    """

    number: int
    text: bytes
    voice: str
    kind: int = 0
    signature: int = 0
    time: float = 0.0
    received: float = 0.0


row_of: Callable[[Iterable[Any]], DeltaRow] = partial(tuple.__new__, DeltaRow)
"""A row of its seven fields: quicker than by their names, for where there are thousands."""


class FilledRows(dict[int, DeltaRow]):
    """The rows of a stream by line number, while a compressor adds to them."""

    def ordered(self) -> Iterator[DeltaRow]:
        return map(self.__getitem__, sorted(self))

    def signatures(self) -> Iterable[tuple[int, int]]:
        """(line number, signature) of the rows that matter by themselves."""
        return [(number, row.signature) for number, row in self.items() if row.signature]

    def last_of_voices(self) -> dict[str, int]:
        return {row.voice: row.number for row in self.ordered()}


class RowColumns(Mapping[int, DeltaRow]):
    """The rows of a stream by line number, as a column for each field, which nothing changes.

    A row is made when it is asked for: a job of ten thousand streams has half a million of them, and few are shown.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        """columns: the fields of ``DeltaRow`` in their order, by ascending line number."""
        numbers, texts, voices, kinds, signatures, times, received = columns
        # As bare numbers where ranks differ, and as what may be shared where they do not.
        numbers, times, received = _plain("q", numbers), _plain("d", times), _plain("d", received)
        self.columns = numbers, texts, voices, kinds, signatures, times, received

    @classmethod
    def of(cls, rows: Mapping[int, DeltaRow]) -> "RowColumns":
        if isinstance(rows, cls):
            return rows
        return cls(list(zip(*map(rows.__getitem__, sorted(rows)), strict=True)) or [()] * len(DeltaRow._fields))

    def __getitem__(self, number: int) -> DeltaRow:
        numbers = self.columns[0]
        place = bisect_left(numbers, number)
        if place == len(numbers) or numbers[place] != number:
            raise KeyError(number)
        return row_of([column[place] for column in self.columns])

    def __iter__(self) -> Iterator[int]:
        return iter(self.columns[0])

    def __len__(self) -> int:
        return len(self.columns[0])

    def ordered(self) -> Iterator[DeltaRow]:
        return map(row_of, zip(*self.columns, strict=True))

    def signatures(self) -> Iterable[tuple[int, int]]:
        numbers, _, _, _, signatures, _, _ = self.columns
        return compress(zip(numbers, signatures, strict=True), signatures)

    def last_of_voices(self) -> dict[str, int]:
        if not any(self.columns[2]):
            return {"": self.columns[0][-1]} if self else {}
        return dict(zip(self.columns[2], self.columns[0], strict=True))

    def joined(self, other: "RowColumns") -> "RowColumns":
        """The rows of both, which mostly follow each other."""
        if not self:
            return other
        if not other:
            return self
        if self.columns[0][-1] < other.columns[0][0]:
            return RowColumns(list(map(add, self.columns, other.columns)))
        return RowColumns.of({**self, **other})


def _plain(kind: str, values: Sequence[Any]) -> "array[Any]":
    """A column of bare numbers, the same where it is one."""
    return values if isinstance(values, array) else array(kind, values)


class PointRow(NamedTuple):
    """A line of a progress series. own: its values where a site's own pattern read them; else they are read from
    ``line`` when a digest is made, for most points are dropped again.
    """

    number: int
    voice: str
    dialect: int
    line: bytes
    time: float
    received: float
    own: Point | None = None


@dataclass(slots=True)
class TemplateStats:
    """What is known of all lines of one shape. ranks: bit set of ``rank_code``."""

    count: int
    first: LinePosition
    first_text: bytes
    last: LinePosition
    last_text: bytes
    ranks: int
    kind: int
    filtered: str

    def add(self, other: "TemplateStats") -> None:
        self.count += other.count
        if other.first < self.first:
            self.first, self.first_text = other.first, other.first_text
        if other.last > self.last:
            self.last, self.last_text = other.last, other.last_text
        self.ranks |= other.ranks
        self.kind |= other.kind
        self.filtered = max(self.filtered, other.filtered)

    @property
    def is_folded(self) -> bool:
        """Whether it counts the lines of all shapes that a learned filter knows (``routine``)."""
        return self.filtered.startswith(LEARNED)

    def copy(self) -> "TemplateStats":
        return TemplateStats(
            self.count, self.first, self.first_text, self.last, self.last_text, self.ranks, self.kind, self.filtered
        )


@dataclass(slots=True)
class StreamDelta:
    """What one stream left. ranges: line numbers that were fed. rows, points: by line number. least: the smallest
    names of its shapes, which tell how many shapes it has.

    voices: voice -> bit set of the ranks it named itself (none for a bare ``3: ``). nodes: (rank, weight) -> (number,
    node) of the last line that says so: a job that is launched again has its ranks elsewhere.
    """

    ranges: NumberRanges = ()
    rows: FilledRows | RowColumns = field(default_factory=FilledRows)
    points: dict[int, PointRow] = field(default_factory=dict)
    voices: dict[str, int] = field(default_factory=dict)
    nodes: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)

    least: tuple[int, ...] = ()

    def add(self, other: "StreamDelta") -> None:
        self.ranges = join(self.ranges + other.ranges)
        self.add_shapes(other.least)
        self.rows = RowColumns.of(self.rows).joined(RowColumns.of(other.rows))
        self.points.update(other.points)
        for voice, ranks in other.voices.items():
            self.voices[voice] = self.voices.get(voice, 0) | ranks
        for key, node in other.nodes.items():
            self.nodes[key] = max(node, self.nodes.get(key, node))

    def covers(self, low: int, high: int) -> None:
        """Record that lines ``low`` to ``high`` were fed."""
        if self.ranges and self.ranges[-1][1] + 1 == low:
            self.ranges = (*self.ranges[:-1], (self.ranges[-1][0], high))
        else:
            self.ranges = join((*self.ranges, (low, high)))

    def add_shapes(self, shapes: Iterable[int]) -> None:
        """Record that these shapes were among its lines."""
        least = set(self.least)
        least.update(shapes)
        if len(least) > len(self.least):
            self.least = tuple(sorted(least)[:LEAST])

    @property
    def variety(self) -> int:
        """About how many shapes its lines have: from the smallest of their evenly spread names (a KMV sketch, after
        Bar-Yossef et al. 2002), within some 12 %.
        """
        if len(self.least) < LEAST:
            return len(self.least)
        return int((LEAST - 1) * (1 << 63) / max(self.least[-1], 1))

    @property
    def size(self) -> int:
        return len(self.rows) + len(self.points)


@dataclass(frozen=True, slots=True)
class Losses:
    """What is lost: middles of long lines, overwritten screen states, and what went over caps."""

    cut_lines: int = 0
    cut_bytes: int = 0
    painted: int = 0
    caps: frozenset[Cap] = frozenset()


@dataclass(slots=True)
class Delta:
    """The mergeable summary of what was fed. painted: bytes of screen states that others overwrote. caps: bounds that
    were reached somewhere on the way.
    """

    limits: CompressorLimits = field(default_factory=CompressorLimits)
    lines: int = 0
    bytes: int = 0
    cut_lines: int = 0
    cut_bytes: int = 0
    painted: int = 0
    caps: set[Cap] = field(default_factory=set)
    shapes: dict[int, TemplateStats] = field(default_factory=dict)
    shares: dict[Stream, StreamDelta] = field(default_factory=dict)

    @property
    def fatal(self) -> bool:
        """Some kept line carries the anchor of a root rule, or is the last line of a traceback."""
        for share in self.shares.values():
            for row in share.rows.ordered():
                if row.kind & FATAL:
                    return True
        return False

    @property
    def losses(self) -> Losses:
        return Losses(self.cut_lines, self.cut_bytes, self.painted, frozenset(self.caps))

    @property
    def size(self) -> int:
        """Number of entries, shapes included."""
        return len(self.shapes) + sum(share.size for share in self.shares.values())

    def share(self, stream: Stream) -> StreamDelta:
        """The stream's share, created if it is new."""
        share = self.shares.get(stream)
        if share is None:
            share = self.shares[stream] = StreamDelta()
        return share

    def add_shape(self, key: int, stat: TemplateStats) -> None:
        """Add what is known of a shape elsewhere."""
        own = self.shapes.get(key)
        if own is None:
            self.shapes[key] = stat.copy()
        else:
            own.add(stat)

    def add(self, other: "Delta") -> None:
        """Add ``other`` to this one, which must then be brought under its limits before it is read."""
        self.lines += other.lines
        self.bytes += other.bytes
        self.cut_lines += other.cut_lines
        self.cut_bytes += other.cut_bytes
        self.painted += other.painted
        self.caps |= other.caps
        for key, stat in other.shapes.items():
            self.add_shape(key, stat)
        for stream, share in other.shares.items():
            self.share(stream).add(share)


def join(ranges: Iterable[tuple[int, int]]) -> NumberRanges:
    """Closed ranges sorted, with overlapping and adjacent ones merged."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)
