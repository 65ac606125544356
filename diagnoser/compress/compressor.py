"""The hot loop: whole blocks go through C, Python sees each skeleton once and only lines that matter one by one."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from diagnoser.compress import progress, skeleton
from diagnoser.compress.delta import Budget, Delta, Limits, Place, PointRow, Row, Stat, join
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.lines import HEADS, body_of, clean, read_prefix
from diagnoser.compress.shapes import IMPORTANT, Gate, Kind, Shapes, shapes
from diagnoser.compress.signature import signature
from diagnoser.model import Block, Stream

CHUNK = 2 << 20
_MOST_PAIRS = 200_000
_MOST_RANK = 65535
SAMPLE = 480
"""Longest sample of a routine shape, in bytes."""


class Compressor:
    """Feed blocks, take what they leave. Holds no state of a stream: any block may go to any compressor."""

    def __init__(
        self, gate: Gate | None = None, filters: FilterSet | None = None, limits: Limits | None = None
    ) -> None:
        self._shapes = shapes(gate or Gate(), filters or FilterSet())
        self._limits = limits or Limits()
        self._delta = Delta(self._limits)
        self._seen: set[tuple[bytes, bytes]] = set()
        self._settled = 0

    def feed(self, block: Block) -> None:
        """Take in whole lines. Memory stays bounded however many blocks are fed."""
        number = block.first
        for data in _chunks(block.data):
            count = data.count(b"\n") + (not data.endswith(b"\n"))
            at = number - block.first
            times = block.times[at : at + count] if block.times is not None else None
            self._chunk(Block(block.stream, data, number, times, block.received))
            number += count

    def take(self) -> Delta:
        """What all blocks since the last ``take`` leave."""
        delta, self._delta = self._delta, Delta(self._limits)
        self._seen.clear()
        self._settled = 0
        delta.settle()
        return delta

    def _chunk(self, block: Block) -> None:
        cut = _Cut(block, self._shapes)
        delta, total = self._delta, len(cut.lines)
        delta.lines += total
        delta.bytes += len(block.data)
        delta.cut_lines += cut.cleaned.cut_lines
        delta.cut_bytes += cut.cleaned.cut_bytes
        delta.ranges[block.stream] = join((*delta.ranges.get(block.stream, ()), (block.first, block.first + total - 1)))
        _count(block, cut, delta)
        self._ranks(block.stream, cut)
        _Keep(block, cut, delta).keep()
        self._relieve()

    def _relieve(self) -> None:
        """Settle now and then, so that memory stays bounded while a long file is fed."""
        if _size(self._delta) > 2 * self._settled + 8192:
            self._delta.settle()
            self._settled = _size(self._delta)

    def _ranks(self, stream: Stream, cut: "_Cut") -> None:
        """Note who printed which shape and which voices there are."""
        stats = self._delta.shapes
        if stream.rank >= 0:
            bit = 1 << rank_code(stream.rank, -1, -1)
            for shape in cut.found.values():
                stats[shape.id].ranks |= bit
        if cut.heads is None:
            return
        pairs = set(zip(cut.heads, cut.skeletons, strict=True)) - self._seen
        if len(self._seen) > _MOST_PAIRS:
            self._seen.clear()
        self._seen |= pairs
        for head, name in pairs:
            stats[cut.found[name].id].ranks |= _bit(head)
        voices = self._delta.voices
        for head in {head for head, _ in pairs}:
            prefix = read_prefix(head)
            if prefix.voice:
                key = (stream, prefix.voice)
                voices[key] = voices.get(key, 0) | (1 << min(prefix.rank, _MOST_RANK) if prefix.rank >= 0 else 0)


class _Cut:
    """A chunk cut into lines and skeletons. heads: the launcher prefix of each line, None where no line has one."""

    def __init__(self, block: Block, shapes: Shapes) -> None:
        self.cleaned = clean(block.data)
        self.lines = self.cleaned.lines
        self.skeletons = skeleton.bare(self.cleaned.text).split(b"\n")
        self.counts = Counter(self.skeletons)
        total = len(self.lines)
        self.firsts = dict(zip(reversed(self.skeletons), range(total - 1, -1, -1), strict=True))
        self.lasts = dict(zip(self.skeletons, range(total), strict=True))
        shapes.learn(self.counts.keys(), self.firsts, self.lines)
        self.found = {name: shapes.known[name] for name in self.counts}
        prefixed = any(shape.prefixed for shape in self.found.values())
        self.heads = self._prefixes(total) if prefixed else None

    def _prefixes(self, total: int) -> list[bytes]:
        heads: list[bytes] = HEADS.findall(self.cleaned.text)
        return heads + [b""] * (total - len(heads))  # a last empty line is not found


def _count(block: Block, cut: _Cut, delta: Delta) -> None:
    """Counts, first and last lines of the shapes of a chunk."""
    stats, stream, start, lines = delta.shapes, block.stream, block.first, cut.lines
    firsts, lasts, found = cut.firsts, cut.lasts, cut.found
    for name, count in cut.counts.items():
        shape, first, last = found[name], firsts[name], lasts[name]
        low, high = (start + first, stream), (start + last, stream)
        stat = stats.get(shape.id)
        if stat is None:
            text = _sample(lines[first])
            last_text = text if first == last else _sample(lines[last])
            stats[shape.id] = Stat(count, low, text, high, last_text, 0, shape.kind, shape.filtered)
            continue
        stat.count += count
        if low < stat.first:
            stat.first, stat.first_text = low, _sample(lines[first])
        if high > stat.last:
            stat.last, stat.last_text = high, _sample(lines[last])


def _size(delta: Delta) -> int:
    return len(delta.rows) + len(delta.shapes) + len(delta.points)


def rank_code(rank: int, task: int, local: int) -> int:
    """The bit of a speaker: a rank, else a task label alone, else a local rank under a task label (or alone)."""
    if rank >= 0:
        return 3 * min(rank, 65535)
    if local < 0:
        return 3 * min(task, 65535) + 1
    return 3 * min(max(task, 0) * 16 + local, 65535) + 2


@lru_cache(maxsize=65536)
def _bit(head: bytes) -> int:
    prefix = read_prefix(head)
    if prefix.rank < 0 and prefix.task < 0 and prefix.local < 0:
        return 0
    return 1 << rank_code(prefix.rank, prefix.task, prefix.local)


class _Keep:
    """Picks the lines of one chunk that stay verbatim."""

    def __init__(self, block: Block, cut: "_Cut", delta: Delta) -> None:
        self._block, self._cut, self._delta, self._limits = block, cut, delta, delta.limits
        self._lines, self._heads = cut.lines, cut.heads

    def keep(self) -> None:
        total, window = len(self._lines), self._limits.window
        if self._delta.lines <= self._limits.small or total <= 2 * window:
            self._rows(range(total))
        else:
            self._rows((*range(window), *range(total - window, total)))
        self._tails()
        hot = {name for name, shape in self._cut.found.items() if shape.kind}
        if hot:
            self._hot([index for index, name in enumerate(self._cut.skeletons) if name in hot])

    def _hot(self, indices: list[int]) -> None:
        groups: dict[int, list[int]] = {}
        kinds: dict[int, Kind] = {}
        skeletons, found = self._cut.skeletons, self._cut.found
        for index in indices:
            shape = found[skeletons[index]]
            if shape.kind & IMPORTANT:
                mark = signature(shape.id, shape.kind, self._lines[index])
                groups.setdefault(mark, []).append(index)
                kinds[mark] = shape.kind
            if shape.dialect >= 0:
                self._progress(index, shape.dialect)
        for mark, places in groups.items():
            self._group(self._limits.budget(kinds[mark]), places)

    def _rows(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._row(index)

    def _tails(self) -> None:
        """The last lines of each voice, found in C: one dictionary of last positions for each line wanted."""
        if self._heads is None:
            return
        heads = list(self._heads)
        for _ in range(self._limits.tails):
            last = dict(zip(heads, range(len(heads)), strict=True))
            last.pop(b"", None)
            for index in last.values():
                self._row(index)
                heads[index] = b""

    def _group(self, budget: Budget, indices: list[int]) -> None:
        chosen = indices
        if len(indices) > budget.first + budget.last:
            chosen = indices[: budget.first] + (indices[-budget.last :] if budget.last else [])
        if budget.voices and len(indices) > len(chosen):
            voices = {self._voice(index): index for index in reversed(indices)}
            chosen = [*chosen, *voices.values()]
        for index in chosen:
            self._row(index)
            self._around(index, budget)

    def _around(self, index: int, budget: Budget) -> None:
        """Context in the same voice."""
        voice = self._voice(index)
        for step, wanted in ((-1, budget.before), (1, budget.after)):
            near = index + step
            while wanted and 0 <= near < len(self._lines) and abs(near - index) <= self._limits.window:
                if self._voice(near) == voice:
                    self._row(near)
                    wanted -= 1
                near += step

    def _voice(self, index: int) -> str:
        return read_prefix(self._heads[index]).voice if self._heads is not None else ""

    def _row(self, index: int) -> None:
        """A row is the same whatever it is kept for, so that rows from different splits agree."""
        place: Place = (self._block.first + index, self._block.stream)
        if place in self._delta.rows:
            return
        line, shape = self._lines[index], self._cut.found[self._cut.skeletons[index]]
        self._delta.rows[place] = Row(
            self._block.stream,
            place[0],
            line.decode("utf-8", "replace"),
            self._voice(index),
            shape.kind,
            signature(shape.id, shape.kind, line) if shape.kind & IMPORTANT else 0,
            self._time(index),
            self._block.received,
        )

    def _time(self, index: int) -> float:
        time = self._block.times[index] if self._block.times is not None else 0.0
        return time if time == time else 0.0

    def _progress(self, index: int, dialect: int) -> None:
        prefix, body = body_of(self._lines[index])
        point = progress.read(dialect, body.decode("utf-8", "replace"))
        if point is None:
            return
        stream = self._block.stream
        place: Place = (self._block.first + index, stream)
        rank = prefix.rank if prefix.rank >= 0 else stream.rank
        self._delta.points[place] = PointRow(stream, place[0], self._voice(index), rank, self._time(index), point)


def _sample(line: bytes) -> str:
    return line[:SAMPLE].decode("utf-8", "replace")


def _chunks(data: bytes) -> Iterator[bytes]:
    """Whole lines, about ``CHUNK`` bytes at a time."""
    at = 0
    while at < len(data):
        end = len(data) if len(data) - at <= CHUNK else data.find(b"\n", at + CHUNK) + 1 or len(data)
        yield data[at:end]
        at = end
