"""The rows of a log viewer as columns, in the order of the log.

Rows are all lines that a delta holds, also those of ranks that a digest leaves out, and for each template of which it
does not hold the first line, one row in that line's place.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from itertools import accumulate, chain, count, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from diagnoser.compress.attempt_log import AttemptLog
from diagnoser.compress.delta import DeltaRow, StreamDelta
from diagnoser.compress.digest import Digest
from diagnoser.compress.line_flags import LineFlag
from diagnoser.model import Stream, Template
from diagnoser.model.evidence import rank_nodes
from diagnoser.structure import times

Positions = NDArray[np.intp]
Mask = NDArray[np.bool_]
T = TypeVar("T")

NOBODY, SEVERAL = -1, -2
"""In the column of ranks: nothing tells whose line it is; a template that several ranks print."""
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
_ROUTINE, _OTHER = LEVELS.index(LogLevel.ROUTINE), LEVELS.index(LogLevel.OTHER)
_FLAGS = {
    LogLevel.ERROR: LineFlag.ERROR | LineFlag.EXCEPTION | LineFlag.FATAL | LineFlag.DIVERGED,
    LogLevel.WARNING: LineFlag.WARNING,
    LogLevel.STACK: LineFlag.FRAME,
}
"""Of a line that is of a level; the first that applies."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Ranks and nodes (as codes) of a row that stands for lines of several."""

    position: int
    ranks: NDArray[np.int64]
    nodes: NDArray[np.int64]


