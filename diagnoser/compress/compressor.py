"""The hot loop: whole blocks go through C, Python sees each skeleton once and only lines that matter one by one."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import cast

from diagnoser.compress.delta import FATAL, Delta, FilledRows, TemplateStats
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.limits import DEFAULT_LIMITS, CompressorLimits
from diagnoser.compress.line_masking import blurred
from diagnoser.compress.lines import clean_text, count_lines
from diagnoser.compress.prefilter import Prefilter
from diagnoser.compress.sampling import apply_limits, of_smallest_hash
from diagnoser.compress.template_cache import shapes
from diagnoser.compress.tokenized_chunk import TokenizedChunk, met_by
from diagnoser.compress.verbatim_lines import MOST_RANK, CandidateRow, RetentionPolicy, delta_row, flags_and_signature
from diagnoser.dialects.prefixes import read_prefix
from diagnoser.model import LineBlock, Stream

CHUNK = 2 << 20
SAMPLE = 480
"""Longest sample of a routine shape, in bytes."""
_TOGETHER = 256 << 10
"""Small blocks wait until they are so many bytes, for all passes in C have a price by the call."""
_SMALL = 64 << 10
_LOOK = 4096
"""Lines after which the size of the delta is looked at."""


class Compressor:
    """Feed blocks, then take their delta. Holds no state of a stream: any block may go to any compressor."""

    def __init__(
        self, gate: Prefilter | None = None, filters: FilterSet | None = None, limits: CompressorLimits = DEFAULT_LIMITS
    ) -> None:
        self._shapes = shapes(gate or Prefilter(), filters or FilterSet())
        self._limits = limits
        self._delta = Delta(self._limits)
        self._codes: dict[int, set[int]] = {}
        self._lasts: dict[Stream, dict[str, CandidateRow]] = {}
        self._settled = self._looked = 0
        self._waiting: list[LineBlock] = []
        self._waiting_bytes = 0

    def feed(self, block: LineBlock) -> None:
        """Take in whole lines. Memory stays bounded however many blocks are fed."""
        self._delta.bytes += block.missing
        self._delta.cut_bytes += block.missing
        self._delta.cut_lines += bool(block.missing)
        # How one carriage return is read can depend on the first one of a block.
        if len(block.data) > _SMALL or b"\r" in block.data or b'"log":' in block.data:
            self._feed_large(block)
        elif block.data:
            self._waiting.append(block)
            self._waiting_bytes += len(block.data)
            if self._waiting_bytes >= _TOGETHER:
                self._feed_waiting()

    def take(self) -> Delta:
        """The delta of all blocks since the last ``take``."""
        self._feed_waiting()
        self._write_out()
        delta, self._delta = self._delta, Delta(self._limits)
        self._settled = self._looked = 0
        return apply_limits(delta)

    def _feed_large(self, block: LineBlock) -> None:
        number = block.first
        for data in _chunks(block.data):
            count = count_lines(data)
            start = number - block.first
            times = block.times[start : start + count] if block.times is not None else None
            self._chunk([LineBlock(block.stream, data, number, times, block.received, arrivals=block.arrivals)])
            number += count

    def _feed_waiting(self) -> None:
        if self._waiting:
            blocks, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._chunk(blocks)

    def has_fatal(self, data: bytes) -> bool:
        """Whether the delta of these lines would be fatal, for much less than the delta costs."""
        text = clean_text(data)
        blurs = blurred(text).split(b"\n")
        templates = self._shapes.of(set(blurs))
        watched = set()
        for blur, template in templates.items():
            if template.kind & FATAL:
                return True
            if template.watch:
                watched.add(blur)
        if not watched:
            return False
        for line, blur in zip(text.split(b"\n"), blurs, strict=True):
            if blur in watched and flags_and_signature(templates[blur], line)[0] & FATAL:
                return True
        return False

    def _chunk(self, blocks: Sequence[LineBlock]) -> None:
        cut = TokenizedChunk(blocks, self._shapes)
        delta = self._delta
        delta.lines += len(cut.lines)
        delta.bytes += sum(len(block.data) for block in blocks)
        delta.cut_lines += cut.cut_lines
        delta.cut_bytes += cut.cut_bytes
        delta.painted += cut.painted
        _count(cut, delta.shapes)
        self._speakers(cut)
        policy = RetentionPolicy(cut, delta, self._shapes)
        for index, block in enumerate(blocks):
            share = delta.share(block.stream)
            share.covers(block.first, block.first + cut.starts[index + 1] - cut.starts[index] - 1)
            share.add_shapes(cut.templates[shape].id for shape in cut.block_shapes[index])
            policy.keep(index, share, self._lasts)
        if delta.lines - self._looked >= _LOOK:
            self._looked = delta.lines
            if delta.size > 2 * self._settled + 8192:
                self._write_out()
                apply_limits(delta)
                self._settled = delta.size

    def _speakers(self, cut: TokenizedChunk) -> None:
        """Record who printed which shape, and which voices there are."""
        codes, ids = self._codes, list(map(attrgetter("id"), cut.templates))
        for block, numbers in zip(cut.blocks, cut.block_shapes, strict=True):
            if block.stream.rank >= 0:
                code = rank_code(block.stream.rank, -1, -1)
                for number in numbers:
                    codes.setdefault(ids[number], set()).add(code)
        if cut.heads:
            self._speakers_by_head(cut, ids)

    def _speakers_by_head(self, cut: TokenizedChunk, ids: list[int]) -> None:
        """The same of lines with a prefix that tells who speaks. ids: of the shapes of the chunk."""
        codes, code_of = self._codes, list(map(_code, cut.heads))
        for number, heads in enumerate(met_by(cut.shapes, cut.line_heads, len(ids), len(cut.heads))):
            codes.setdefault(ids[number], set()).update(map(code_of.__getitem__, heads))
        ranks = [read_prefix(head).rank for head in cut.heads]
        for block, heads in zip(cut.blocks, cut.block_heads, strict=True):
            voices = self._delta.share(block.stream).voices
            for head in heads:
                if voice := cut.voices[head]:
                    own_rank = 1 << ranks[head] if 0 <= ranks[head] <= MOST_RANK else 0
                    voices[voice] = voices.get(voice, 0) | own_rank

    def _write_out(self) -> None:
        """Write what is cheaper to collect over many chunks: speakers of shapes, last lines of voices."""
        for stream, lasts in self._lasts.items():
            rows = cast(FilledRows, self._delta.share(stream).rows)
            kept = of_smallest_hash(lasts, self._limits.voices)
            for row in kept:
                if row[0] not in rows:
                    rows[row[0]] = delta_row(row)
        self._lasts.clear()
        for key, codes in self._codes.items():
            stat = self._delta.shapes.get(key)
            if stat:
                stat.ranks |= _bits(codes)
        self._codes.clear()


def _bits(codes: set[int]) -> int:
    """Codes as a bit set, without the -1 of nobody."""
    if len(codes) == 1:
        (code,) = codes
        return 1 << code if code >= 0 else 0
    bits = bytearray(max(codes, default=0) // 8 + 1)
    for code in codes - {-1}:
        bits[code >> 3] |= 1 << (code & 7)
    return int.from_bytes(bits, "little")


def _count(cut: TokenizedChunk, stats: dict[int, TemplateStats]) -> None:
    """Counts, first and last lines of the shapes of a chunk."""
    lines = cut.lines
    for shape, count, first, last in zip(cut.templates, *cut.ends(), strict=True):
        low, high = cut.position(first), cut.position(last)
        stat = stats.get(shape.id)
        if stat is None:
            text = lines[first][:SAMPLE]
            last_text = text if first == last else lines[last][:SAMPLE]
            stats[shape.id] = TemplateStats(count, low, text, high, last_text, 0, shape.kind, shape.filtered)
            continue
        stat.count += count
        stat.kind |= shape.kind
        stat.filtered = max(stat.filtered, shape.filtered)
        if low < stat.first:
            stat.first, stat.first_text = low, lines[first][:SAMPLE]
        if high > stat.last:
            stat.last, stat.last_text = high, lines[last][:SAMPLE]


def rank_code(rank: int, task: int, local: int) -> int:
    """The bit of a speaker: a rank, else a task label alone, else a local rank under a task label (or alone); -1 for
    nobody, and for numbers so large that they count something else.
    """
    if rank >= 0:
        number, kind = rank, 0
    elif local < 0:
        number, kind = task, 1
    else:
        number, kind = max(task, 0) * 16 + local, 2
    return 3 * number + kind if 0 <= number <= MOST_RANK else -1


@lru_cache(maxsize=65536)
def _code(head: bytes) -> int:
    prefix = read_prefix(head)
    return rank_code(prefix.rank, prefix.task, prefix.local)


def _chunks(data: bytes) -> Iterator[bytes]:
    """Whole lines, about ``CHUNK`` bytes at a time."""
    start = 0
    while start < len(data):
        end = len(data)
        if end - start > CHUNK:
            end = data.find(b"\n", start + CHUNK) + 1 or end
        yield data[start:end]
        start = end
