"""The door that no line of interest to a rule may miss.

Two looks. The first is at the digit-free skeleton, once for all its lines: does it carry a rule's anchor? Only then
the patterns of that rule are tried. A pattern without digits answers for all lines of a skeleton; one with digits (an
Xid code, an errno) is first tried blind, with every digit standing for any, and then on each line of the skeleton. One
RE2 set of all patterns would be no door but a wall: its automaton grows with every new line.
"""

import re
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

import re2

from diagnoser.compress.kinds import Kind
from diagnoser.compress.skeleton import bare
from diagnoser.model import Anchor

Watched = tuple[tuple[str, ...], tuple[str, ...], bool]
"""Anchors and patterns of a rule, and whether it names a root."""
Watch = tuple["_Pattern", ...]
_ANCHOR, _FATAL = int(Kind.ANCHOR), int(Kind.ANCHOR | Kind.FATAL)
_LONGEST = 8192
_STEP = re.compile(
    r"\\x\{[0-9A-Fa-f]+\}|\\x[0-9A-Fa-f]{2}|\\."  # escapes
    r"|\{\d*,?\d*\}|\(\?P<\w+>"  # quantifiers and names
    r"|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]"  # classes
    r"|\d+",
    re.DOTALL,
)


class PatternSet:
    """Patterns looked for in one pass; each means a ``Kind``, a Filter Rule or a dialect of progress."""

    def __init__(self) -> None:
        self._set = re2.Set.SearchSet(_options())
        self._meaning: list[tuple[int, str, int]] = []

    def add(self, pattern: str, kind: int = 0, filtered: str = "", dialect: int = -1) -> None:
        self._set.Add(pattern)
        self._meaning.append((kind, filtered, dialect))

    def compile(self) -> None:
        if self._meaning:
            self._set.Compile()

    def look(self, text: bytes) -> tuple[int, str, int]:
        """Kinds of all patterns that hit, the first filter and the first dialect among them."""
        kind, filtered, dialect = 0, "", -1
        for index in (self._set.Match(text) or ()) if self._meaning else ():
            meaning = self._meaning[index]
            kind |= meaning[0]
            filtered = filtered or meaning[1]
            dialect = meaning[2] if dialect < 0 else dialect
        return kind, filtered, dialect


class _Pattern:
    """A pattern of a rule, compiled when a line first needs it."""

    def __init__(self, source: str, kind: int) -> None:
        self.kind = kind
        without = blind(source)
        self._sources = without, source
        self.digits = without != source
        self._compiled: list[Any] = [None, None]

    def search(self, body: bytes, exact: bool) -> bool:
        if self._compiled[exact] is None:
            self._compiled[exact] = re2.compile(self._sources[exact].encode(), _options())
        return self._compiled[exact].search(body) is not None


class Gate:
    """anchors: every line a rule can match carries one. watched: (anchors, RE2 patterns, fatal) of each rule, searched
    in bodies; without them every line with an anchor counts as one that a rule matches. fatal: the rule names a root.
    """

    def __init__(self, anchors: Iterable[Anchor] = (), watched: Iterable[Watched] = ()) -> None:
        self._key = tuple(sorted(set(anchors))), tuple(watched)
        self._hash = hash(self._key)
        owners: dict[bytes, list[_Pattern]] = {}
        for texts, patterns, fatal in self._key[1]:
            compiled = [_Pattern(pattern, _FATAL if fatal else _ANCHOR) for pattern in patterns]
            for literal in {bare(text.encode()) for text in texts or ("",)}:
                owners.setdefault(literal, []).extend(compiled)
        self._always = owners.pop(b"", [])
        kinds = {bare(anchor.text.encode()): _FATAL if anchor.fatal else _ANCHOR for anchor in self._key[0]}
        self._anchored = [(kind, owners.get(literal, [])) for literal, kind in kinds.items() if literal]
        self._tries = bool(self._key[1])
        self._set = re2.Set.SearchSet(_options())
        for literal in kinds:
            if literal:
                self._set.Add(_literal(literal))
        self._set.Compile()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gate) and other._key == self._key

    def shape(self, skeleton: bytes, body: bytes) -> tuple[int, Watch]:
        """Kind of all lines of a skeleton, of which ``body`` is one, and what must be tried on each of them."""
        hits = (self._set.Match(skeleton) or ()) if self._anchored else ()
        if not self._tries:
            return reduce(or_, (self._anchored[hit][0] for hit in hits), 0), ()
        kind, watch, body = 0, [], body[:_LONGEST]
        for pattern in dict.fromkeys([*self._always, *(one for hit in hits for one in self._anchored[hit][1])]):
            if pattern.kind & ~kind and pattern.search(body, exact=False):
                if pattern.digits:
                    watch.append(pattern)
                else:
                    kind |= pattern.kind
        return kind, tuple(one for one in watch if one.kind & ~kind)

    def line(self, body: bytes, watch: Watch) -> int:
        """Kind that the digits of this line add."""
        body = body[:_LONGEST]
        return reduce(or_, (one.kind for one in watch if one.search(body, exact=True)), 0)


def blind(pattern: str) -> str:
    """The pattern with every digit standing for any digit. Matches at least all that ``pattern`` matches."""
    return _STEP.sub(_without_digits, pattern)


def _without_digits(found: re.Match[str]) -> str:
    text = found.group()
    if text[0].isdigit():
        return r"(?:\d+)"
    if text[0] != "[" or not re.search(r"\d", text):
        return text
    if text.startswith("[^"):
        kept = re.sub(r"\d-\d|\d", "", text)
        return kept if len(kept) > len("[^]") else "."
    return re.sub(r"\d-\d|\d", r"\\d", text)


def _options() -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes are matched as they are, also where they are no UTF-8
    options.max_mem = 64 << 20
    options.log_errors = False
    return options


def _literal(text: bytes) -> str:
    """RE2 source of some bytes, which need not be UTF-8."""
    return "".join(f"\\x{byte:02x}" if byte > 127 else re2.escape(chr(byte)) for byte in text)
