"""What a line can be, decided once for each skeleton and never again while the cache lasts.

One RE2 set looks at everything: rule anchors, words of trouble, tracebacks, mappings, progress dialects, Filter Rules.
"""

from collections.abc import Iterable, KeysView, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import re2

from diagnoser.compress import progress, skeleton
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.kinds import IMPORTANT, Kind
from diagnoser.compress.lines import strip
from diagnoser.compress.signature import carries_tokens
from diagnoser.model import Anchor

_ERROR_WORDS = (
    r"(?i)(?:^|[^a-z])(?:errors?|fatal|critical|panic|abort(?:ed|ing)?|exceptions?|fail(?:ed|ure|ures|s|ing)?|segfault"
    r"|oom|killed|crash(?:ed)?|denied|refused|unreachable|corrupt(?:ed|ion)?|cancell?ed|preempt(?:ed|ion)?"
    r"|sig(?:term|kill|segv|abrt|bus|int|fpe|ill)|not found|no such|out of memory|no space|timed? ?out|unable to"
    r"|cannot|can't|could ?n[o']t|lost|stuck|hung|hang|invalid|illegal|unexpected(?:ly)?|disconnected|closed by"
    r"|reset by|broken pipe|stale|not responding|uncorrectable|overheat\w*|traceback|assert\w*|core dumped"
    r"|terminat(?:ed|ing)|interrupt(?:ed)?|exit ?code|exited|unhealthy|notready|down\*|diverge[ds]?|mismatch|missing"
    r"|undefined|unrecognized|unsupported|not supported|overflow|violation|no module)(?:[^a-z]|$)"
)
_PATTERNS: tuple[tuple[Kind, str], ...] = (
    (Kind.ERROR, _ERROR_WORDS),
    (Kind.ERROR, r"(?:^|\[)[EF]\d{4} \d\d:\d\d|^\s*\[?[EF] |\*\*\* |(?:Error|Exception|Exit|Interrupt)\b"),
    (Kind.ERROR, r"(?:^|[^A-Za-z])(?:nan|NaN|NAN|inf|Inf)(?:[^A-Za-z]|$)"),
    (Kind.WARNING, r"(?i)(?:^|[^a-z])warn(?:ings?)?(?:[^a-z]|$)|[A-Z]\w*Warning\b|(?:^|\[)W\d{4} \d\d:\d\d"),
    # Python, C++ (c10, gdb, glibc, Open MPI), Java
    (Kind.FRAME, r'^[\s|+-]*File "[^"]*", line \d+|^[\s|+-]*Traceback \(most recent call last\)'),
    (Kind.FRAME, r"During handling of the above exception|The above exception was the direct cause"),
    (Kind.FRAME, r"^\s*frame #\d+: |^\s*#\d+ +0x[0-9a-f]+|\(\+0x[0-9a-f]+\) ?\[0x|^\s*\d* ?0x[0-9a-f]{8,} "),
    (Kind.FRAME, r"^\s*at [\w.$/<>]+\([\w .:$-]*\)\s*$|^\s*\[\w[\w.-]*:\d+\] \[ *\d+\] "),
    (Kind.FRAME, r"^\s*terminate called|^\s*what\(\): |^C\+\+ CapturedTraceback|Exception raised from .* at "),
    (Kind.FRAME, r"^\s*(?:Current thread|Thread) 0x[0-9a-f]+|Fatal Python error"),
    (
        Kind.EXCEPTION,
        r"^[\s|+-]*(?:[A-Za-z_]\w*\.)*[A-Z_]\w*(?:Error|Exception|Interrupt|Exit|Fault|Failure|Timeout|Killed)(?::|\s*$)",
    ),
    (Kind.EXCEPTION, r"^[\s|+-]*(?:[a-z_]\w*\.)+[A-Z]\w+: \S"),
    (Kind.EXCEPTION, r"^[\s|+-]*(?:Segmentation fault|Bus error|Killed|Aborted|Terminated)\b"),
    (Kind.TABLE, r"^srun: .*\btasks? [\d,\[\]-]+: |^\s*rank +: \d+ \(local_rank|^\s*exitcode +: |^\s*traceback +: "),
    (
        Kind.COLLECTIVE,
        r"Watchdog caught|last (?:enqueued|completed)|failed to pass monitoredBarrier|Timeout at NCCL work",
    ),
    (Kind.NODE, r"\bcomm 0x[0-9a-f]+ rank \d+ nranks|\brank[ =:]+\d+.{0,40}\b(?:node|host|on)[ =:]+\w"),
)
_NOT_FILTERED = int(Kind.ANCHOR | Kind.EXCEPTION | Kind.FRAME | Kind.COLLECTIVE | Kind.TABLE)


