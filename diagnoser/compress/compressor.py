"""The hot loop: whole blocks go through C, Python sees each skeleton once and only lines that matter one by one."""

from collections.abc import Iterator
from functools import lru_cache

from diagnoser.compress.delta import FATAL, Delta, StreamDelta, TemplateStats, join
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.limits import CompressorLimits
from diagnoser.compress.line_masking import blurred
from diagnoser.compress.lines import clean
from diagnoser.compress.prefilter import Prefilter
from diagnoser.compress.retention import MOST_RANK, CandidateRow, RetentionPolicy, delta_row, flags_and_signature
from diagnoser.compress.sampling import apply_limits
from diagnoser.compress.template_cache import shapes
from diagnoser.compress.tokenized_chunk import TokenizedChunk
from diagnoser.dialects.prefixes import read_prefix
from diagnoser.model import LineBlock, Stream

CHUNK = 2 << 20
SAMPLE = 480
"""Longest sample of a routine shape, in bytes."""
_FEW = 256
"""Up to this many prefixes per chunk, pairs of prefix and skeleton repeat enough to be worth a set."""


class Compressor:
    """Feed blocks, then take their delta. Holds no state of a stream: any block may go to any compressor."""

    def __init__(
        self, gate: Prefilter | None = None, filters: FilterSet | None = None, limits: CompressorLimits | None = None
    ) -> None:
        self._shapes = shapes(gate or Prefilter(), filters or FilterSet())
        self._limits = limits or CompressorLimits()
        self._delta = Delta(self._limits)
        self._seen: set[tuple[bytes, bytes]] = set()
        self._codes: dict[int, set[int]] = {}
        self._lasts: dict[Stream, dict[str, CandidateRow]] = {}
        self._settled = 0

    def feed(self, block: LineBlock) -> None:
        """Take in whole lines. Memory stays bounded however many blocks are fed."""
        self._delta.bytes += block.missing
        self._delta.cut_bytes += block.missing
        self._delta.cut_lines += bool(block.missing)
        number = block.first
        for data in _chunks(block.data):
            count = data.count(b"\n") + (not data.endswith(b"\n"))
            start = number - block.first
            times = block.times[start : start + count] if block.times is not None else None
            self._chunk(LineBlock(block.stream, data, number, times, block.received, arrivals=block.arrivals))
            number += count

    def has_fatal(self, data: bytes) -> bool:
        """Whether the delta of these lines would be fatal, for much less than the delta costs."""
        cleaned = clean(data)
        blurs = blurred(cleaned.text).split(b"\n")
        templates = self._shapes.of(set(blurs))
        if any(template.kind & FATAL for template in templates.values()):
            return True
        watched = {blur for blur, template in templates.items() if template.watch}
        return bool(watched) and any(
            flags_and_signature(templates[blur], line)[0] & FATAL
            for line, blur in zip(cleaned.lines, blurs, strict=True)
            if blur in watched
        )

    def take(self) -> Delta:
        """The delta of all blocks since the last ``take``."""
        self._write_out()
        delta, self._delta = self._delta, Delta(self._limits)
        self._seen.clear()
        self._settled = 0
        return apply_limits(delta)

    def _chunk(self, block: LineBlock) -> None:
        cut = TokenizedChunk(block, self._shapes)
        delta, total, share = self._delta, len(cut.lines), self._delta.share(block.stream)
        delta.lines += total
        delta.bytes += len(block.data)
        delta.cut_lines += cut.cut_lines
        delta.cut_bytes += cut.cut_bytes
        delta.painted += cut.painted
        share.ranges = join((*share.ranges, (block.first, block.first + total - 1)))
        _count(block, cut, delta.shapes)
        share.met(shape.id for shape in cut.found.values())
        self._speakers(block.stream, cut, share)
        RetentionPolicy(block, cut, share, delta, self._shapes).keep(self._lasts.setdefault(block.stream, {}))
        if delta.size > 2 * self._settled + 8192:
            self._write_out()
            self._seen.clear()
            apply_limits(delta)
            self._settled = delta.size

    def _speakers(self, stream: Stream, cut: TokenizedChunk, share: StreamDelta) -> None:
        """Record who printed which shape, and which voices there are."""
        codes = self._codes
        if stream.rank >= 0:
            code = rank_code(stream.rank, -1, -1)
            for shape in cut.found.values():
                codes.setdefault(shape.id, set()).add(code)
        if cut.heads is None:
            return
        heads = {head: _code(head) for head in set(cut.heads)}
        if len(heads) <= _FEW:
            pairs = set(zip(cut.heads, cut.blurs, strict=True)) - self._seen
            self._seen |= pairs
            for head, name in pairs:
                codes.setdefault(cut.found[name].id, set()).add(heads[head])
        else:
            adders = {name: codes.setdefault(shape.id, set()).add for name, shape in cut.found.items()}
            for head, name in zip(cut.heads, cut.blurs, strict=True):
                adders[name](heads[head])
        for head in heads:
            prefix = read_prefix(head)
            if prefix.voice:
                own_rank = 1 << prefix.rank if 0 <= prefix.rank <= MOST_RANK else 0
                share.voices[prefix.voice] = share.voices.get(prefix.voice, 0) | own_rank

    def _write_out(self) -> None:
        """Write what is cheaper to collect over many chunks: speakers of shapes, last lines of voices."""
        for stream, lasts in self._lasts.items():
            rows = self._delta.share(stream).rows
            rows.update((row[0], delta_row(row)) for row in lasts.values() if row[0] not in rows)
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


def _count(block: LineBlock, cut: TokenizedChunk, stats: dict[int, TemplateStats]) -> None:
    """Counts, first and last lines of the shapes of a chunk."""
    stream, start, lines = block.stream, block.first, cut.lines
    firsts, lasts, templates = cut.firsts, cut.lasts, cut.found
    for name, count in cut.counts.items():
        shape, first, last = templates[name], firsts[name], lasts[name]
        low, high = (start + first, stream), (start + last, stream)
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
        end = len(data) if len(data) - start <= CHUNK else data.find(b"\n", start + CHUNK) + 1 or len(data)
        yield data[start:end]
        start = end
