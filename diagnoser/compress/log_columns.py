"""The rows of a log viewer as columns, in the order of the log.

Rows are all lines that a delta holds, also those of ranks that a digest leaves out, and for each template of which it
does not hold the first line, one row in that line's place.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from diagnoser.compress import times
from diagnoser.compress.attempt_log import AttemptLog
from diagnoser.compress.delta import DeltaRow, StreamDelta
from diagnoser.compress.digest import Digest
from diagnoser.compress.line_flags import LineFlag
from diagnoser.model import Stream, Template
from diagnoser.model.evidence import rank_nodes

Positions = NDArray[np.intp]
Mask = NDArray[np.bool_]
T = TypeVar("T")

NOBODY, SEVERAL = -1, -2
"""In the column of ranks: nothing tells whose line it is; a template that several ranks print."""
_ERRORS = int(LineFlag.ERROR | LineFlag.EXCEPTION | LineFlag.FATAL | LineFlag.DIVERGED)
_WARNING, _FRAME = int(LineFlag.WARNING), int(LineFlag.FRAME)
"""Plain numbers: flags of an enum are slow in a loop."""
_HEAD = 200
"""Bytes of a line in which its time is looked for."""


class LogLevel(StrEnum):
    """What a row is; the first that applies."""

    ERROR = "error"
    WARNING = "warning"
    STACK = "stack"  # a frame of a traceback or of a native stack
    OTHER = "other"  # held for its place: the ends of the log, the context of a line that matters
    ROUTINE = "routine"  # a template


LEVELS = tuple(LogLevel)


class _Row(NamedTuple):
    """template: index of the template of which it is the first line, or -1."""

    stream: int
    number: int
    text: bytes
    time: float
    rank: int
    node: str
    level: LogLevel
    template: int


@dataclass(frozen=True, slots=True)
class _Spread:
    """Ranks and nodes (as codes) of a row that stands for lines of several."""

    position: int
    ranks: NDArray[np.int64]
    nodes: NDArray[np.int64]


class LogColumns:
    """Position -> what is known of the row there. stream, node, source and level hold codes: indices into ``streams``,
    ``nodes``, ``sources`` and ``LEVELS``. gap: lines of the row's stream just before it that are not shown.
    """

    def __init__(self, log: AttemptLog) -> None:
        self.templates: Sequence[Template] = log.digest.templates
        self.streams: Sequence[Stream] = sorted(log.delta.shares)
        shares = [log.delta.shares[stream] for stream in self.streams]
        rows = list(_rows(log, self.streams, self.templates))
        rows.sort(key=lambda row: (row.time, row.stream, row.number))
        self.texts: Sequence[bytes] = [row.text for row in rows]
        self.time = np.array([row.time for row in rows], dtype=np.float64)
        self.stream = np.array([row.stream for row in rows], dtype=np.int64)
        self.number = np.array([row.number for row in rows], dtype=np.int64)
        self.rank = np.array([row.rank for row in rows], dtype=np.int64)
        self.template = np.array([row.template for row in rows], dtype=np.int64)
        self.level = _codes([row.level for row in rows], LEVELS)
        self.nodes: Sequence[str] = sorted({row.node for row in rows} | {""})
        self.node = _codes([row.node for row in rows], self.nodes)
        self.sources: Sequence[str] = sorted({stream.source for stream in self.streams})
        source_of = _codes([stream.source for stream in self.streams], self.sources)
        self.source = source_of[self.stream] if rows else self.stream
        self.gap = self._gaps(shares)
        self._spreads = tuple(self._spread())

    def __len__(self) -> int:
        return len(self.texts)

    def of_ranks(self, ranks: Collection[int]) -> Mask:
        """The rows of these ranks; NOBODY for those of none."""
        mask = np.isin(self.rank, list(ranks))
        for spread in self._spreads:
            mask[spread.position] = bool(np.isin(spread.ranks, list(ranks)).any())
        return mask

    def of_nodes(self, nodes: Collection[str]) -> Mask:
        codes = [code for code, node in enumerate(self.nodes) if node in nodes]
        mask = np.isin(self.node, codes)
        for spread in self._spreads:
            mask[spread.position] |= bool(np.isin(spread.nodes, codes).any())
        return mask

    def of_sources(self, sources: Collection[str]) -> Mask:
        return np.isin(self.source, [code for code, source in enumerate(self.sources) if source in sources])

    def of_levels(self, levels: Collection[LogLevel]) -> Mask:
        return np.isin(self.level, [code for code, level in enumerate(LEVELS) if level in levels])

    def rank_counts(self, mask: Mask) -> tuple[tuple[int, int], ...]:
        """Rank -> rows within the mask, the most frequent first; NOBODY for rows of none."""
        spread = [spread.ranks for spread in self._spreads if mask[spread.position]]
        ranks = np.concatenate([self.rank[mask], *spread])
        values, counts = np.unique(ranks[ranks >= NOBODY], return_counts=True)
        return _by_frequency(zip(values.tolist(), counts.tolist(), strict=True))

    def spread_ranks(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Positions of rows that stand for lines of several ranks, with those ranks."""
        return [(spread.position, spread.ranks) for spread in self._spreads]

    def node_counts(self, mask: Mask) -> tuple[tuple[str, int], ...]:
        """Node -> rows within the mask, the most frequent first; none for rows whose node is not known."""
        spread = [
            spread.nodes[spread.nodes != self.node[spread.position]]
            for spread in self._spreads
            if mask[spread.position]
        ]
        counts = np.bincount(np.concatenate([self.node[mask], *spread]), minlength=len(self.nodes)).tolist()
        return _by_frequency((node, count) for node, count in zip(self.nodes, counts, strict=True) if node and count)

    def source_counts(self, mask: Mask) -> tuple[tuple[str, int], ...]:
        counts = np.bincount(self.source[mask], minlength=len(self.sources)).tolist()
        return _by_frequency((source, count) for source, count in zip(self.sources, counts, strict=True) if count)

    def level_counts(self, mask: Mask) -> tuple[tuple[LogLevel, int], ...]:
        """In the order of the levels."""
        counts = np.bincount(self.level[mask], minlength=len(LEVELS)).tolist()
        return tuple((level, count) for level, count in zip(LEVELS, counts, strict=True) if count)

    def _gaps(self, shares: Sequence[StreamDelta]) -> NDArray[np.int64]:
        order = np.lexsort((self.number, self.stream))
        streams, numbers = self.stream[order], self.number[order]
        before = np.concatenate(([0], numbers[:-1]))[: len(order)]
        first = np.concatenate(([True], streams[1:] != streams[:-1]))[: len(order)]
        lows = np.array([share.ranges[0][0] - 1 if share.ranges else 0 for share in shares], dtype=np.int64)
        before = np.where(first, lows[streams] if len(lows) else 0, before)
        gaps = np.empty(len(order), dtype=np.int64)
        gaps[order] = np.maximum(numbers - before - 1, 0)
        return gaps

    def _spread(self) -> Iterator[_Spread]:
        code_of = {node: code for code, node in enumerate(self.nodes)}
        node_of = {int(rank): int(node) for rank, node in zip(self.rank, self.node, strict=True) if rank >= 0}
        unknown = code_of[""]
        for position in np.flatnonzero(self.rank == SEVERAL).tolist():
            ranks = sorted(self.templates[self.template[position]].ranks)
            nodes = sorted({node_of.get(rank, unknown) for rank in ranks} - {unknown})
            yield _Spread(position, np.array(ranks, dtype=np.int64), np.array(nodes, dtype=np.int64))