class Gate:
    """The literals that rules anchor on; a line that carries one is always looked at raw."""

    def __init__(self, anchors: Iterable[Anchor] = ()) -> None:
        self.anchors = tuple(sorted(set(anchors)))
        self._hash = hash(self.anchors)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gate) and other.anchors == self.anchors


class Shape(NamedTuple):
    """All that is known about the lines of one skeleton.

    id: names the skeleton of the body, so that it is the same whatever stands in front. kind: ``Kind`` as a plain
    number. filtered: the Filter Rule that knows it as routine. prefixed: lines carry a launcher prefix. dialect: of
    progress, or -1. coded: lines can carry protected tokens, so each has its own signature.
    """

    id: int
    kind: int
    filtered: str
    prefixed: bool
    dialect: int
    coded: bool


class Shapes:
    """Skeleton -> Shape, filled for all new skeletons of a block at once; the oldest quarter goes when it is full."""

    def __init__(self, gate: Gate, filters: FilterSet, most: int = 50_000) -> None:
        self.known: dict[bytes, Shape] = {}
        self._most = most
        self._lines = _Patterns()
        for kind, pattern in _PATTERNS:
            self._lines.add(pattern, int(kind), "", -1)
        for number, dialect in enumerate(progress.DIALECTS):
            self._lines.add(dialect.sign, int(Kind.PROGRESS), "", number)
        for rule, pattern in filters.patterns:
            self._lines.add(pattern, 0, rule, -1)
        self._skeletons = _Patterns()
        for kind, fatal in ((Kind.ANCHOR, False), (Kind.ANCHOR | Kind.FATAL, True)):
            bare = {skeleton.bare(anchor.text.encode()) for anchor in gate.anchors if anchor.fatal == fatal} - {b""}
            if bare:
                literals = "|".join(re2.escape(text.decode("latin-1")) for text in sorted(bare))
                self._skeletons.add(literals, int(kind), "", -1)
        self._lines.compile()
        self._skeletons.compile()

    def learn(self, counted: KeysView[bytes], where: Mapping[bytes, int], lines: Sequence[bytes]) -> None:
        """Classify skeletons that are not known yet. where: skeleton -> index of a line of it in ``lines``."""
        if len(self.known) > self._most:
            for old in list(self.known)[: self._most // 4]:
                del self.known[old]
        for first in counted - self.known.keys():
            self.known[first] = self._shape(first, lines[where[first]])

    def _shape(self, first: bytes, line: bytes) -> Shape:
        prefixed, body = strip(line)
        kind, filtered, dialect = self._lines.look(body)
        kind |= self._skeletons.look(first)[0]
        if filtered and not kind & _NOT_FILTERED:
            kind &= Kind.PROGRESS | Kind.NODE
        second = skeleton.masked(body)
        coded = bool(kind & IMPORTANT) and bool(kind & Kind.TABLE or carries_tokens(second))
        return Shape(skeleton.identity(second), int(kind), filtered, prefixed, dialect, coded)


class _Patterns:
    """An RE2 set: all patterns are looked for in one pass."""

    def __init__(self) -> None:
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1  # bytes are matched as they are, also where they are no UTF-8
        options.max_mem = 256 << 20
        options.log_errors = False
        self._set = re2.Set.SearchSet(options)
        self._meaning: list[tuple[int, str, int]] = []

    def add(self, pattern: str, kind: int, filtered: str, dialect: int) -> None:
        self._set.Add(pattern if pattern.isascii() else pattern.encode().decode("latin-1"))
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


@lru_cache(maxsize=4)
def shapes(gate: Gate, filters: FilterSet) -> Shapes:
    """The cache of the whole process for these rules: what one job taught, the next one knows."""
    return Shapes(gate, filters)
