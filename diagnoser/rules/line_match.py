"""Which lines a pattern matches, for somebody who writes a rule: RE2, with the spans that match, and a bound on time.

Lines are searched as ``Engine`` does: an anchor, then a pattern, and no veto. What a rule asks of the lines around is
not looked at here.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from diagnoser.model import expressions
from diagnoser.model.errors import BadInput
from diagnoser.rules.schema import not_re2
from diagnoser.rules.statements import stated_matches

LINE_LENGTH = 2000
"""Characters of a line that are searched: with the largest pattern that is taken, that is a tenth of a second."""
PATTERN_LENGTH, PATTERNS_MAX = 1000, 30
_MEMORY = 1 << 20
"""Bytes that a compiled pattern may take. What needs more is refused; its automaton starts anew when it is full."""
_CHUNK = 8192
"""Characters of lines that are searched at once, to find out whether any of them can match."""
_WHOLE_TEXT = (r"\A", r"\z", "(?-", "-m")
"""What in a pattern may mean something else for several lines at once than for one."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LineConditions:
    """What a rule asks of one line. anchors: literals, one of which must be there; none: any line will do. patterns:
    RE2, any of them. unless: RE2, none of them."""

    patterns: tuple[str, ...]
    anchors: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


class LineTexts:
    """Distinct lines to search, joined to chunks. ``lines`` are cut to ``LINE_LENGTH``."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(dict.fromkeys(line[:LINE_LENGTH].replace("\n", " ") for line in lines if line.strip()))
        self.chunks = tuple(_chunks(self.lines))

    def __len__(self) -> int:
        return len(self.lines)


class LineMatcher:
    """Compiled conditions. Raises BadInput where they cannot be used."""

    def __init__(self, conditions: LineConditions) -> None:
        if not conditions.patterns:
            raise BadInput("Type a pattern.")
        self._anchors = conditions.anchors
        self._patterns = list(map(_compiled, _bounded(conditions.patterns, "patterns")))
        self._unless = list(map(_compiled, _bounded(conditions.unless, "exceptions")))
        self._across = _across_lines(conditions.patterns)

    def spans(self, line: str) -> tuple[Span, ...] | None:
        """What the patterns match in a line, from left to right; None where it is not matched."""
        if not self._is_anchored(line):
            return None
        matches = stated_matches(self._patterns, line)
        if not matches:
            return None
        if any(pattern.search(line) for pattern in self._unless):
            return None
        return tuple(_apart(sorted(map(methodcaller("span"), matches))))

    def _is_anchored(self, text: str) -> bool:
        if not self._anchors:
            return True
        return any(anchor in text for anchor in self._anchors)

    def search(self, texts: LineTexts, is_over: Callable[[], bool]) -> Iterator[tuple[str, tuple[Span, ...]]]:
        """The lines that match. is_over: whether there is no time left, asked between two searches; raises
        TimeoutError then."""
        for chunk in texts.chunks:
            if not self._is_anchored(chunk.text):
                continue
            for line in self._candidates(chunk, is_over):
                if is_over():
                    raise TimeoutError
                spans = self.spans(line)
                if spans is not None:
                    yield line, spans

    def _candidates(self, chunk: "_Chunk", is_over: Callable[[], bool]) -> Iterator[str]:
        """The lines of a chunk that can match: what matches a line alone also matches in it, where lines are joined."""
        if not self._across:
            yield from chunk.lines
            return
        at = 0
        while at < len(chunk.lines):
            if is_over():
                raise TimeoutError
            start = chunk.starts[at]
            matches = list(filter(None, map(methodcaller("search", chunk.text, start), self._across)))
            if not matches:
                return
            at = bisect_right(chunk.starts, min(map(methodcaller("start"), matches))) - 1
            yield chunk.lines[at]
            at += 1


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Lines, joined by line feeds. starts: where each begins."""

    lines: tuple[str, ...]
    text: str
    starts: tuple[int, ...]


def _chunks(lines: Iterable[str]) -> Iterator[_Chunk]:
    gathered: list[str] = []
    starts: list[int] = []
    size = 0
    for line in lines:
        if gathered and size + len(line) > _CHUNK:
            yield _Chunk(tuple(gathered), "\n".join(gathered), tuple(starts))
            gathered, starts, size = [], [], 0
        gathered.append(line)
        starts.append(size)
        size += len(line) + 1
    if gathered:
        yield _Chunk(tuple(gathered), "\n".join(gathered), tuple(starts))


def _across_lines(patterns: Sequence[str]) -> list[Any]:
    """The patterns for several lines at once; none where one of them may then mean something else."""
    for text in patterns:
        if any(mark in text for mark in _WHOLE_TEXT):
            return []
    return [_compiled(f"(?m:{text})") for text in patterns]


def _bounded(patterns: Sequence[str], what: str) -> Sequence[str]:
    if len(patterns) > PATTERNS_MAX:
        raise BadInput(f"There are {len(patterns)} {what}; at most {PATTERNS_MAX} can be tried.")
    for text in patterns:
        if len(text) > PATTERN_LENGTH:
            raise BadInput(f"A pattern has {len(text)} characters; at most {PATTERN_LENGTH} can be tried.")
    return patterns


def _compiled(text: str) -> Any:
    try:
        compiled = expressions.compiled(text, expressions.quiet_options(_MEMORY))
    except BadInput as error:
        raise BadInput(f"{text[:200]!r} cannot be used as a pattern: {error}.") from None
    if compiled.groupindex:
        why = not_re2(text)
        if why:
            raise BadInput(f"{text[:200]!r}: {why}.")
    return compiled


def _apart(spans: Iterable[Span]) -> list[Span]:
    """Spans in order; those that overlap as one."""
    apart: list[Span] = []
    for start, end in spans:
        if apart and start <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], end)
        else:
            apart.append((start, end))
    return apart
