"""Blocks of one or many streams cut into lines, and each line masked, with a few passes in C over all of them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, count
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from diagnoser.compress import line_masking
from diagnoser.compress.delta import LinePosition
from diagnoser.compress.lines import clean
from diagnoser.compress.template_cache import CachedTemplate, TemplateCache
from diagnoser.dialects.prefixes import head_of, read_prefix
from diagnoser.model import LineBlock

Codes = NDArray[np.int64]
_TABLE_MOST = 1 << 20
"""Up to this many possible values a table of all of them is cheaper than sorting those that occur."""


class TokenizedChunk:
    """The lines of blocks, one block after the other. Shapes, heads and voices are numbered within the chunk.

    starts: index of the first line of each block, and the number of lines. templates: by number of the shape.
    shapes: number of the shape of each line. heads: distinct launcher prefixes, by number; empty where no line has one.
    """

    def __init__(self, blocks: Sequence[LineBlock], cache: TemplateCache) -> None:
        self.blocks = blocks
        self.cut_lines = self.cut_bytes = self.painted = 0
        self.heads: list[bytes] = []
        self.line_heads: Codes = np.empty(0, np.int64)
        data = blocks[0].data if len(blocks) == 1 else b"".join(map(_ended, blocks))
        if repeats := _blank_lines(data):
            self.lines, text = [b""] * repeats, data
            blurs, self.shapes = [b""], np.zeros(repeats, np.int64)
        else:
            self.lines, self.cut_lines, self.cut_bytes, self.painted, text = clean(data)
            blurs, self.shapes = _numbered(line_masking.blurred(text).split(b"\n"))
        self.starts = [0, len(self.lines)]
        if len(blocks) > 1:
            self.starts = [0, *accumulate(map(attrgetter("lines"), blocks))]
        found = cache.of(blurs)
        self.templates: list[CachedTemplate] = list(map(found.__getitem__, blurs))
        prefixed = np.fromiter(map(attrgetter("prefixed"), self.templates), np.bool_, len(self.templates))
        if prefixed.any():
            heads = [b""] * len(self.lines)
            for index in np.flatnonzero(prefixed[self.shapes]).tolist():
                heads[index] = head_of(self.lines[index])
            self.heads, self.line_heads = _numbered(heads)

    @cached_property
    def voices(self) -> list[str]:
        """The voice of each head."""
        return [read_prefix(head).voice for head in self.heads]

    @cached_property
    def line_voices(self) -> list[str]:
        """The voice of each line."""
        return self.voices_of(0, len(self.lines))

    def voices_of(self, low: int, high: int) -> list[str]:
        """The voices of the lines from one index up to another."""
        if not self.heads:
            return [""] * (high - low)
        return list(map(self.voices.__getitem__, self.line_heads[low:high].tolist()))

    @cached_property
    def line_blocks(self) -> Codes:
        """The number of the block of each line."""
        return np.repeat(np.arange(len(self.blocks)), np.diff(self.starts))

    @cached_property
    def block_shapes(self) -> list[list[int]]:
        """The shapes of each block."""
        if len(self.blocks) == 1:
            return [list(range(len(self.templates)))]
        return met_by(self.line_blocks, self.shapes, len(self.blocks), len(self.templates))

    @cached_property
    def block_heads(self) -> list[list[int]]:
        """The heads of each block."""
        if len(self.blocks) == 1 or not self.heads:
            return [list(range(len(self.heads)))] * len(self.blocks)
        return met_by(self.line_blocks, self.line_heads, len(self.blocks), len(self.heads))

    def position(self, line: int) -> LinePosition:
        """Number and stream of the line at this index."""
        at = bisect_right(self.starts, line) - 1
        block = self.blocks[at]
        return block.first + line - self.starts[at], block.stream

    def ends(self) -> tuple[list[int], list[int], list[int]]:
        """Count the lines of each shape, and find its first and last line (indices) by number, then stream."""
        counts = np.bincount(self.shapes, minlength=len(self.templates))
        order = np.arange(len(self.lines))
        if len(self.blocks) > 1:
            streams = list(map(attrgetter("stream"), self.blocks))
            rank_of = dict(zip(sorted(set(streams)), count(), strict=False))
            ranks = np.array(list(map(rank_of.__getitem__, streams)))[self.line_blocks]
            shifts = np.array(list(map(attrgetter("first"), self.blocks))) - self.starts[:-1]
            order = np.lexsort((ranks, order + shifts[self.line_blocks]))
        firsts, lasts = np.empty_like(counts), np.empty_like(counts)
        lasts[self.shapes[order]] = order  # of equal places the last value stays
        firsts[self.shapes[order[::-1]]] = order[::-1]
        return counts.tolist(), firsts.tolist(), lasts.tolist()


def met_by(left: Codes, right: Codes, lefts: int, rights: int) -> list[list[int]]:
    """For each number below ``lefts``, list the distinct numbers (below ``rights``) that stand beside it in two
    columns.
    """
    joined = left * rights + right
    if lefts * rights <= max(_TABLE_MOST, len(left)):
        seen = np.zeros(lefts * rights, np.bool_)
        seen[joined] = True
        distinct = np.flatnonzero(seen)
    else:
        distinct = np.unique(joined)
    ends = np.searchsorted(distinct, np.arange(1, lefts + 1) * rights).tolist()
    beside = (distinct % rights).tolist()
    return [beside[low:high] for low, high in zip([0, *ends], ends, strict=False)]


def _numbered(values: list[bytes]) -> tuple[list[bytes], Codes]:
    """(distinct values in order of appearance, which of them each value is)."""
    number_of: defaultdict[bytes, int] = defaultdict(count().__next__)
    numbers = np.fromiter(map(number_of.__getitem__, values), np.int64, len(values))
    return list(number_of), numbers


def _ended(block: LineBlock) -> bytes:
    return block.data if block.data.endswith(b"\n") else block.data + b"\n"


def _blank_lines(data: bytes) -> int:
    """Count the lines if none holds anything, else 0: a program in a loop prints millions of them."""
    if not data.startswith(b"\n\n"):
        return 0
    return 0 if data.strip(b"\n") else len(data)
