"""Which parts of a delta stay. Every choice here survives merging: S(S(A) | S(B)) = S(A | B)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import product
from typing import TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from diagnoser.compress import loss_shifts
from diagnoser.compress.delta import Delta, DeltaRow, FilledRows, StreamDelta
from diagnoser.compress.limits import DEFAULT_LIMITS, CompressorLimits, budget_of
from diagnoser.compress.line_flags import IMPORTANT, LineFlag
from diagnoser.model import Cap, Stream

T = TypeVar("T")
K = TypeVar("K")
_SPREAD, _HASH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFFFFFFFFFFFF)
Spot = tuple[int, int]
"""(line number, index of its stream among the sorted streams)."""


class Chosen:
    """Lines of a delta that matter by themselves, and their context."""

    def __init__(self, delta: Delta) -> None:
        self.streams: list[Stream] = sorted(delta.shares)
        self._shares = list(map(delta.shares.__getitem__, self.streams))
        self._name = cache(lambda index: repr(self.streams[index]))
        self._limits = delta.limits
        self.essential: set[Spot] = set()
        self.full = False
        ends: set[Spot] = set()
        for group in self._groups():
            self._budgeted(group, ends)
        self.context = self._context(ends) - self.essential

    def _groups(self) -> Iterable[list[Spot]]:
        groups: dict[int, list[Spot]] = {}
        for index, share in enumerate(self._shares):
            for number, signature in share.rows.signatures():
                groups.setdefault(signature, []).append((number, index))
        if len(groups) > self._limits.signatures:
            self.full = True
            # Of signatures over the bound the very first or last line stays, if it is among the first or last of all.
            self.essential.update(sorted(map(min, groups.values()))[: self._limits.extremes])
            self.essential.update(sorted(map(max, groups.values()))[-self._limits.extremes :])
            return list(map(groups.__getitem__, sorted(groups)[: self._limits.signatures]))
        return groups.values()

    def row(self, spot: Spot) -> DeltaRow:
        return self._shares[spot[1]].rows[spot[0]]

    def _budgeted(self, group: list[Spot], ends: set[Spot]) -> None:
        group.sort()
        kind = self.row(group[0]).kind
        if kind & IMPORTANT == LineFlag.HEADING:  # who printed what is below is known of a rank's own stream
            group = [spot for spot in group if self.streams[spot[1]].rank < 0]
        budget = budget_of(kind)
        chosen = first_and_last(group, budget.first, budget.last)
        ends.update(chosen)
        self.essential.update(chosen)
        if budget.voices and len(group) > len(chosen):
            firsts = {(self.row(spot).voice, spot[1]): spot for spot in reversed(group)}
            spots = {f"{voice}\0{self._name(index)}": spot for (voice, index), spot in firsts.items()}
            self.essential.update(of_smallest_hash(spots, budget.voices))

    def _context(self, ends: set[Spot]) -> set[Spot]:
        """Lines of the same voice just before and after the kept ones. Exact, because all lines within the window of
        a border of what was fed are held until the border is gone.
        """
        context: set[Spot] = set()
        for stream in {stream for _, stream in ends}:
            share = self._shares[stream]
            speech: dict[str, list[int]] = {}
            for row in share.rows.ordered():
                speech.setdefault(row.voice, []).append(row.number)
            for numbers in speech.values():
                for index, number in enumerate(numbers):
                    if (number, stream) in ends:
                        context.update(product(self._near(numbers, index, share.rows[number].kind), (stream,)))
        return context

    def _near(self, numbers: list[int], index: int, kind: int) -> Iterator[int]:
        budget, center = budget_of(kind), numbers[index]
        for near in numbers[max(0, index - budget.before) : index + 1 + budget.after]:
            if 0 < abs(near - center) <= self._limits.window:
                yield near


def apply_limits(delta: Delta) -> Delta:
    """Bring a delta back under its limits, in place. Does not change the result of any later merge."""
    limits = delta.limits
    if len(delta.shapes) > limits.shapes:
        delta.caps.add(Cap.SHAPES)
        delta.shapes = _only(delta.shapes, sorted(delta.shapes)[: limits.shapes])
    if delta.lines > limits.small:
        signatures = set[int]()
        for share in delta.shares.values():
            signatures.update(signature for _, signature in share.rows.signatures())
        if len(signatures) > limits.signatures:
            delta.caps.add(Cap.LINES)
        _choose_rows(delta)
    for share in delta.shares.values():
        delta.caps |= _bound_series(share, limits)
    return delta


def _choose_rows(delta: Delta) -> None:
    """Keep of each stream the rows that are chosen, near its edges, or the last of a voice."""
    long = [stream for stream, share in delta.shares.items() if not _is_all_edges(share, delta.limits)]
    if not long:
        return
    chosen, numbers_kept = Chosen(delta), defaultdict[Stream, set[int]](set)
    for number, index in (*chosen.essential, *chosen.context):
        numbers_kept[chosen.streams[index]].add(number)
    for stream in long:
        share = delta.shares[stream]
        numbers = numbers_kept[stream] | _edges(share, delta.limits.window) | _tails(share, delta.limits)
        share.rows = FilledRows(_only(share.rows, sorted(numbers)))


def _is_all_edges(share: StreamDelta, limits: CompressorLimits) -> bool:
    """Whether all lines of a stream are near its edges."""
    return len(share.ranges) == 1 and share.ranges[0][1] - share.ranges[0][0] < 2 * limits.window


def merge(deltas: Iterable[Delta], limits: CompressorLimits = DEFAULT_LIMITS) -> Delta:
    """All deltas as one, in any order. Pass all at once: each call applies the limits once."""
    merged = Delta(limits)
    for delta in deltas:
        merged.add(delta)
    return apply_limits(merged)


def _edges(share: StreamDelta, window: int) -> set[int]:
    near: set[int] = set()
    for low, high in share.ranges:
        near.update(range(low, min(low + window, high + 1)), range(max(low, high - window + 1), high + 1))
    return near & share.rows.keys()


def _tails(share: StreamDelta, limits: CompressorLimits) -> set[int]:
    """The last line of each voice."""
    lasts = share.rows.last_of_voices()
    lasts.pop("", None)
    return set(of_smallest_hash(lasts, limits.voices))


def _bound_series(share: StreamDelta, limits: CompressorLimits) -> set[Cap]:
    """Bring points, voices and nodes under their limits; returns the caps that were reached."""
    few = min(limits.latest, limits.series, limits.voices, limits.nodes)
    if max(len(share.points), len(share.voices), len(share.nodes)) <= few:
        return set()
    series: dict[str, list[int]] = {}
    for number, row in share.points.items():
        series.setdefault(series_of(row.voice, row.dialect), []).append(number)
    chosen = set(sorted(share.points)[-limits.latest :])
    for numbers in of_smallest_hash(series, limits.series):
        if len(numbers) > limits.spread:
            ordered = sorted(numbers)
            chosen.update(_near_rises(share, ordered, limits.rises))
            numbers = sample(np.array(ordered), limits).tolist()
        chosen.update(numbers)
    share.points = _only(share.points, sorted(chosen))
    caps = set[Cap]()
    if len(series) > limits.series:
        caps.add(Cap.SERIES)
    if len(share.voices) > limits.voices:
        caps.add(Cap.VOICES)
        keys = sorted(share.voices, key=_hash)[: limits.voices]
        share.voices = _only(share.voices, keys)
    if len(share.nodes) > limits.nodes:
        caps.add(Cap.NODES)
        share.nodes = _only(share.nodes, sorted(share.nodes)[: limits.nodes])
    return caps


def _near_rises(share: StreamDelta, numbers: list[int], most: int) -> Iterator[int]:
    """The points of a series around which its loss rises and stays up."""
    losses = loss_shifts.losses_of([share.points[number].line for number in numbers])
    return map(numbers.__getitem__, loss_shifts.around(loss_shifts.rises(losses, most), len(numbers)))


def series_of(voice: str, dialect: int) -> str:
    return f"{voice}/{dialect}"


def sample(numbers: NDArray[np.int64], limits: CompressorLimits) -> NDArray[np.int64]:
    """A sample of a series by ascending line numbers alone: the first, the last, and some spread by hash."""
    if len(numbers) <= limits.spread:
        return numbers
    hashes = (numbers.astype(np.uint64) * _SPREAD) & _HASH
    spread = np.argpartition(hashes, limits.spread)[: limits.spread]
    places = np.arange(len(numbers))
    return numbers[sorted({*places[: limits.first].tolist(), *places[-limits.last :].tolist(), *spread.tolist()})]


def first_and_last(group: list[Spot], first: int, last: int) -> list[Spot]:
    """A sorted group's ends."""
    if len(group) <= first + last:
        return group
    return group[:first] + group[len(group) - last :]


def _only(table: Mapping[K, T], keys: Iterable[K]) -> dict[K, T]:
    return {key: table[key] for key in keys}


def of_smallest_hash(groups: dict[str, T], most: int) -> Iterable[T]:
    if len(groups) <= most:
        return groups.values()
    return list(map(groups.__getitem__, sorted(groups, key=_hash)[:most]))


@lru_cache(maxsize=65536)
def _hash(name: str) -> tuple[int, str]:
    return crc32(name.encode()), name
