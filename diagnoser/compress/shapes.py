"""What a line can be, decided once for each skeleton and never again while the cache lasts.

One RE2 set looks at everything: rule anchors, words of trouble, tracebacks, mappings, progress dialects, Filter Rules.
"""

from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache
from typing import NamedTuple

import re2

from diagnoser.compress import progress, skeleton
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.lines import body_of, split_prefix
from diagnoser.model import Anchor


class Kind(IntFlag):
    """What a line is. More than one can hold."""

    NONE = 0
    WARNING = 1
    ERROR = 2
    MAPPING = 4  # tells which rank runs where, or how a task ended
    FRAME = 8  # part of a stack
    EXCEPTION = 16
    ANCHOR = 32
    FATAL = 64
    PROGRESS = 128


IMPORTANT = Kind.WARNING | Kind.ERROR | Kind.MAPPING | Kind.FRAME | Kind.EXCEPTION | Kind.ANCHOR

_ERROR_WORDS = (
    r"(?i)(?:^|[^a-z])(?:errors?|fatal|critical|panic|abort(?:ed|ing)?|exceptions?|fail(?:ed|ure|ures|s|ing)?|segfault|oom|killed"
    r"|crash(?:ed)?|denied|refused|unreachable|corrupt(?:ed|ion)?|cancell?ed|preempt(?:ed|ion)?|sig(?:term|kill|segv|abrt|bus|int|fpe|ill)"
    r"|not found|no such|out of memory|no space|timed? ?out|unable to|cannot|can't|could ?n[o']t|lost|stuck|hung|hang"
    r"|invalid|illegal|unexpected(?:ly)?|disconnected|closed by|reset by|broken pipe|stale|not responding|uncorrectable|overheat\w*"
    r"|traceback|assert\w*|core dumped|terminat(?:ed|ing)|interrupt(?:ed)?|exit ?code|exited|unhealthy|notready|down\*|diverge[ds]?"
    r"|mismatch|missing|undefined|unrecognized|unsupported|not supported|unknown|overflow|skipp(?:ed|ing)|violation|doesn't|no module)(?:[^a-z]|$)"
)
_PATTERNS: tuple[tuple[Kind, str], ...] = (
    (Kind.ERROR, _ERROR_WORDS),
    (
        Kind.ERROR,
        r"(?:^|\[)[EF]\d{4} \d\d:\d\d|^\s*\[?(?:E|F) |\*\*\* |(?:Error|Exception|Exit|Interrupt)\b|\b(?:nan|NaN|NAN|Inf|inf)\b",
    ),
    (Kind.WARNING, r"(?i)(?:^|[^a-z])warn(?:ings?)?(?:[^a-z]|$)|[A-Z]\w*Warning\b|(?:^|\[)W\d{4} \d\d:\d\d"),
    (
        Kind.FRAME,
        r'^[\s|+-]*File "[^"]*", line \d+|^[\s|+-]*Traceback \(most recent call last\)|^\s*frame #\d+: |^\s*#\d+ +0x[0-9a-f]+'
        r"|^\s*at [\w.$/<>]+\([\w .:$-]*\)\s*$|^\s*\[\w[\w.-]*:\d+\] \[ *\d+\] |^\s*\d* ?0x[0-9a-f]{8,} |\(\+0x[0-9a-f]+\) ?\[0x"
        r"|During handling of the above exception|The above exception was the direct cause|^\s*terminate called"
        r"|^\s*what\(\): |^C\+\+ CapturedTraceback|Exception raised from .* at "
        r"|^\s*(?:Current thread|Thread) 0x[0-9a-f]+|Fatal Python error|^Root Cause \(first observed",
    ),
    (
        Kind.EXCEPTION,
        r"^[\s|+-]*(?:[A-Za-z_][\w]*\.)*[A-Z_]\w*(?:Error|Exception|Interrupt|Exit|Fault|Failure|Timeout|Killed|Warning\b.*Error)(?::|\s*$)"
        r"|^[\s|+-]*(?:[a-z_][\w]*\.)+[A-Z]\w+: \S|^[\s|+-]*(?:Assertion|Segmentation fault|Bus error|Killed|Aborted|Terminated)\b",
    ),
    (
        Kind.MAPPING,
        r"\btasks? [\d,\[\]-]+: |comm 0x[0-9a-f]+ rank \d+ nranks|\brank +: \d+ \(local_rank|exitcode +: |^\s*host +: |^\s*traceback +: "
        r"|\brank[ =:]+\d+.{0,40}\b(?:node|host|on)[ =:]+\S|group_rank|Connected all|initializ\w+ .*rank\w* \d+.*(?:host|node)"
        r"|(?i)MEMBER: \d+/\d+|\bGLOBAL_RANK: \d+",
    ),
)


