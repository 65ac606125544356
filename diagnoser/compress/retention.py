"""Which lines of one chunk stay verbatim, and which numbers are read from it."""

from collections.abc import Iterable, Iterator
from functools import cached_property

from diagnoser.compress.delta import Delta, DeltaRow, PointRow, StreamDelta
from diagnoser.compress.limits import LineBudget, budget_of
from diagnoser.compress.line_flags import IMPORTANT, LineFlag
from diagnoser.compress.lines import body_of
from diagnoser.compress.prefilter import kind_of_line
from diagnoser.compress.sampling import of_smallest_hash, sample, series_of
from diagnoser.compress.signature import signature
from diagnoser.compress.template_cache import CachedTemplate, TemplateCache
from diagnoser.compress.tokenized_chunk import TokenizedChunk
from diagnoser.dialects import mentions
from diagnoser.dialects.prefixes import read_prefix
from diagnoser.model import LineBlock

MOST_RANK = 16383
"""Larger numbers count something else."""
_POINT = 1024
"""Most bytes kept of a progress line, to be parsed later."""
_LATEST = 253_402_300_800.0
"""The year 10,000, in seconds: later times are no real clock's."""
_READ = int(IMPORTANT | LineFlag.PROGRESS | LineFlag.NODE)
_NODE = int(LineFlag.NODE)


CandidateRow = tuple[int, bytes, CachedTemplate, str, float, float]
"""A line that may become a row: number, line, shape, voice, time, received."""


def delta_row(row: CandidateRow) -> DeltaRow:
    number, line, shape, voice, time, received = row
    kind, mark = flags_and_signature(shape, line)
    return DeltaRow(number, line, voice, kind, mark, time, received)


def flags_and_signature(shape: CachedTemplate, line: bytes) -> tuple[int, int]:
    """(kind, signature) of a line; the signature is 0 when the line does not matter by itself."""
    if not shape.watch and not shape.tokens:
        return shape.kind, shape.mark
    kind = shape.kind
    if shape.watch:
        kind |= kind_of_line(body_of(line)[1], shape.watch)
    if not kind & IMPORTANT:
        return kind, 0
    return kind, signature(shape.id, kind, line, shape.tokens)


