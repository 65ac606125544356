"""Which lines of one chunk stay verbatim, and which numbers are read from it."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import cast

import numpy as np

from diagnoser.compress import loss_shifts
from diagnoser.compress.delta import Delta, DeltaRow, FilledRows, PointRow, StreamDelta, row_of
from diagnoser.compress.limits import LineBudget, budget_of
from diagnoser.compress.line_flags import IMPORTANT, LineFlag
from diagnoser.compress.lines import body_of
from diagnoser.compress.prefilter import kind_of_line
from diagnoser.compress.sampling import of_smallest_hash, sample, series_of
from diagnoser.compress.signature import signature
from diagnoser.compress.template_cache import CachedTemplate, TemplateCache
from diagnoser.compress.tokenized_chunk import Codes, TokenizedChunk
from diagnoser.dialects import mentions
from diagnoser.model import Stream
from diagnoser.structure.progress import loss_in

MOST_RANK = 16383
"""Larger numbers count something else."""
_POINT = 1024
"""Most bytes kept of a progress line, to be parsed later."""
_LATEST = 253_402_300_800.0
"""The year 10,000, in seconds: later times are no real clock's."""
_READ = int(IMPORTANT | LineFlag.PROGRESS | LineFlag.NODE)
_NODE = int(LineFlag.NODE)
_NUMBERS = int(LineFlag.PROGRESS | LineFlag.NODE)


CandidateRow = tuple[int, bytes, CachedTemplate, str, float, float]
"""A line that may become a row: number, line, shape, voice, time, received."""


def delta_row(row: CandidateRow) -> DeltaRow:
    number, line, shape, voice, time, received = row
    kind, mark = flags_and_signature(shape, line)
    return DeltaRow(number, line, voice, kind, mark, time, received)


def flags_and_signature(shape: CachedTemplate, line: bytes) -> tuple[int, int]:
    """(kind, signature) of a line; the signature is 0 when the line does not matter by itself."""
    watch = shape.watch
    if watch and watch.must and not watch.must.search(line):
        watch = None
    if not watch and not shape.tokens:
        return shape.kind, shape.mark
    kind = shape.kind
    if watch:
        kind |= kind_of_line(body_of(line)[1], watch)
    if not kind & IMPORTANT:
        return kind, 0
    return kind, signature(shape.id, kind, line, shape.tokens)