def stream_key(stream: Stream) -> str:
    """A short name of a stream for ids and addresses, the same wherever the stream is met."""
    place = f"{stream.source}\0{stream.node}\0{stream.rank}\0{stream.provenance}"
    return blake2b(place.encode(), digest_size=5).hexdigest()


def line_id(stream: Stream, number: int) -> str:
    """Names a line of an attempt for good, whatever lines come after it."""
    return f"{stream_key(stream)}-{number}"


def _rows(log: AttemptLog, streams: Sequence[Stream], templates: Sequence[Template]) -> Iterator[_Row]:
    shares, nodes = [log.delta.shares[stream] for stream in streams], rank_nodes((), log.digest.placements)
    held = [row for share in shares for row in share.rows.values()]
    year = times.year_of(map(_head, held), max((row.received for row in held), default=0.0))
    first_lines: dict[Stream, dict[int, int]] = {}
    for index, template in enumerate(templates):
        stream, number = template.first
        first_lines.setdefault(stream, {})[number] = index
    for code, (stream, share) in enumerate(zip(streams, shares, strict=True)):
        clock, speakers, moments = times.LogClock(year), _Speakers(log.digest, stream, share, nodes), [(0, 0.0)]
        template_of, rows = first_lines.get(stream, {}), sorted(share.rows.items())
        began = next(filter(None, (row.time or times.read_time(_head(row), year) for _, row in rows)), 0.0)
        for number, row in rows:
            # A banner without times is as old as the first line that has one, not as new as its arrival.
            time = clock.time(stream, row.time, _head(row), began or row.received)
            moments.append((number, time))
            rank, node = speakers.of(row)
            yield _Row(code, number, row.text, time, rank, node, _level(row.kind), template_of.get(number, -1))
        for number in template_of.keys() - share.rows.keys():
            template = templates[template_of[number]]
            time = moments[bisect_right(moments, (number, math.inf)) - 1][1] or moments[-1][1]
            rank = SEVERAL if len(template.ranks) > 1 else next(iter(template.ranks), stream.rank)
            node = nodes.get(rank, stream.node)
            text = template.text.encode()
            yield _Row(code, number, text, time, rank, node, LogLevel.ROUTINE, template_of[number])


