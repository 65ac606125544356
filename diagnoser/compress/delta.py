"""What a share of the lines of an attempt leaves behind, and how shares become one.

Everything in a ``Delta`` is a sum, a minimum, a maximum, a union, or a selection S with S(S(A) | S(B)) = S(A | B): of
each group the first, the last, or those of smallest hash. So any split into blocks, in any order, over any number of
replicas gives the same merged delta, as long as each line is fed once (the store guards that with covered ranges).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from diagnoser.compress.progress import Point
from diagnoser.compress.shapes import Kind
from diagnoser.compress.skeleton import identity
from diagnoser.model import Stream

T = TypeVar("T")
Ranges = tuple[tuple[int, int], ...]
Place = tuple[int, Stream]
"""(line number, stream): the order in which "first" and "last" are meant."""


class Budget(NamedTuple):
    """Of one signature: how many first and last lines are kept, and of how many voices the first one.

    before, after: lines of context in the same voice around the first and last ones.
    """

    first: int
    last: int
    voices: int
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what a delta holds. Whatever goes over them is counted, never silently lost."""

    shapes: int = 4096
    signatures: int = 2048
    extremes: int = 256  # of all lines that matter, the first and last ones are kept whatever their signature
    window: int = 64  # context is looked for this many lines before and after
    tails: int = 2  # last lines of each voice
    voices: int = 2048
    small: int = 200  # an input of so many lines is kept whole
    series: int = 256
    points: int = 256
    anchor: Budget = Budget(3, 2, 64, 1, 2)
    exception: Budget = Budget(3, 2, 64, 1, 2)
    frame: Budget = Budget(2, 1, 2, 0, 2)
    mapping: Budget = Budget(2, 1, 1024)
    error: Budget = Budget(2, 1, 2, 0, 1)
    warning: Budget = Budget(1, 0, 0)

    def budget(self, kind: Kind) -> Budget:
        """Of the highest kind that holds."""
        for flag, budget in (
            (Kind.ANCHOR, self.anchor),
            (Kind.EXCEPTION, self.exception),
            (Kind.FRAME, self.frame),
            (Kind.MAPPING, self.mapping),
            (Kind.ERROR, self.error),
        ):
            if kind & flag:
                return budget
        return self.warning


class Row(NamedTuple):
    """A kept line. signature: 0 where the line matters only because of its place. time: 0.0 when not known."""

    stream: Stream
    number: int
    text: str
    voice: str
    kind: Kind = Kind.NONE
    signature: int = 0
    time: float = 0.0
    received: float = 0.0

    @property
    def place(self) -> Place:
        return self.number, self.stream


class PointRow(NamedTuple):
    """A point of a progress series. rank: as the line's prefix or stream says, else -1."""

    stream: Stream
    number: int
    voice: str
    rank: int
    time: float
    point: Point


@dataclass(slots=True)
class Stat:
    """What is known of all lines of one shape. ranks: bit set of ``rank_code``."""

    count: int
    first: Place
    first_text: str
    last: Place
    last_text: str
    ranks: int
    kind: Kind
    filtered: str

    def add(self, other: "Stat") -> None:
        self.count += other.count
        if other.first < self.first:
            self.first, self.first_text = other.first, other.first_text
        if other.last > self.last:
            self.last, self.last_text = other.last, other.last_text
        self.ranks |= other.ranks
        self.kind |= other.kind
        self.filtered = max(self.filtered, other.filtered)

    def copy(self) -> "Stat":
        return Stat(
            self.count, self.first, self.first_text, self.last, self.last_text, self.ranks, self.kind, self.filtered
        )


