"""The hot loop: whole blocks go through C, Python sees each skeleton once and only lines that matter one by one."""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from diagnoser.compress import progress, skeleton
from diagnoser.compress.delta import Budget, Delta, Limits, Place, PointRow, Row, Stat, join
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.lines import HEADS, body_of, clean, read_prefix
from diagnoser.compress.shapes import IMPORTANT, Gate, Kind, Shape, shapes
from diagnoser.compress.signature import signature
from diagnoser.model import Block, Stream

CHUNK = 2 << 20
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
        delta, cleaned = self._delta, clean(block.data)
        lines = cleaned.lines
        skeletons = skeleton.bare(cleaned.text).split(b"\n")
        known, counts = self._shapes.known, Counter(skeletons)
        firsts = dict(zip(reversed(skeletons), range(len(lines) - 1, -1, -1), strict=True))
        lasts = dict(zip(skeletons, range(len(lines)), strict=True))
        self._shapes.learn(counts.keys(), firsts, lines)
        delta.lines += len(lines)
        delta.bytes += len(block.data)
        delta.cut_lines += cleaned.cut_lines
        delta.cut_bytes += cleaned.cut_bytes
        span = ((block.first, block.first + len(lines) - 1),)
        delta.ranges[block.stream] = join(delta.ranges.get(block.stream, ()) + span)
        found = {name: known[name] for name in counts}
        self._count(block, lines, counts, firsts, lasts, found)
        heads = self._ranks(block.stream, cleaned.text, skeletons, found)
        _Keep(block, lines, heads, delta, self._limits).keep(skeletons, found)
        self._relieve()

    def _relieve(self) -> None:
        size = len(self._delta.rows) + len(self._delta.shapes) + len(self._delta.points)
        if size > 2 * self._settled + 8192:
            self._delta.settle()
            self._settled = len(self._delta.rows) + len(self._delta.shapes) + len(self._delta.points)

    def _count(
        self,
        block: Block,
        lines: list[bytes],
        counts: Counter[bytes],
        firsts: dict[bytes, int],
        lasts: dict[bytes, int],
        found: dict[bytes, Shape],
    ) -> None:
        stats, stream, start = self._delta.shapes, block.stream, block.first
        for name, count in counts.items():
            shape = found[name]
            first, last = start + firsts[name], start + lasts[name]
            stat = stats.get(shape.id)
            if stat is None:
                text = _sample(lines[first - start])
                last_text = text if first == last else _sample(lines[last - start])
                stats[shape.id] = Stat(
                    count, (first, stream), text, (last, stream), last_text, 0, shape.kind, shape.filtered
                )
                continue
            stat.count += count
            if (first, stream) < stat.first:
                stat.first, stat.first_text = (first, stream), _sample(lines[first - start])
            if (last, stream) > stat.last:
                stat.last, stat.last_text = (last, stream), _sample(lines[last - start])

    def _ranks(
        self, stream: Stream, text: bytes, skeletons: list[bytes], found: dict[bytes, Shape]
    ) -> list[bytes] | None:
        """Note who printed which shape. Gives the prefix of every line, or None where no line has one."""
        stats = self._delta.shapes
        if stream.rank >= 0:
            bit = 1 << rank_code(stream.rank, -1, -1)
            for shape in found.values():
                stats[shape.id].ranks |= bit
        if not any(shape.prefixed for shape in found.values()):
            return None
        heads = HEADS.findall(text)
        if len(heads) < len(skeletons):
            heads += [b""] * (len(skeletons) - len(heads))
        pairs = set(zip(heads, skeletons, strict=False)) - self._seen
        if len(self._seen) > 200_000:
            self._seen.clear()
        self._seen |= pairs
        for head, name in pairs:
            stats[found[name].id].ranks |= _bit(head)
        voices = self._delta.voices
        for head in {head for head, _ in pairs}:
            prefix = read_prefix(head)
            if prefix.voice and prefix.rank >= 0:
                key = (stream, prefix.voice)
                voices[key] = voices.get(key, 0) | 1 << min(prefix.rank, 65535)
            elif prefix.voice:
                voices.setdefault((stream, prefix.voice), 0)
        return heads


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

    def __init__(
        self, block: Block, lines: list[bytes], heads: list[bytes] | None, delta: Delta, limits: Limits
    ) -> None:
        self._block, self._lines, self._heads, self._delta, self._limits = block, lines, heads, delta, limits

    def keep(self, skeletons: list[bytes], found: dict[bytes, Shape]) -> None:
        total = len(self._lines)
        self._places(range(total) if self._delta.lines <= self._limits.small else self._edges())
        self._tails()
        hot = {name for name, shape in found.items() if shape.kind}
        if not hot:
            return
        groups: dict[int, list[int]] = {}
        kinds: dict[int, Kind] = {}
        for index in [i for i, name in enumerate(skeletons) if name in hot]:
            shape = found[skeletons[index]]
            if shape.kind & IMPORTANT:
                mark = signature(shape.id, shape.kind, self._lines[index])
                groups.setdefault(mark, []).append(index)
                kinds[mark] = shape.kind
            if shape.dialect >= 0:
                self._progress(index, shape.dialect)
        for mark, indices in groups.items():
            self._group(mark, kinds[mark], indices)

    def _edges(self) -> Iterator[int]:
        window, total = self._limits.window, len(self._lines)
        yield from range(min(window, total))
        yield from range(max(window, total - window), total)

    def _places(self, indices: Iterator[int] | range) -> None:
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

    def _group(self, mark: int, kind: Kind, indices: list[int]) -> None:
        budget = self._limits.budget(kind)
        chosen = indices
        if len(indices) > budget.first + budget.last:
            chosen = indices[: budget.first] + (indices[-budget.last :] if budget.last else [])
        for index in chosen:
            self._row(index, kind, mark)
            self._around(index, budget)
        if budget.voices and len(indices) > len(chosen):
            voices: dict[str, int] = {}
            for index in indices:
                voices.setdefault(self._voice(index), index)
            for index in voices.values():
                self._row(index, kind, mark)
                self._around(index, budget)

    def _around(self, index: int, budget: Budget) -> None:
        """Context in the same voice."""
        for step, wanted in ((-1, budget.before), (1, budget.after)):
            near, voice = index + step, self._voice(index)
            while wanted and 0 <= near < len(self._lines) and abs(near - index) <= self._limits.window:
                if self._voice(near) == voice:
                    self._row(near)
                    wanted -= 1
                near += step

    def _voice(self, index: int) -> str:
        return read_prefix(self._heads[index]).voice if self._heads is not None else ""

    def _row(self, index: int, kind: Kind = Kind.NONE, mark: int = 0) -> None:
        block = self._block
        place: Place = (block.first + index, block.stream)
        if mark == 0 and place in self._delta.rows:
            return
        time = block.times[index] if block.times is not None else 0.0
        self._delta.rows[place] = Row(
            block.stream,
            place[0],
            self._lines[index].decode("utf-8", "replace"),
            self._voice(index),
            kind,
            mark,
            time if time == time else 0.0,
            block.received,
        )

    def _progress(self, index: int, dialect: int) -> None:
        block = self._block
        prefix, body = body_of(self._lines[index])
        point = progress.read(dialect, body.decode("utf-8", "replace"))
        if point is None:
            return
        time = block.times[index] if block.times is not None else 0.0
        place: Place = (block.first + index, block.stream)
        rank = prefix.rank if prefix.rank >= 0 else block.stream.rank
        self._delta.points[place] = PointRow(
            block.stream, place[0], self._voice(index), rank, time if time == time else 0.0, point
        )


def _sample(line: bytes) -> str:
    return line[:SAMPLE].decode("utf-8", "replace")


def _chunks(data: bytes) -> Iterator[bytes]:
    """Whole lines, about ``CHUNK`` bytes at a time."""
    at = 0
    while at < len(data):
        end = len(data) if len(data) - at <= CHUNK else data.find(b"\n", at + CHUNK) + 1 or len(data)
        yield data[at:end]
        at = end