class _Speakers:
    """Ranks and nodes of a stream's lines. What a voice says once holds for its other lines: reading a prefix costs.
    nodes: of ranks, as the log itself says."""

    def __init__(self, digest: Digest, stream: Stream, share: StreamDelta, nodes: Mapping[int, str]) -> None:
        self._digest = digest
        self._stream = stream
        self._nodes = nodes
        self._known: dict[str, tuple[int, str]] = {}
        self._unsettled = {voice for voice, ranks in share.voices.items() if ranks.bit_count() > 1}
        if stream.rank < 0 or not stream.node:
            self._unsettled.add("")

    def of(self, row: DeltaRow) -> tuple[int, str]:
        """Rank, or NOBODY, and node, or ""."""
        if row.voice in self._known:
            return self._known[row.voice]
        rank, node = self._digest.speaker(row.text, row.voice, self._stream)
        if node in ("", self._stream.node):  # a launcher's own host, where the stream is of all ranks
            node = self._nodes.get(rank, node)
        speaker = rank, node
        if row.voice not in self._unsettled:
            self._known[row.voice] = speaker
        return speaker


def _head(row: DeltaRow) -> str:
    return row.text[:_HEAD].decode("utf-8", "replace")


def _level(kind: int) -> LogLevel:
    if kind & _ERRORS:
        return LogLevel.ERROR
    if kind & _WARNING:
        return LogLevel.WARNING
    return LogLevel.STACK if kind & _FRAME else LogLevel.OTHER


def _codes(values: Iterable[T], names: Sequence[T]) -> NDArray[np.int64]:
    code_of = {name: code for code, name in enumerate(names)}
    return np.array([code_of[value] for value in values], dtype=np.int64)


def _by_frequency(counts: Iterable[tuple[T, int]]) -> tuple[tuple[T, int], ...]:
    return tuple(sorted(counts, key=lambda pair: -pair[1]))