@dataclass(slots=True)
class Delta:
    """The mergeable summary. voices: (stream, voice) -> ranks that spoke with it (a bare ``3: `` may be any)."""

    limits: Limits = Limits()
    lines: int = 0
    bytes: int = 0
    cut_lines: int = 0
    cut_bytes: int = 0
    ranges: dict[Stream, Ranges] = field(default_factory=dict)
    shapes: dict[int, Stat] = field(default_factory=dict)
    rows: dict[Place, Row] = field(default_factory=dict)
    points: dict[Place, PointRow] = field(default_factory=dict)
    voices: dict[tuple[Stream, str], int] = field(default_factory=dict)
    crowded: bool = False  # more shapes or signatures than the limits allow: learning stopped at some

    @property
    def fatal(self) -> bool:
        """Some line carries the anchor of a root rule, or a traceback ended in an exception."""
        return any(row.kind & Kind.FATAL or _raised(row) for row in self.rows.values())

    def add(self, other: "Delta") -> None:
        """Take over what ``other`` knows; call ``settle`` before reading."""
        self.lines += other.lines
        self.bytes += other.bytes
        self.cut_lines += other.cut_lines
        self.cut_bytes += other.cut_bytes
        self.crowded |= other.crowded
        for stream, ranges in other.ranges.items():
            self.ranges[stream] = join(self.ranges.get(stream, ()) + ranges)
        for key, stat in other.shapes.items():
            mine = self.shapes.get(key)
            if mine is None:
                self.shapes[key] = stat.copy()
            else:
                mine.add(stat)
        self.rows.update(other.rows)
        self.points.update(other.points)
        for voice, ranks in other.voices.items():
            self.voices[voice] = self.voices.get(voice, 0) | ranks

    def settle(self) -> None:
        """Bring everything back under its bounds. Does not change what any later merge will give."""
        self.shapes, more = _smallest(self.shapes, self.limits.shapes)
        self.crowded |= more
        if self.lines > self.limits.small:
            kept = set(self.essential())
            kept |= self.context(kept)
            kept |= self._edges()
            kept |= self._tails()
            self.rows = {place: self.rows[place] for place in sorted(kept)}
        self.points = {place: self.points[place] for place in sorted(self._chosen_points())}
        self.voices = dict(sorted(self.voices.items())[: 4 * self.limits.voices])

    def essential(self) -> Iterator[Place]:
        """Places of the lines that matter by themselves, within the budgets."""
        groups: dict[int, list[Row]] = {}
        for row in self.rows.values():
            if row.signature:
                groups.setdefault(row.signature, []).append(row)
        kept, more = _smallest(groups, self.limits.signatures)
        self.crowded |= more
        if more:
            every = sorted(row.place for group in groups.values() for row in group)
            yield from every[: self.limits.extremes]
            yield from every[-self.limits.extremes :]
        for group in kept.values():
            yield from self._within_budget(group)

    def _within_budget(self, group: list[Row]) -> Iterator[Place]:
        budget = self.limits.budget(group[0].kind)
        group.sort(key=lambda row: row.place)
        yield from (row.place for row in self._ends(group, budget))
        if budget.voices and len(group) > budget.first + budget.last:
            firsts: dict[tuple[str, Stream], Place] = {}
            for row in group:
                firsts.setdefault((row.voice, row.stream), row.place)
            yield from _smallest_voices(firsts, budget.voices)

    @staticmethod
    def _ends(group: list[Row], budget: Budget) -> list[Row]:
        if len(group) <= budget.first + budget.last:
            return group
        return group[: budget.first] + (group[-budget.last :] if budget.last else [])

    def context(self, kept: set[Place]) -> set[Place]:
        """Lines of the same voice just before and after the kept ones. Exact, because all lines within the window of
        a border of what was fed are held until the border is gone.
        """
        speech: dict[tuple[Stream, str], list[int]] = {}
        for number, stream in sorted(self.rows):
            speech.setdefault((stream, self.rows[number, stream].voice), []).append(number)
        found: set[Place] = set()
        for (stream, _), numbers in speech.items():
            for index, number in enumerate(numbers):
                if (number, stream) in kept:
                    found.update((near, stream) for near in self._near(numbers, index, self.rows[number, stream].kind))
        return found

    def _near(self, numbers: list[int], index: int, kind: Kind) -> Iterator[int]:
        budget, at = self.limits.budget(kind), numbers[index]
        for near in numbers[max(0, index - budget.before) : index]:
            if at - near <= self.limits.window:
                yield near
        for near in numbers[index + 1 : index + 1 + budget.after]:
            if near - at <= self.limits.window:
                yield near

    def _edges(self) -> set[Place]:
        window = self.limits.window
        return {
            (number, stream)
            for stream, ranges in self.ranges.items()
            for low, high in ranges
            for number in (*range(low, min(low + window, high + 1)), *range(max(low, high - window + 1), high + 1))
            if (number, stream) in self.rows
        }

    def _tails(self) -> set[Place]:
        speech: dict[tuple[str, Stream], list[Place]] = {}
        for place in sorted(self.rows, reverse=True):
            said = speech.setdefault((self.rows[place].voice, place[1]), [])
            if len(said) < self.limits.tails:
                said.append(place)
        chosen = _smallest_voices(speech, self.limits.voices)
        return {place for places in chosen for place in places}

    def _chosen_points(self) -> set[Place]:
        series: dict[tuple[str, Stream], list[PointRow]] = {}
        for row in self.points.values():
            series.setdefault((f"{row.voice}/{row.point.dialect}", row.stream), []).append(row)
        most = self.limits.points
        chosen: set[Place] = set()
        for rows in _smallest_voices(series, self.limits.series):
            chosen.update((row.number, row.stream) for row in (select_points(rows, most)))
        return chosen


def select_points(rows: list[PointRow], most: int) -> list[PointRow]:
    """A static choice of a series: its first and last points, its extremes and a sample spread by hash."""
    if len(rows) <= most // 4:
        return rows
    rows = sorted(rows, key=lambda row: row.number)
    by_hash = sorted(rows, key=lambda row: (row.number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFF)
    losses = [row for row in rows if row.point.loss is not None]
    odd = [row for row in losses if row.point.loss != row.point.loss or abs(row.point.loss or 0) == float("inf")]
    sane = sorted(
        (row for row in losses if row.point.loss == row.point.loss), key=lambda row: (row.point.loss or 0, row.number)
    )
    return rows[:8] + rows[-64:] + by_hash[: most // 2] + odd[:8] + odd[-8:] + sane[:2] + sane[-16:]


def merge(deltas: Iterable[Delta], limits: Limits | None = None) -> Delta:
    """One delta of all; the order does not matter."""
    merged = Delta(limits or Limits())
    for delta in deltas:
        merged.add(delta)
    merged.settle()
    return merged


def join(ranges: Ranges) -> Ranges:
    """Closed ranges sorted, with overlapping and adjacent ones as one."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def _raised(row: Row) -> bool:
    return bool(row.kind & Kind.EXCEPTION) and not row.kind & Kind.WARNING


def _smallest(groups: dict[int, T], most: int) -> tuple[dict[int, T], bool]:
    if len(groups) <= most:
        return groups, False
    return {key: groups[key] for key in sorted(groups)[:most]}, True


def _smallest_voices(groups: dict[tuple[str, Stream], T], most: int) -> Iterable[T]:
    if len(groups) <= most:
        return groups.values()
    order = sorted(groups, key=lambda key: identity(repr(key).encode()))
    return [groups[key] for key in order[:most]]