class RetentionPolicy:
    """Fills a share from a chunk."""

    def __init__(
        self, block: LineBlock, cut: TokenizedChunk, share: StreamDelta, delta: Delta, shapes: TemplateCache
    ) -> None:
        self._shapes = shapes
        self._block, self._cut, self._share, self._limits = block, cut, share, delta.limits
        self._whole = delta.lines <= delta.limits.small or len(cut.lines) <= 2 * delta.limits.window

    def keep(self, lasts: dict[str, CandidateRow]) -> None:
        """lasts: the last line of each voice so far; updated."""
        cut, total, window = self._cut, len(self._cut.lines), self._limits.window
        self._rows(range(total) if self._whole else (*range(window), *range(total - window, total)))
        self._tails(lasts)
        templates = cut.found
        hot = {name for name, shape in templates.items() if shape.kind & _READ or shape.watch}
        if not hot:
            return
        places: dict[bytes, list[int]] = {name: [] for name in hot}
        for index in [index for index, name in enumerate(cut.blurs) if name in hot]:
            places[cut.blurs[index]].append(index)
        self._important({n: hits for n, hits in places.items() if templates[n].kind & IMPORTANT or templates[n].watch})
        for name, indices in places.items():
            if templates[name].dialect >= 0:
                self._series(templates[name].dialect, indices)
            if templates[name].kind & _NODE:
                self._nodes(indices)

    def _important(self, places: dict[bytes, list[int]]) -> None:
        groups: dict[int, list[int]] = {}
        kinds: dict[int, int] = {}
        for name, indices in places.items():
            shape = self._cut.found[name]
            if not shape.tokens and not shape.watch:
                groups.setdefault(shape.mark, []).extend(indices)
                kinds[shape.mark] = shape.kind
                continue
            for index in indices:
                kind, mark = flags_and_signature(shape, self._cut.lines[index])
                if mark:
                    groups.setdefault(mark, []).append(index)
                    kinds[mark] = kind
        for mark, indices in groups.items():
            self._group(budget_of(kinds[mark]), sorted(indices))

    def _rows(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._row(index)

    def _tails(self, lasts: dict[str, CandidateRow]) -> None:
        """The last line of each voice, found in C, and turned into a row only when no later one can follow."""
        if self._cut.heads is None:
            return
        last_indices = dict(zip(self.voices, range(len(self.voices)), strict=True))
        last_indices.pop("", None)
        for voice, index in last_indices.items():
            before = lasts.get(voice)
            if before is None or before[0] < self._block.first + index:
                lasts[voice] = self._candidate(index)

    def _group(self, budget: LineBudget, indices: list[int]) -> None:
        few = len(indices) <= budget.first + budget.last
        ends = indices if few else indices[: budget.first] + indices[len(indices) - budget.last :]
        for index in ends:
            self._row(index)
            if not self._whole:
                self._around(index, budget)
        if budget.voices and not few:
            voices = self.voices
            self._rows({voices[index]: index for index in reversed(indices)}.values())

    def _around(self, index: int, budget: LineBudget) -> None:
        """Context in the same voice."""
        voices, window = self.voices, self._limits.window
        if budget.before:
            low = max(0, index - window)
            for back in _first_of(voices[index], voices[low:index][::-1], budget.before):
                self._row(index - 1 - back)
        if budget.after:
            for on in _first_of(voices[index], voices[index + 1 : index + 1 + window], budget.after):
                self._row(index + 1 + on)

    @cached_property
    def voices(self) -> list[str]:
        """The voice of each line."""
        if self._cut.heads is None:
            return [""] * len(self._cut.lines)
        names = {head: read_prefix(head).voice for head in set(self._cut.heads)}
        return list(map(names.__getitem__, self._cut.heads))

    def _row(self, index: int) -> None:
        """A row is the same whatever it is kept for, so that rows from different splits agree."""
        number = self._block.first + index
        if number not in self._share.rows:
            self._share.rows[number] = delta_row(self._candidate(index))

    def _candidate(self, index: int) -> CandidateRow:
        block, cut = self._block, self._cut
        time = self._time(index) if block.times is not None else 0.0
        shape = cut.found[cut.blurs[index]]
        number = block.first + index
        return number, cut.lines[index], shape, self.voices[index], time, block.received_at(number)

    def _time(self, index: int) -> float:
        time = self._block.times[index] if self._block.times is not None else 0.0
        return time if 0.0 < time < _LATEST else 0.0  # also where it is no number

    def _series(self, dialect: int, indices: list[int]) -> None:
        """Only lines that the static choice can keep are touched: a long steady series costs almost nothing."""
        speech: dict[str, list[int]] = {}
        for index in indices:
            speech.setdefault(self.voices[index], []).append(index)
        start = self._block.first
        series = {series_of(voice, dialect): places for voice, places in speech.items()}
        chosen = set(indices[-self._limits.latest :])
        for places in of_smallest_hash(series, self._limits.series):
            chosen.update(sample(places, self._limits, lambda index: start + index))
        for index in chosen:
            self._point(index, dialect)

    def _point(self, index: int, dialect: int) -> None:
        number, line = self._block.first + index, self._cut.lines[index]
        own = self._shapes.own_point(dialect, line)
        self._share.points[number] = PointRow(
            number, self.voices[index], dialect, line[:_POINT], self._time(index), self._block.received_at(number), own
        )

    def _nodes(self, indices: list[int]) -> None:
        for index in indices:
            if reading := mentions.placed(self._cut.lines[index].decode("latin-1")):
                rank, weight, node = reading
                self._introduces(self.voices[index], rank, weight)
                placed = self._block.first + index, node
                self._share.nodes[rank, weight] = max(placed, self._share.nodes.get((rank, weight), placed))

    def _introduces(self, voice: str, rank: int, weight: int) -> None:
        """A process that says on which node its rank runs says which rank it is, where its label does not."""
        if voice[:1] in ("p", "k") and weight == mentions.SURE and rank <= MOST_RANK:
            self._share.voices[voice] = self._share.voices.get(voice, 0) | 1 << rank


def _first_of(voice: str, voices: list[str], wanted: int) -> Iterator[int]:
    """The first places of a voice."""
    place = -1
    for _ in range(wanted):
        try:
            place = voices.index(voice, place + 1)
        except ValueError:
            return
        yield place
