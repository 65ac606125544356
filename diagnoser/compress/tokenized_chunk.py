"""A chunk of a stream cut into lines, and each line masked, with a few passes in C over the whole chunk."""

from collections import Counter

from diagnoser.compress import line_masking
from diagnoser.compress.lines import clean
from diagnoser.compress.template_cache import TemplateCache
from diagnoser.dialects.prefixes import HEADS_OF_LINES
from diagnoser.model import LineBlock


class TokenizedChunk:
    """A chunk cut into lines and blurs. heads: the launcher prefix of each line, None where no line has one."""

    def __init__(self, block: LineBlock, shapes: TemplateCache) -> None:
        self.heads: list[bytes] | None = None
        if repeats := _blank_lines(block.data):
            self.cut_lines = self.cut_bytes = self.painted = 0
            self.lines = self.blurs = [b""] * repeats
            self.counts, self.firsts, self.lasts = Counter({b"": repeats}), {b"": 0}, {b"": repeats - 1}
            self.found = shapes.of(self.counts)
            return
        self.lines, self.cut_lines, self.cut_bytes, self.painted, text = clean(block.data)
        self.blurs = line_masking.blurred(text).split(b"\n")
        self.counts = Counter(self.blurs)
        total = len(self.lines)
        self.firsts = dict(zip(reversed(self.blurs), range(total - 1, -1, -1), strict=True))
        self.lasts = dict(zip(self.blurs, range(total), strict=True))
        self.found = shapes.of(self.counts)
        if any(shape.prefixed for shape in self.found.values()):
            heads: list[bytes] = HEADS_OF_LINES.findall(text)
            self.heads = heads + [b""] * (total - len(heads))  # a last empty line is not found


def _blank_lines(data: bytes) -> int:
    """How many lines there are if none holds anything, else 0: a program in a loop prints millions of them."""
    return len(data) if data.startswith(b"\n\n") and not data.strip(b"\n") else 0
