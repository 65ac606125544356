"""What a line can be, decided once per blur of lines while the cache lasts.

One RE2 set looks at everything: rule anchors, words of trouble, tracebacks, mappings, progress dialects, Filter Rules.
It sees blurred lines only, so the answer does not depend on which line of a blur came first, or to which process.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, cast
from weakref import WeakSet

import re2

from diagnoser.compress import line_masking
from diagnoser.compress.filters import FilterSet
from diagnoser.compress.line_flags import IMPORTANT, STAGES, LineFlag, stage_bit
from diagnoser.compress.lines import body_of, carried_blur, strip_blurred
from diagnoser.compress.pattern_masking import blur
from diagnoser.compress.prefilter import PatternSet, Prefilter
from diagnoser.compress.record_lines import record_texts
from diagnoser.compress.signature import Tokens, signature, tokens_of
from diagnoser.model import Stage
from diagnoser.structure import progress

_ERROR_WORDS = (
    r"(?i)(?:^|[^a-z])(?:errors?|fatal|critical|panic|abort(?:ed|ing)?|exceptions?|fail(?:ed|ure|ures|s|ing)?|segfault"
    r"|oom|killed|crash(?:ed)?|denied|refused|unreachable|corrupt(?:ed|ion)?|cancell?ed|preempt(?:ed|ion)?"
    r"|sig(?:term|kill|segv|abrt|bus|int|fpe|ill)|not found|no such|out of memory|no space|timed? ?out|unable to"
    r"|cannot|can't|could ?n[o']t|lost|stuck|hung|hang|invalid|illegal|unexpected(?:ly)?|disconnected|closed by"
    r"|reset by|broken pipe|stale|not responding|uncorrectable|overheat\w*|traceback|assert\w*|core dumped"
    r"|terminat(?:ed|ing)|interrupt(?:ed)?|exit ?code|exited|unhealthy|notready|down\*|diverge[ds]?|mismatch|missing"
    r"|undefined|unrecognized|unsupported|not supported|overflow|violation|no module)(?:[^a-z]|$)"
)
_PATTERNS: tuple[tuple[LineFlag, str], ...] = (
    (LineFlag.ERROR, _ERROR_WORDS),
    (LineFlag.ERROR, r"(?:^|\[)[EF]\d{4} \d\d:\d\d|^\s*\[?[EF] |\*\*\* |(?:Error|Exception|Exit|Interrupt)\b"),
    (
        LineFlag.ERROR,  # levels that are no words of trouble
        r'(?:level|levelname|severity\w*|lvl)"?[=:] ?"?(?i:err|crit|severe|alert|emerg\w*|[efc])\b'
        r"|(?:^|[\s\[(|])(?:SEVERE|ALERT|EMERG|CRIT|ERR)(?:[\s\])|:]|$)|\d\d:\d\d[.\d]*: [EF] ",
    ),
    (
        LineFlag.DIVERGED,
        r"(?:^|[^A-Za-z])(?:nan|NaN|NAN|[-+=: ]inf|Inf)(?:[^A-Za-z]|$)|(?i)overflow detected|gradient overflow",
    ),
    (LineFlag.WARNING, r"(?i)(?:^|[^a-z])warn(?:ings?)?(?:[^a-z]|$)|[A-Z]\w*Warning\b|(?:^|\[)W\d{4} \d\d:\d\d"),
    # Python, behind whatever a site puts in front; C++ (c10, gdb, glibc, Open MPI), Java
    (LineFlag.FRAME, r'(?:^|[^\w"])File "[^"]+", line \d+|Traceback \(most recent call last\)'),
    (LineFlag.FRAME, r"\.py:\d+ in [\w<>.]+ {1,400}\S{1,4}\s*$"),  # as rich draws it
    (LineFlag.FRAME, r"During handling of the above exception|The above exception was the direct cause"),
    (LineFlag.FRAME, r"^\s*frame #\d+: |^\s*#\d+ +0x[0-9a-f]+|\(\+0x[0-9a-f]+\) ?\[0x|^\s*[@\d]* *0x[0-9a-f]{8,} "),
    (LineFlag.FRAME, r"^\s*at [\w.$/<>]+\([\w .:$-]*\)\s*$|^\s*\[\w[\w.-]*:\d+\] \[ *\d+\] "),
    (LineFlag.FRAME, r"^\s*terminate called|^\s*what\(\): |^C\+\+ CapturedTraceback|Exception raised from .* at "),
    (
        LineFlag.FRAME,
        r"^\s*(?:Current thread|Thread) 0x[0-9a-f]+|Fatal Python error|NCCL INFO [\w./-]+\.\w+:\d+.{0,12} -> \d",
    ),
    (
        LineFlag.EXCEPTION,
        r"^[\s|+-]*(?:[A-Za-z_]\w*\.)*[A-Z_]\w*(?:Error|Exception|Interrupt|Exit|Fault|Failure|Timeout|Killed)(?::|\s*$)",
    ),
    (LineFlag.EXCEPTION, r"^[\s|+-]*(?:[a-z_]\w*\.)+[A-Z]\w+: \S"),
    (LineFlag.EXCEPTION, r"^[\s|+-]*(?:Segmentation fault|Bus error|Killed|Aborted|Terminated)\b"),
    (
        LineFlag.TABLE,
        r"^srun: .*\btasks? [\d,\[\]-]+: |^\s*rank +: \d+ \(local_rank|^\s*exitcode +: |^\s*traceback +: ",
    ),
    (
        LineFlag.COLLECTIVE,
        r"Watchdog caught|last (?:enqueued|completed)|failed to pass monitoredBarrier|Timeout at NCCL work",
    ),
    (LineFlag.NODE, r"\bcomm 0x[0-9a-f]+ rank \d+ nranks|\brank[ =:]+\d+.{0,40}\b(?:node|host|on)[ =:]+\w"),
    (LineFlag.HEADING, r"^(?:==|##|\*\*).{1,200}(?:==|##|\*\*)$|^[\w.-]{1,80} \| .{1,60} >>$|^>>.{1,160}$"),
    (LineFlag.NODE, r"\bRank[ =:]+\d+.{0,24}\b(?:node|host(?:name)?)[ =:]+\w"),
)
_OF_TEXTS = int(LineFlag.FRAME | LineFlag.EXCEPTION | LineFlag.TABLE | LineFlag.COLLECTIVE | LineFlag.NODE)
"""What a text line of a record tells as a line of its own would."""
_TABLE, _FRAME = int(LineFlag.TABLE), int(LineFlag.FRAME)
_LONGEST_FILTERED = 1000
"""A filter matches a message, not what was glued to it."""
_FILTERED_KEEP = int(LineFlag.PROGRESS | LineFlag.NODE)
_NOT_FILTERED = int(LineFlag.ANCHOR | LineFlag.EXCEPTION | LineFlag.FRAME | LineFlag.COLLECTIVE | LineFlag.TABLE)


class CachedTemplate(NamedTuple):
    """All that is known about the lines of one blur.

    id: names what is left of the message, so that it is the same whatever stands in front. kind: ``LineFlag`` as a
    plain number. filtered: the Filter Rule that knows it as routine. prefixed: lines may carry a launcher prefix.
    dialect: of progress, or -1. mark: signature of its lines where they need no look of their own, 0 where they do not
    matter.
    tokens: finds the protected tokens of its lines, None when they carry none. watch: what must be
    looked for in each of its lines.
    """

    id: int
    kind: int
    filtered: str
    prefixed: bool
    dialect: int
    mark: int
    tokens: Tokens | None
    watch: PatternSet | None

    @property
    def varies(self) -> bool:
        """Whether its lines differ in what they mean, so that each needs a look of its own."""
        if self.watch:
            return True
        return bool(self.tokens)


MOST = 50_000
"""Most blurs of lines that a process remembers."""


class TemplateCache:
    """Blur -> Shape, filled for all new blurs of a block at once; the oldest quarter goes when it is full."""

    def __init__(self, gate: Prefilter, filters: FilterSet, most: int = MOST) -> None:
        self.known: dict[bytes, CachedTemplate] = {}
        self._most = most
        self.gate = gate
        self._patterns = PatternSet()
        for kind, pattern in _PATTERNS:
            self._patterns.add(blur(pattern), int(kind))
        self._texts = PatternSet.of((f"(?m){blur(text)}", int(kind)) for kind, text in _PATTERNS if kind & _OF_TEXTS)
        own = len(progress.DIALECTS)
        for number, pattern in enumerate(filters.progress, own):
            self._patterns.add(blur(pattern), int(LineFlag.PROGRESS) | stage_bit(Stage.TRAIN), dialect=number)
        for number, dialect in sorted(enumerate(progress.DIALECTS), key=lambda pair: pair[1].name != "bar"):
            self._patterns.add(blur(dialect.sign), int(LineFlag.PROGRESS) | stage_bit(dialect.stage), dialect=number)
        for stage, pattern in progress.SIGNS:
            self._patterns.add(blur(pattern), stage_bit(stage))
        self._own = list(map(re2.compile, filters.progress))
        for rule, pattern in filters.patterns:
            self._patterns.add(blur(pattern), filtered=rule)
        for pattern in gate.unanchored:
            self._patterns.add(blur(pattern), int(LineFlag.ANCHOR))
        self._patterns.compile()

    def own_point(self, dialect: int, line: bytes) -> progress.Point | None:
        """Read a line with the site's own pattern of its dialect (numbered after ours); None for our dialects."""
        own = dialect - len(progress.DIALECTS)
        if own < 0:
            return None
        match = self._own[own].search(body_of(line)[1].decode("utf-8", "replace"))
        return progress.read_own(match.groupdict() if match else {}, dialect)

    def of(self, blurs: Iterable[bytes]) -> dict[bytes, CachedTemplate]:
        """The shapes of blurred lines; those not known yet are classified. Threads may share the cache: what one
        forgets the other classifies again.
        """
        if len(self.known) > self._most:
            for old in list(self.known)[: len(self.known) - self._most * 3 // 4]:
                self.known.pop(old, None)
        templates = {name: self.known.get(name) for name in blurs}
        for name, shape in templates.items():
            if shape is None:
                templates[name] = self.known[name] = self._shape(name)
        return cast(dict[bytes, CachedTemplate], templates)

    def _shape(self, line: bytes) -> CachedTemplate:
        prefixed, body = strip_blurred(line)
        kind, filtered, dialect = self._patterns.look(body)
        carried = carried_blur(body)
        if len(carried) < len(body):  # frames that another program carries are frames; what it logs is no exception
            kind |= self._patterns.look(carried)[0] & _FRAME
        anchored, watch = self.gate.shape(line, body)
        kind |= anchored
        if texts := record_texts(body):
            kind |= self._texts.look(texts)[0] | self.gate.shape(line, texts)[0]
        if filtered:
            if kind & _NOT_FILTERED or len(body) > _LONGEST_FILTERED:
                filtered = ""
            else:
                kind &= _FILTERED_KEEP | STAGES
        tokens = tokens_of(line, bool(kind & _TABLE)) if watch or kind & IMPORTANT else None
        name = line_masking.identity(line_masking.masked(body))
        mark = signature(name, kind, line, None) if kind & IMPORTANT else 0
        return CachedTemplate(name, kind, filtered, prefixed, dialect, mark, tokens, watch)


_CACHES: WeakSet[TemplateCache] = WeakSet()


def held() -> int:
    """Number of shapes in this process's caches."""
    return sum(len(cache.known) for cache in list(_CACHES))


@lru_cache(maxsize=4)
def shapes(gate: Prefilter, filters: FilterSet) -> TemplateCache:
    """The process-wide cache for these rules: shapes classified for one job serve the next."""
    cache = TemplateCache(gate, filters)
    _CACHES.add(cache)
    return cache