class LogColumns:
    """Position -> what is known of the row there. stream, node, source and level hold codes: indices into ``streams``,
    ``nodes``, ``sources`` and ``LEVELS``. gap: lines of the row's stream just before it that are not shown. received:
    when the first and the last line arrived, zeros when not known.
    """

    def __init__(self, log: AttemptLog) -> None:
        self.templates: Sequence[Template] = log.digest.templates
        self.streams: Sequence[Stream] = sorted(log.delta.shares)
        source_of = [stream.source for stream in self.streams]
        self.sources: Sequence[str] = sorted(set(source_of))
        shares = list(map(log.delta.shares.__getitem__, self.streams))
        rows = _held(log, self.streams, shares)
        rows.add_templates(self.templates, self.streams, rank_nodes((), log.digest.placements))
        order = np.lexsort((rows.number, rows.stream, rows.time))
        self.texts: Sequence[bytes] = list(map(rows.text.__getitem__, order.tolist()))
        self.time = np.array(rows.time, dtype=np.float64)[order]
        self.stream = np.array(rows.stream, dtype=np.int64)[order]
        self.number = np.array(rows.number, dtype=np.int64)[order]
        self.rank = np.array(rows.rank, dtype=np.int64)[order]
        self.template = np.array(rows.template, dtype=np.int64)[order]
        self.level = np.array(rows.level, dtype=np.int64)[order]
        self.nodes: Sequence[str] = sorted({*rows.node, ""})
        self.node = _codes(rows.node, self.nodes)[order]
        self.source = _codes(source_of, self.sources)[self.stream]
        self.received = rows.received
        self.gap = self._gaps(shares)
        self.spreads = tuple(self._spread())

    def __len__(self) -> int:
        return len(self.texts)

    def of_ranks(self, ranks: Collection[int]) -> Mask:
        """The rows of these ranks; NOBODY for those of none."""
        mask = np.isin(self.rank, list(ranks))
        for spread in self.spreads:
            mask[spread.position] = bool(np.isin(spread.ranks, list(ranks)).any())
        return mask

    def of_nodes(self, nodes: Collection[str]) -> Mask:
        codes = codes_among(self.nodes, nodes)
        mask = np.isin(self.node, codes)
        for spread in self.spreads:
            mask[spread.position] |= bool(np.isin(spread.nodes, codes).any())
        return mask

    def of_sources(self, sources: Collection[str]) -> Mask:
        return np.isin(self.source, codes_among(self.sources, sources))

    def of_levels(self, levels: Collection[LogLevel]) -> Mask:
        return np.isin(self.level, codes_among(LEVELS, levels))

    def rank_counts(self, mask: Mask) -> tuple[tuple[int, int], ...]:
        """Rank -> rows within the mask, the most frequent first; NOBODY for rows of none."""
        parts = [self.rank[mask]]
        for spread in self.spreads:
            if mask[spread.position]:
                parts.append(spread.ranks)
        ranks = np.concatenate(parts)
        values, counts = np.unique(ranks[ranks >= NOBODY], return_counts=True)
        return _by_frequency(zip(values.tolist(), counts.tolist(), strict=True))

    def node_counts(self, mask: Mask) -> tuple[tuple[str, int], ...]:
        """Node -> rows within the mask, the most frequent first; none for rows whose node is not known."""
        parts = [self.node[mask]]
        for spread in self.spreads:
            if mask[spread.position]:
                parts.append(spread.nodes[spread.nodes != self.node[spread.position]])
        nodes = np.concatenate(parts)
        return _by_frequency(_counts(nodes[nodes != self.nodes.index("")], self.nodes))

    def source_counts(self, mask: Mask) -> tuple[tuple[str, int], ...]:
        return _by_frequency(_counts(self.source[mask], self.sources))

    def level_counts(self, mask: Mask) -> tuple[tuple[LogLevel, int], ...]:
        """In the order of the levels."""
        return tuple(_counts(self.level[mask], LEVELS))

    def _gaps(self, shares: Sequence[StreamDelta]) -> NDArray[np.int64]:
        order = np.lexsort((self.number, self.stream))
        streams, numbers = self.stream[order], self.number[order]
        before = np.concatenate(([0], numbers[:-1]))[: len(order)]
        first = np.concatenate(([True], streams[1:] != streams[:-1]))[: len(order)]
        lows = np.array([share.ranges[0][0] - 1 if share.ranges else 0 for share in shares], dtype=np.int64)
        before = np.where(first, lows[streams], before)
        gaps = np.empty(len(order), dtype=np.int64)
        gaps[order] = np.maximum(numbers - before - 1, 0)
        return gaps

    def _spread(self) -> Iterator[Spread]:
        node_of = dict(zip(self.rank.tolist(), self.node.tolist(), strict=True))
        unknown = self.nodes.index("")
        for position in np.flatnonzero(self.rank == SEVERAL).tolist():
            ranks = sorted(self.templates[self.template[position]].ranks)
            nodes = sorted({node_of.get(rank, unknown) for rank in ranks} - {unknown})
            yield Spread(position, np.array(ranks, dtype=np.int64), np.array(nodes, dtype=np.int64))


def stream_key(stream: Stream) -> str:
    """A short name of a stream for ids and addresses, the same wherever the stream is met."""
    place = f"{stream.source}\0{stream.node}\0{stream.rank}\0{stream.provenance}"
    return blake2b(place.encode(), digest_size=5).hexdigest()


def line_id(stream: Stream, number: int) -> str:
    """Names a line of an attempt for good, whatever lines come after it."""
    return f"{stream_key(stream)}-{number}"


