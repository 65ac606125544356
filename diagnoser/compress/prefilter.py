"""The gate that lets through every line of interest to a rule.

Two passes. The first is at the blurred line, once for all lines of the same blur: does it carry a rule's anchor? Only
then the patterns of that rule are tried, blurred as well. A pattern that asks for certain digits (an Xid code, an
errno) is then tried on each line. One RE2 set of all patterns would be too slow: its automaton grows with every
new line.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from operator import attrgetter

import re2

from diagnoser.compress.line_flags import LineFlag
from diagnoser.compress.line_masking import blurred, latin1
from diagnoser.compress.pattern_masking import asks_for_digits, blur
from diagnoser.model import Anchor, expressions

WatchedPattern = tuple[tuple[str, ...], tuple[str, ...], bool]
"""Anchors and patterns of a rule, and whether it names a root."""
_ANCHOR, _FATAL = int(LineFlag.ANCHOR), int(LineFlag.ANCHOR | LineFlag.FATAL)
_LONGEST = 8192
_MOST_WATCHES = 1000


NUMBERED_ERRORS = (
    r'"level": ?[56]0[,}]',  # pino, bunyan
    r'"levelno": ?[45]0[,}]',  # Python's logging
    r'"severityNumber": ?(?:1[7-9]|2[0-4])[,}]',  # OpenTelemetry
    r'"PRIORITY": ?"[0-3]"',  # journald
)
"""Levels of errors in records that give them as numbers."""
_ANY_NUMBERED_ERROR = re.compile("|".join(NUMBERED_ERRORS).encode())


class PatternSet:
    """Patterns looked for in one pass; each means a ``LineFlag``, a Filter Rule or a dialect of progress.

    RE2 first looks which literals of the patterns are there at all, in one small automaton, and then runs only patterns
    that can match. One automaton of all patterns would grow with every new line.
    """

    def __init__(self) -> None:
        self.must: re.Pattern[bytes] | None = None
        """What every line holds that can match, where it is much cheaper to look for."""
        self._filter = re2.Filter()
        self._meaning: list[tuple[int, str, int]] = []

    def add(self, pattern: str, kind: int = 0, filtered: str = "", dialect: int = -1) -> None:
        self._filter.Add(pattern, latin1())
        self._meaning.append((kind, filtered, dialect))

    @classmethod
    def of(cls, sources: Iterable[tuple[str, int]]) -> "PatternSet":
        """A compiled set of (pattern, kind)."""
        patterns = cls()
        for pattern, kind in sources:
            patterns.add(pattern, kind)
        patterns.compile()
        return patterns

    def compile(self) -> None:
        if self._meaning:
            self._filter.Compile()

    def look(self, text: bytes) -> tuple[int, str, int]:
        """Kinds of all patterns that hit, the first filter and the first dialect among them."""
        kind, filtered, dialect = 0, "", -1
        if not self._meaning:
            return kind, filtered, dialect
        for index in sorted(self._filter.Match(text, False) or ()):
            also, rule, number = self._meaning[index]
            kind |= also
            filtered = filtered or rule
            if dialect < 0:
                dialect = number
        return kind, filtered, dialect


class _Rule:
    """The patterns of a rule, compiled when a line first carries one of its anchors."""

    def __init__(self, patterns: Iterable[str], kind: int) -> None:
        self.kind = kind
        self._patterns = tuple(patterns)
        self._all: PatternSet | None = None

    @cached_property
    def digits(self) -> list[str]:
        return list(filter(asks_for_digits, self._patterns))

    def look(self, blur_of_body: bytes) -> tuple[bool, bool]:
        """(every line of this blur counts as matched, some may be)."""
        if self._all is None:
            self._all = PatternSet.of((blur(text), 2 if text in self.digits else 1) for text in self._patterns)
        kinds = self._all.look(blur_of_body)[0]
        return bool(kinds & 1), bool(kinds & 2)


class Prefilter:
    """anchors: literals; a line with one is kept. watched: (anchors, RE2 patterns, fatal) of each rule; an anchor that
    rules own keeps only lines that one of these rules matches. fatal: the rule names a root.
    """

    def __init__(self, anchors: Iterable[Anchor] = (), watched: Iterable[WatchedPattern] = ()) -> None:
        self._key = tuple(sorted(set(anchors), key=attrgetter("text", "fatal"))), tuple(watched)
        self._hash = hash(self._key)
        unanchored = list[str]()
        owners: dict[bytes, list[_Rule]] = {}
        for texts, patterns, fatal in self._key[1]:
            if not texts:
                unanchored += patterns
            rule = _Rule(patterns, _FATAL if fatal else _ANCHOR)
            for text in texts:
                owners.setdefault(blurred(text.encode()), []).append(rule)
        free = dict[bytes, int]()
        for anchor in self._key[0]:
            free[blurred(anchor.text.encode())] = _FATAL if anchor.fatal else _ANCHOR
        literals = sorted((free.keys() | owners.keys()) - {b""})
        self.unanchored = tuple(unanchored)
        self._anchored = list[tuple[int, list[_Rule]]]()
        for literal in literals:
            rules = owners.get(literal, [])
            self._anchored.append((0 if rules else free[literal], rules))
        self._levels = _Rule(NUMBERED_ERRORS, int(LineFlag.ERROR))
        self._watches: dict[tuple[_Rule, ...], PatternSet] = {}
        self._set = expressions.search_set(map(_literal, literals), latin1())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prefilter):
            return False
        return other._key == self._key

    def shape(self, blur_of_line: bytes, body: bytes) -> tuple[int, PatternSet | None]:
        """Kind of all lines of a blur, ``body`` being that of the message, and what must be looked for in each."""
        kind, rules, maybe = 0, dict[_Rule, None](), list[_Rule]()
        if body[:2] == b'{"':
            rules[self._levels] = None
        for hit in self._set.Match(blur_of_line) or () if self._anchored else ():
            always_of_hit, owners = self._anchored[hit]
            kind |= always_of_hit
            rules.update(dict.fromkeys(owners))
        for rule in rules:
            if not rule.kind & ~kind:
                continue
            always, sometimes = rule.look(body[:_LONGEST])
            if always:
                kind |= rule.kind
            if sometimes:
                maybe.append(rule)
        return kind, self._watch(tuple(rule for rule in maybe if rule.kind & ~kind))

    def _watch(self, rules: tuple[_Rule, ...]) -> PatternSet | None:
        """The patterns of these rules that ask for certain digits, as one set."""
        if not rules:
            return None
        if rules not in self._watches:
            if len(self._watches) > _MOST_WATCHES:
                self._watches.clear()
            self._watches[rules] = PatternSet.of((text, rule.kind) for rule in rules for text in rule.digits)
            if rules == (self._levels,):
                self._watches[rules].must = _ANY_NUMBERED_ERROR
        return self._watches[rules]


def kind_of_line(body: bytes, watch: PatternSet) -> int:
    """Kind that the digits of a line's message add."""
    return watch.look(body[:_LONGEST])[0]


def _literal(text: bytes) -> str:
    """RE2 source of some bytes, which need not be UTF-8."""
    if text.isascii():
        return re2.escape(text.decode())  # type: ignore[no-any-return]
    return "".join(map(_escaped, text))


def _escaped(byte: int) -> str:
    if byte > 127:
        return f"\\x{byte:02x}"
    return str(re2.escape(chr(byte)))