class Gate:
    """The literals that rules anchor on; a line that carries one is always looked at raw."""

    def __init__(self, anchors: Iterable[Anchor] = ()) -> None:
        self.anchors = tuple(sorted(set(anchors)))

    def __hash__(self) -> int:
        return hash(self.anchors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gate) and other.anchors == self.anchors


@dataclass(slots=True, frozen=True)
class Shape:
    """All that is known about the lines of one skeleton.

    id: names the skeleton of the body, so that it is the same whatever stands in front. filtered: id of the Filter Rule
    that knows it as routine. prefixed: the lines carry a launcher prefix. dialect: of progress, or -1.
    """

    id: int
    kind: Kind
    filtered: str
    prefixed: bool
    dialect: int


class _Entry(NamedTuple):
    kind: Kind
    filtered: str
    dialect: int


class Shapes:
    """Skeleton -> Shape, filled for all new skeletons of a block at once; the oldest quarter goes when it is full."""

    def __init__(self, gate: Gate, filters: FilterSet, most: int = 50_000) -> None:
        self.known: dict[bytes, Shape] = {}
        self._most = most
        self._entries: list[_Entry] = []
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = 256 << 20
        options.log_errors = False
        self._lines = re2.Set.SearchSet(options)
        self._skeletons = re2.Set.SearchSet(options)
        self._fatal: list[bool] = []
        for kind, pattern in _PATTERNS:
            self._add(pattern, _Entry(kind, "", -1))
        for number, dialect in enumerate(progress.DIALECTS):
            self._add(dialect.sign, _Entry(Kind.PROGRESS, "", number))
        for rule, pattern in filters.patterns:
            self._add(pattern, _Entry(Kind.NONE, rule, -1))
        self._lines.Compile()
        for fatal in (False, True):
            self._add_anchors([a.text for a in gate.anchors if a.fatal == fatal], fatal)
        self._skeletons.Compile()

    def _add(self, pattern: str, entry: _Entry) -> None:
        self._lines.Add(_latin(pattern))
        self._entries.append(entry)

    def _add_anchors(self, texts: Sequence[str], fatal: bool) -> None:
        bare = {skeleton.bare(text.encode()).decode("latin-1") for text in texts} - {""}
        if bare:
            self._skeletons.Add("|".join(re2.escape(text) for text in sorted(bare)))
            self._fatal.append(fatal)

    def learn(self, counted: KeysView[bytes], where: Mapping[bytes, int], lines: Sequence[bytes]) -> None:
        """Classify skeletons that are not known yet. where: skeleton -> index of a line of it in ``lines``."""
        if len(self.known) > self._most:
            for old in list(self.known)[: self._most // 4]:
                del self.known[old]
        new = counted - self.known.keys()
        if not new:
            return
        names = list(new)
        parted = [split_prefix(lines[where[name]]) for name in names]
        bodies = [body_of(lines[where[name]])[1] for name in names]
        second = skeleton.masked(bodies)
        for i, first in enumerate(names):
            kind, filtered, dialect = self._look(bodies[i], first)
            self.known[first] = Shape(skeleton.identity(second[i]), kind, filtered, bool(parted[i][0]), dialect)

    def _look(self, body: bytes, first: bytes) -> tuple[Kind, str, int]:
        kind, filtered, dialect = Kind.NONE, "", -1
        for index in self._lines.Match(body) or ():
            entry = self._entries[index]
            kind |= entry.kind
            filtered = filtered or entry.filtered
            dialect = entry.dialect if dialect < 0 else dialect
        if self._fatal:
            for index in self._skeletons.Match(first) or ():
                kind |= Kind.ANCHOR | (Kind.FATAL if self._fatal[index] else Kind.NONE)
        if filtered and not kind & (Kind.ANCHOR | Kind.EXCEPTION | Kind.FRAME):
            kind &= Kind.PROGRESS
        return kind, filtered, dialect


@lru_cache(maxsize=4)
def shapes(gate: Gate, filters: FilterSet) -> Shapes:
    """The cache of the whole process for these rules: what one job taught, the next one knows."""
    return Shapes(gate, filters)


def _latin(pattern: str) -> str:
    """A pattern as RE2 must get it to match UTF-8 bytes byte by byte."""
    return pattern.encode("utf-8").decode("latin-1")