class RetentionPolicy:
    """Fills the shares of streams from a chunk, block by block."""

    def __init__(self, cut: TokenizedChunk, delta: Delta, cache: TemplateCache) -> None:
        self._cut, self._limits, self._cache = cut, delta.limits, cache
        self._small = delta.lines <= delta.limits.small
        self._plain = not any(template.varies for template in cut.templates)
        self._hot = np.array([bool(template.kind & _READ or template.watch) for template in cut.templates])

    def keep(self, number: int, share: StreamDelta, lasts: dict[Stream, dict[str, CandidateRow]]) -> None:
        """Choose the lines of a block.

        number: of the block in the chunk.
        share: what is stored of the block's stream; added to.
        lasts: the last line of each voice of each stream so far; updated.
        """
        cut, window = self._cut, self._limits.window
        self._block, self._share, self._held = cut.blocks[number], share, cast(FilledRows, share.rows)
        self._low, self._high = cut.starts[number], cut.starts[number + 1]
        self._first = self._block.first - self._low
        self._whole = self._small or self._high - self._low <= 2 * window
        if self._whole:
            self._span(self._low, self._high)
        else:
            self._span(self._low, self._low + window)
            self._span(self._high - window, self._high)
            if cut.heads:
                self._tails(lasts.setdefault(self._block.stream, {}))
        if self._is_looked_at(number):
            places = self._places()
            if not self._whole:
                self._important({shape: hits for shape, hits in places.items() if self._matters(shape)})
            self._read_numbers(places)

    def _is_looked_at(self, number: int) -> bool:
        """Whether lines of the block are looked at one by one. Where all are stored anyway, only for their numbers."""
        for shape in self._cut.block_shapes[number]:
            if not self._hot[shape]:
                continue
            if not self._whole:
                return True
            if self._cut.templates[shape].kind & _NUMBERS:
                return True
        return False

    def _read_numbers(self, places: dict[int, Codes]) -> None:
        """Read progress, and the nodes of ranks."""
        for shape, indices in places.items():
            template = self._cut.templates[shape]
            if template.dialect >= 0:
                self._series(template.dialect, indices)
            if template.kind & _NODE:
                self._nodes(indices)

    def _places(self) -> dict[int, Codes]:
        """List the indices of each shape whose lines are looked at one by one."""
        shapes = self._cut.shapes[self._low : self._high]
        indices = np.flatnonzero(self._hot[shapes])
        return grouped(shapes[indices], indices + self._low)

    def _matters(self, shape: int) -> bool:
        template = self._cut.templates[shape]
        if template.watch:
            return True
        return bool(template.kind & IMPORTANT)

    def _important(self, places: dict[int, Codes]) -> None:
        groups: dict[int, list[int]] = {}
        kinds: dict[int, int] = {}
        for number, indices in places.items():
            shape = self._cut.templates[number]
            if not shape.varies:
                groups.setdefault(shape.mark, []).extend(indices.tolist())
                kinds[shape.mark] = shape.kind
                continue
            for index in indices.tolist():
                kind, mark = flags_and_signature(shape, self._cut.lines[index])
                if mark:
                    groups.setdefault(mark, []).append(index)
                    kinds[mark] = kind
        for mark, hits in groups.items():
            self._group(budget_of(kinds[mark]), sorted(hits))

    def _rows(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._row(index)

    def _span(self, low: int, high: int) -> None:
        """A row for each line of a part of the block."""
        cut, block = self._cut, self._block
        numbers, lines = range(self._first + low, self._first + high), cut.lines[low:high]
        templates = list(map(cut.templates.__getitem__, cut.shapes[low:high].tolist()))
        if self._plain:
            kinds = [(template.kind, template.mark) for template in templates]
        else:
            kinds = list(map(flags_and_signature, templates, lines))
        times: Iterable[float] = repeat(0.0)
        if block.times is not None:
            times = map(_real, block.times[low - self._low : high - self._low])
        voices = cut.voices_of(low, high)
        arrivals = map(block.received_at, numbers) if block.arrivals else repeat(block.received)
        rows = (
            (number, line, voice, kind, mark, time, received)
            for number, line, voice, (kind, mark), time, received in zip(
                numbers, lines, voices, kinds, times, arrivals, strict=False
            )
        )
        self._held.update(zip(numbers, map(row_of, rows), strict=True))

    def _tails(self, lasts: dict[str, CandidateRow]) -> None:
        """The last line of each voice, found in C, and turned into a row only when no later one can follow."""
        heads = self._cut.line_heads[self._low : self._high]
        last_of_head = np.full(len(self._cut.heads), -1)
        last_of_head[heads] = np.arange(self._low, self._high)
        last_indices: dict[str, int] = {}
        for voice, index in zip(self._cut.voices, last_of_head.tolist(), strict=True):
            if voice and index > last_indices.get(voice, -1):
                last_indices[voice] = index
        for voice, row in zip(last_indices, self._candidates(list(last_indices.values())), strict=True):
            before = lasts.get(voice)
            if before is None or before[0] < row[0]:
                lasts[voice] = row

    def _group(self, budget: LineBudget, indices: list[int]) -> None:
        few = len(indices) <= budget.first + budget.last
        ends = indices if few else indices[: budget.first] + indices[len(indices) - budget.last :]
        for index in ends:
            self._row(index)
            if not self._whole:
                self._around(index, budget)
        if budget.voices and not few:
            voices = self._cut.line_voices
            self._rows({voices[index]: index for index in reversed(indices)}.values())

    def _around(self, index: int, budget: LineBudget) -> None:
        """Context in the same voice."""
        voices, window = self._cut.line_voices, self._limits.window
        if budget.before:
            low = max(self._low, index - window)
            for back in _first_of(voices[index], voices[low:index][::-1], budget.before):
                self._row(index - 1 - back)
        if budget.after:
            high = min(self._high, index + 1 + window)
            for on in _first_of(voices[index], voices[index + 1 : high], budget.after):
                self._row(index + 1 + on)

    def _row(self, index: int) -> None:
        """A row is the same whatever it is kept for, so that rows from different splits agree."""
        number = self._first + index
        if number not in self._held:
            self._held[number] = delta_row(self._candidate(index))

    def _candidate(self, index: int) -> CandidateRow:
        block, cut = self._block, self._cut
        number, shape = self._first + index, cut.templates[cut.shapes[index]]
        return number, cut.lines[index], shape, self._voice(index), self._time(index), block.received_at(number)

    def _candidates(self, indices: list[int]) -> Iterator[CandidateRow]:
        """The same of many lines."""
        cut, block, shapes = self._cut, self._block, self._cut.shapes[indices].tolist()
        heads = cut.line_heads[indices].tolist() if cut.heads else []
        numbers = list(map(self._first.__add__, indices))
        return zip(
            numbers,
            map(cut.lines.__getitem__, indices),
            map(cut.templates.__getitem__, shapes),
            map(cut.voices.__getitem__, heads) if heads else repeat(""),
            map(self._time, indices) if block.times is not None else repeat(0.0),
            map(block.received_at, numbers) if block.arrivals else repeat(block.received),
            strict=False,
        )

    def _voice(self, index: int) -> str:
        if not self._cut.heads:
            return ""
        return self._cut.voices[int(self._cut.line_heads[index])]

    def _time(self, index: int) -> float:
        if self._block.times is None:
            return 0.0
        return _real(self._block.times[index - self._low])

    def _series(self, dialect: int, indices: Codes) -> None:
        """Only lines that the static choice can keep are touched: a long steady series costs almost nothing."""
        speech = {"": indices}
        if self._cut.heads:
            names = list(dict.fromkeys(self._cut.voices))
            voice_numbers = list(map(dict(zip(names, range(len(names)), strict=True)).__getitem__, self._cut.voices))
            voices = np.array(voice_numbers)[self._cut.line_heads[indices]]
            speech = {names[number]: places for number, places in grouped(voices, indices).items()}
        series = {series_of(voice, dialect): places for voice, places in speech.items()}
        chosen = set(indices[-self._limits.latest :].tolist())
        for places in of_smallest_hash(series, self._limits.series):
            spread = (sample(places + self._first, self._limits) - self._first).tolist()
            chosen.update(spread)
            if len(spread) < len(places):
                chosen.update(self._near_rises(places.tolist(), spread))
        for index in chosen:
            self._point(index, dialect)

    def _near_rises(self, places: list[int], spread: list[int]) -> Iterator[int]:
        """The points around which the loss rises and stays up, looked for between those of a sample.

        places: all points of a series. spread: the sample.
        """

        def loss_at(place: int) -> float | None:
            return loss_in(self._cut.lines[places[place]])

        sampled = [bisect_left(places, index) for index in spread]
        losses = list(map(loss_at, sampled))
        rises = []
        for rise in loss_shifts.rises(losses, self._limits.rises):
            before = next((place for place in range(rise - 1, -1, -1) if losses[place] is not None), rise - 1)
            rises.append(loss_shifts.first_above(loss_at, sampled[before], sampled[rise]))
        return map(places.__getitem__, loss_shifts.around(rises, len(places)))

    def _point(self, index: int, dialect: int) -> None:
        number, line = self._first + index, self._cut.lines[index]
        own = self._cache.own_point(dialect, line)
        self._share.points[number] = PointRow(
            number, self._voice(index), dialect, line[:_POINT], self._time(index), self._block.received_at(number), own
        )

    def _nodes(self, indices: Codes) -> None:
        for index in indices.tolist():
            if reading := mentions.placed(self._cut.lines[index].decode("latin-1")):
                rank, weight, node = reading
                self._introduces(self._voice(index), rank, weight)
                placed = self._first + index, node
                self._share.nodes[rank, weight] = max(placed, self._share.nodes.get((rank, weight), placed))

    def _introduces(self, voice: str, rank: int, weight: int) -> None:
        """A process that says on which node its rank runs says which rank it is, where its label does not."""
        if voice[:1] not in ("p", "k"):
            return
        if weight != mentions.SURE:
            return
        if rank <= MOST_RANK:
            self._share.voices[voice] = self._share.voices.get(voice, 0) | 1 << rank


def grouped(keys: Codes, values: Codes) -> dict[int, Codes]:
    """The values of each key, in the order given."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return dict(zip(keys[starts].tolist(), np.split(values, starts[1:]), strict=True))


def _real(time: float) -> float:
    return time if 0.0 < time < _LATEST else 0.0  # also where it is no number


def _first_of(voice: str, voices: list[str], wanted: int) -> Iterator[int]:
    """The first places of a voice."""
    place = -1
    for _ in range(wanted):
        try:
            place = voices.index(voice, place + 1)
        except ValueError:
            return
        yield place