@dataclass(slots=True)
class _Rows:
    """The rows of all streams, a list for each field. Those of one stream stand together, by number; behind them all,
    those of templates.

    rank, node: who speaks. level: index into ``LEVELS``. template: index of the template of which it is the first line,
    or -1. begins: where those of each stream begin, and the last ones end. received: the first and the last arrival.
    """

    stream: list[int]
    number: list[int]
    text: list[bytes]
    time: list[float]
    rank: list[int]
    node: list[str]
    level: list[int]
    template: list[int]
    begins: list[int]
    received: tuple[float, float]

    def add_templates(self, templates: Sequence[Template], streams: Sequence[Stream], nodes: Mapping[int, str]) -> None:
        """nodes: of ranks, as the log itself says."""
        code_of = dict(zip(streams, count(), strict=False))
        for index, template in enumerate(templates):
            stream, number = template.first
            code = code_of[stream]
            begin, end = self.begins[code : code + 2]
            place = bisect_right(self.number, number, begin, end) - 1
            if place >= begin and self.number[place] == number:
                self.template[place] = index
                continue
            rank = SEVERAL if len(template.ranks) > 1 else next(iter(template.ranks), stream.rank)
            self.stream.append(code)
            self.number.append(number)
            self.text.append(template.text.encode())
            self.time.append(self._time_at(place, begin, end))
            self.rank.append(rank)
            self.node.append(nodes.get(rank, stream.node))
            self.level.append(_ROUTINE)
            self.template.append(index)

    def _time_at(self, place: int, begin: int, end: int) -> float:
        """The time of a row, else of the last one of its stream, which has those from ``begin`` to ``end``."""
        if begin == end:
            return 0.0
        before = self.time[place] if place >= begin else 0.0
        return before or self.time[end - 1]


def _held(log: AttemptLog, streams: Sequence[Stream], shares: Sequence[StreamDelta]) -> _Rows:
    """The lines that a delta holds."""
    held = [list(share.rows.ordered()) for share in shares]
    numbers, texts, _, kinds, _, known, received = (
        zip(*chain.from_iterable(held), strict=True) if any(held) else ((),) * 7
    )
    year = times.year_of((text[:_HEAD].decode("utf-8", "replace") for text in texts), max(received, default=0.0))
    begins = [0, *accumulate(map(len, held))]
    nodes = rank_nodes((), log.digest.placements)
    row_ranks, row_nodes, moments = list[int](), list[str](), list[float]()
    for stream, share, rows, (begin, end) in zip(streams, shares, held, pairwise(begins), strict=True):
        for rank, node in map(_Speakers(log.digest, stream, share, nodes).of, rows):
            row_ranks.append(rank)
            row_nodes.append(node)
        moments += times.moments(known[begin:end], texts[begin:end], received[begin:end], year)
    arrivals = list(filter(None, received))
    return _Rows(
        stream=np.repeat(np.arange(len(held)), list(map(len, held))).tolist(),
        number=list(numbers),
        text=list(texts),
        time=moments,
        rank=row_ranks,
        node=row_nodes,
        level=_levels(np.array(kinds, dtype=np.int64)).tolist(),
        template=[-1] * len(numbers),
        begins=begins,
        received=(min(arrivals, default=0.0), max(arrivals, default=0.0)),
    )


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
        rank, node = self._digest.speaker(row.text, row.voice, self._stream, row.number)
        if node in ("", self._stream.node):  # a launcher's own host, where the stream is of all ranks
            node = self._nodes.get(rank, node)
        speaker = rank, node
        if row.voice not in self._unsettled:
            self._known[row.voice] = speaker
        return speaker


def _levels(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The codes of levels, from flags of lines."""
    applies = [(kinds & int(flags)) != 0 for flags in _FLAGS.values()]
    return np.select(applies, list(map(LEVELS.index, _FLAGS)), _OTHER)


def _codes(values: Iterable[T], names: Sequence[T]) -> NDArray[np.int64]:
    code_of = dict(zip(names, count(), strict=False))
    return np.array(list(map(code_of.__getitem__, values)), dtype=np.int64)


def codes_among(names: Sequence[T], wanted: Collection[T]) -> list[int]:
    return [code for code, name in enumerate(names) if name in wanted]


def _counts(codes: NDArray[np.int64], names: Sequence[T]) -> list[tuple[T, int]]:
    """(name, how often its code stands there) of the names that occur, in their order."""
    counts = np.bincount(codes, minlength=len(names)).tolist()
    return [(name, number) for name, number in zip(names, counts, strict=True) if number]


def _by_frequency(counts: Iterable[tuple[T, int]]) -> tuple[tuple[T, int], ...]:
    return tuple(sorted(counts, key=lambda pair: -pair[1]))
