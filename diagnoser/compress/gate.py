"""The door that no line of interest to a rule may miss.

Two looks. The first is at the digit-free skeleton, once for all its lines: does it carry a rule's anchor? Only then the
patterns themselves are tried. A pattern without digits answers for all lines of a skeleton; one with digits (an Xid
code, an errno) is first tried blind, with every digit standing for any, and then on each line of the skeleton.
"""

import re
from collections.abc import Iterable

import re2

from diagnoser.compress.kinds import Kind
from diagnoser.compress.skeleton import bare
from diagnoser.model import Anchor

_ANCHOR, _FATAL, _WATCH = int(Kind.ANCHOR), int(Kind.ANCHOR | Kind.FATAL), int(Kind.WATCH)
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


class Gate:
    """anchors: every line a rule can match carries one. patterns: (RE2, fatal), searched in bodies; without them every
    line with an anchor counts as one that a rule matches. fatal: the rule names a root.
    """

    def __init__(self, anchors: Iterable[Anchor] = (), patterns: Iterable[tuple[str, bool]] = ()) -> None:
        self._key = tuple(sorted(set(anchors))), tuple(sorted(set(patterns)))
        self._hash = hash(self._key)
        self._skeletons, self._plain, self._blind, self._exact = (PatternSet() for _ in range(4))
        self._tries = bool(self._key[1])
        for kind, fatal in ((_ANCHOR, False), (_FATAL, True)):
            literals = {bare(anchor.text.encode()) for anchor in self._key[0] if anchor.fatal == fatal} - {b""}
            if literals:
                self._skeletons.add("|".join(_literal(text) for text in sorted(literals)), kind)
        for pattern, fatal in self._key[1]:
            self._add(pattern, _FATAL if fatal else _ANCHOR)
        for patterns_ in (self._skeletons, self._plain, self._blind, self._exact):
            patterns_.compile()

    def _add(self, pattern: str, kind: int) -> None:
        without = blind(pattern)
        if without == pattern:
            self._plain.add(pattern, kind)
        else:
            self._blind.add(without, _WATCH)
            self._exact.add(pattern, kind)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gate) and other._key == self._key

    def shape(self, skeleton: bytes, body: bytes) -> int:
        """Kind of all lines of a skeleton, of which ``body`` is one; WATCH where each line needs ``line``."""
        kind = self._skeletons.look(skeleton)[0]
        if not kind or not self._tries:
            return kind
        return self._plain.look(body[:_LONGEST])[0] | self._blind.look(body[:_LONGEST])[0]

    def line(self, body: bytes) -> int:
        """Kind that the digits of this line add."""
        return self._exact.look(body[:_LONGEST])[0]


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
    options.max_mem = 256 << 20
    options.log_errors = False
    return options


def _literal(text: bytes) -> str:
    """RE2 source of some bytes, which need not be UTF-8."""
    return "".join(f"\\x{byte:02x}" if byte > 127 else re2.escape(chr(byte)) for byte in text)
