"""The repeated lines in which a program reports its steps, in whatever words: shapes that count on and print a measure.

The progress series knows the forms of known trainers; a loop is known by its repetition alone.
"""

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise

from diagnoser.model import Evidence, Line, Mark, Stream, Template

_REPEATED = 3
"""Lines of one shape from which it may be a loop's."""
_DIRECTED = 0.8
"""Share of its moves by which a count gets on."""
_INTERLEAVED = 10
"""Lines from which two shapes that take turns are a loop without a counter."""
_WHOLE = re.compile(r"(?<!\d)(?<!\d[.:,-])\d{1,15}(?![.:,-]?\d)")
_MEASURE = re.compile(
    r"(?<![\w.])(?<!\d:)\d{1,12}\.\d{1,18}(?!\.?\d)|\b\d{1,3}[eE]-\d{1,3}|\bnan\b|\b(?!(?-i:INF))inf\b", re.IGNORECASE
)
_VALUE = re.compile(r"[-+]?(?:\d[\d.,:]*(?:[eE][-+]?\d{1,3})?|\b(?:nan|(?!(?-i:INF))inf)\b)", re.IGNORECASE)
_SHAPED = 1000
"""Characters of a line that tell its shape."""
_SHORTEST = 6
"""Characters of the shortest shape that tells lines apart."""
_NEWEST = 8
"""Kept turns of a loop, the newest ones, in which a measure that is broken for good is still broken."""
_EARLY = 3
"""Part of a stream in which all processes of one launch have begun."""
_EARLIER = 2
"""Part of what stands before a line in which the loop that the line is of has begun."""
_WILDCARD = "<*>"
"""Stands in shapes for words; begins those whose lines begin with different words, as those of settings do."""
_BAR = re.compile(r"\d%\|[^|\n]{0,300}\| {0,4}(\d{1,12})/(\d{1,12}) \[")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_SPELLED = re.compile(r"[^\W\d_]{1,100}")
_SET_UP = re.compile(
    r"(?i)\b(?:load|download|fetch|pull|read|pars|tokeni[sz]|build|compil|install|collect|import|initiali[sz]|init|warm"
    r"|cach|extract|convert|copy|connect|prepar|allocat|index|shard|map|unpack)(?:ed|t|ing|ping|s)?\b"
)
"""Words of what is done before, in lines that count too."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One shape of line that a program prints again and again.

    first, last: numbers of its lines in the stream.
    ranks: that print it, empty where that is unknown.
    counts: whether a whole number in its lines moves one way.
    measured: whether its lines print a measure, as those of training do.
    process: that prints them, as of a ``Line``, where several print the same into one stream; kept: as of its lines.
    shape: of its lines.
    words: of its lines without their numbers, where all have the same; empty else.
    """

    stream: Stream
    first: int
    last: int
    count: int
    ranks: frozenset[int]
    counts: bool
    measured: bool
    process: int | str = -1
    kept: tuple[int, ...] = ()
    shape: str = ""
    words: frozenset[str] = frozenset()

    @property
    def speaker(self) -> tuple[Stream, int | str]:
        """As of a ``Line``."""
        return self.stream, self.process

    @property
    def printers(self) -> AbstractSet[int | str]:
        """The processes that are known to print it."""
        return self.ranks if self.process == -1 else {self.process}

    def turns_after(self, number: int) -> float:
        """How many of its lines stand behind a line, if they are spread evenly; at least those that were kept."""
        span = max(self.last - self.first, 1)
        spread = (self.count - 1) * min(max(self.last - number, 0) / span, 1.0)
        return max(spread, len(self.kept) - bisect_right(self.kept, number))


@dataclass(frozen=True)
class Loops:
    """All loops of the job's own output.

    by_rank: whether most lines of the log tell the rank, so that a loop of which none is known is that of several.
    processes: how many processes print into a stream, where it is several.
    launched: of these, those that are known to be of one launch.
    """

    loops: Sequence[Loop] = ()
    by_rank: bool = False
    processes: Mapping[Stream, int] = field(default_factory=dict)
    launched: Mapping[Stream, int] = field(default_factory=dict)

    def ends(self) -> dict[Stream, int]:
        """The last line of a measured loop in each stream, of what was repeated in it, or counted on behind it."""
        ends = dict[Stream, int]()
        for loop in self._main:
            ends[loop.stream] = max(ends.get(loop.stream, 0), loop.last)
        epilogues = {stream: self._epilogue(stream) for stream in ends}
        for loop in sorted(self.loops, key=lambda loop: loop.first):
            if loop.first >= epilogues.get(loop.stream, -math.inf):
                continue
            if loop.counts or loop.first < ends[loop.stream]:
                ends[loop.stream] = max(ends[loop.stream], loop.last)
        return ends

    @cached_property
    def measured(self) -> list[Loop]:
        """Those that print a measure, as training does."""
        return [loop for loop in self.loops if loop.measured]

    @cached_property
    def _main(self) -> list[Loop]:
        """The measured loops that are no last words of several processes."""
        begins = {loop.stream: self._epilogue(loop.stream) for loop in self.measured}
        return [loop for loop in self.measured if loop.first < begins[loop.stream]]

    def _epilogue(self, stream: Stream) -> float:
        """The first line of a shape that begins late in the loop and that each of several processes prints once, as
        those do that have left their loop; infinite without one."""
        if stream not in self.processes:
            return math.inf
        main = max((loop for loop in self.measured if loop.stream == stream), key=lambda loop: loop.count)
        middle = (main.first + main.last) / 2
        once = {loop.first for loop in self.loops if loop.count <= self.processes[stream]}
        unnamed = {loop.first for loop in self.loops if loop.speaker == (stream, -1)}
        return min((first for first in once & unnamed if first > middle), default=math.inf)

    def went_on(self, line: Line, turns: int) -> bool:
        """Whether the process that printed the line went on with its loop for more than ``turns`` turns."""
        loops = [loop for loop in self.measured if self._is_of(loop, line)]
        return any(loop.turns_after(line.number) > turns for loop in loops)

    def all_went_on(self, line: Line, turns: int) -> bool:
        """Whether every loop that had begun before the line went on for more than ``turns`` turns; not known of ranks
        that share one."""
        loops = [loop for loop in self.measured if loop.stream == line.stream and loop.first < line.number]
        if any(len(loop.ranks) > 1 for loop in loops):
            return False
        return bool(loops) and all(loop.turns_after(line.number) > turns for loop in loops)

    def is_turn(self, line: Line, *, measured: bool = False) -> bool:
        """Whether its process prints the words of the line again and again. measured: in a loop that measures."""
        words, known = words_of(line.body), self.measured if measured else self.loops
        loops = [loop for loop in known if words in loop.words]
        return any(self._is_repeated_by(loop, line) for loop in loops)

    def _is_repeated_by(self, loop: Loop, line: Line) -> bool:
        """Whether the process that printed the line turns the loop. Where nothing tells several apart, all may print
        their last words: only what began long before is a loop's."""
        if loop.process != -1:
            return loop.speaker == line.speaker
        if loop.stream != line.stream:
            return False
        if loop.count < _REPEATED * len(loop.ranks):
            return False
        return loop.first < line.number / _EARLIER

    def _is_of(self, loop: Loop, line: Line) -> bool:
        """Whether the loop is one of the process that printed the line, and had begun before, as far as that is known:
        of a process among others, the first turns may not be kept."""
        if loop.stream != line.stream:
            return False
        if loop.process != -1:
            return loop.process == line.process
        if loop.first >= line.number:
            return False
        if self.by_rank and not loop.ranks:
            return line.rank < 0
        return loop.ranks <= {line.rank}


def find_loops(evidence: Evidence) -> Loops:
    """The loops, by the shapes of lines that are repeated."""
    traced = {(line.stream, line.number) for line in evidence.lines if line.mark is Mark.TRACEBACK}
    repeated = []
    for template in evidence.templates:
        if _is_repeated(template) and traced.isdisjoint((template.first, template.last)):
            repeated.append(template)
    spoken, turns = _Spoken(evidence), list[Loop]()
    for template in repeated:
        if _LETTERS.search(template.text):
            turns += spoken.only_turns(_loops_of(template, repeated), template)
    apart, begun = _speakers(evidence), _begun(evidence, repeated)
    processes = Counter(apart) | Counter(begun)  # the larger of the two numbers
    launched = {stream: min(count, apart.get(stream, count)) for stream, count in begun.items()}
    return Loops(tuple(turns), _is_by_rank(evidence), processes, launched)


class _Spoken:
    """The words of the kept lines of a job."""

    def __init__(self, evidence: Evidence) -> None:
        self._words: dict[str, str] = {}
        self._places = defaultdict[tuple[Stream, str], list[int]](list)
        self._redrawn: dict[tuple[Stream, int], int] = {}
        """Lines of a bar -> the one before it with the same count: as it is left, a bar is drawn once more."""
        newest: dict[tuple[Stream, int | str], tuple[tuple[str, str], int]] = {}
        for line in evidence.lines:
            self._words[line.text] = words_of(line.body)
            self._places[line.stream, _letters_of(self._words[line.text])].append(line.number)
            for count in _BAR.findall(line.text)[-1:]:
                before, number = newest.get(line.speaker, (("", ""), 0))
                if before == count:
                    self._redrawn[line.stream, line.number] = number
                newest[line.speaker] = count, line.number

    def only_turns(self, loops: Iterable[Loop], template: Template) -> Iterator[Loop]:
        """The loops with the words of their lines, and without a last line that only resembles them: a shape without
        words of its own takes in all lines of so many parts."""
        words = {self._words[sample] for sample in template.samples if sample in self._words}
        is_vague = _WILDCARD in template.text
        for loop in loops:
            last = self._redrawn.get((loop.stream, loop.last), loop.last)
            loop = replace(loop, last=last, kept=tuple(number for number in loop.kept if number <= last))
            if is_vague and loop.process == -1:
                loop = replace(loop, last=self._last_turn(loop, set(map(_letters_of, words))))
            yield replace(loop, words=frozenset() if is_vague else frozenset(words))

    def _last_turn(self, loop: Loop, letters: Collection[str]) -> int:
        """The last line of a loop, without one whose letters no other line has."""
        places = [self._places[loop.stream, text] for text in letters]
        known = [numbers for numbers in places if numbers != [loop.last]]
        if len(known) in (0, len(places)):
            return loop.last
        if loop.measured and max(map(len, known)) == 1:
            return loop.last
        return min(loop.last, max(chain.from_iterable(known)))


def _is_by_rank(evidence: Evidence) -> bool:
    """Whether most lines of the job tell their rank, and several ranks speak."""
    ranks = [line.rank for line in evidence.lines if line.stream.from_job]
    known = [rank for rank in ranks if rank >= 0]
    if len(set(known)) < 2:
        return False
    return 2 * len(known) > len(ranks)


def _speakers(evidence: Evidence) -> dict[Stream, int]:
    """How many processes prefixes tell apart in each stream, where it is several."""
    speakers = defaultdict[Stream, set[object]](set)
    for line in evidence.lines:
        speakers[line.stream].add(line.speaker)
    return {stream: len(known) for stream, known in speakers.items() if len(known) > 1}


def _begun(evidence: Evidence, repeated: Sequence[Template]) -> dict[Stream, int]:
    """How often the first line of each stream is printed, where all of it comes early: once by each process."""
    begun = dict[Stream, int]()
    for template in repeated:
        stream, first = template.first
        if first == 1 and template.last[1] < evidence.last_numbers[stream] / _EARLY:
            begun[stream] = template.count
    return begun


def broken_measure(evidence: Evidence) -> int | None:
    """Index of the first line of a loop whose measures are NaN or infinite up to the last turns of the loop or of the
    process that prints it; None where no loop breaks so.

    Where the progress series reads a finite loss in the line, the series decides.
    """
    losses = {(point.stream, point.line): point.loss for point in evidence.progress if point.loss is not None}
    samples = _repeated_samples(evidence)
    breaks = []
    for shape, indices in _turns_without_finite_loss(evidence, losses):
        broken = [index for index in indices if _is_broken(evidence.lines[index].body)]
        if not _stays(broken, indices):
            continue
        first = evidence.lines[broken[0]]
        is_known = (first.stream, first.number) in losses or _is_finite_elsewhere(shape, samples)
        if is_known or _never_finite(evidence, indices, broken):
            breaks.append(broken[0])
    return min(breaks, default=None)


def _turns_without_finite_loss(
    evidence: Evidence, losses: Mapping[tuple[Stream, int], float]
) -> Iterator[tuple[str, list[int]]]:
    """The shape and the indices of the lines of each loop of a process in which no finite loss was read."""
    turns = defaultdict[tuple[object, str], list[int]](list)
    for index, line in enumerate(evidence.lines):
        if not line.stream.from_job:
            continue
        if not _WHOLE.search(line.body):
            continue
        if not math.isfinite(losses.get((line.stream, line.number), math.nan)):
            turns[line.process, _shape(line.body)].append(index)
    for (_, shape), indices in turns.items():
        yield shape, indices


def _never_finite(evidence: Evidence, turns: Sequence[int], broken: Sequence[int]) -> bool:
    """Whether a loop that counts all its turns never printed a finite measure."""
    if len(broken) < max(len(turns), _INTERLEAVED):
        return False
    return _counts([evidence.lines[index].body for index in turns], shared=False)


def _stays(broken: Sequence[int], turns: Sequence[int]) -> bool:
    """Whether a measure that broke is broken in the newest turns too."""
    if len(broken) < min(len(turns), _REPEATED):
        return False
    return broken[-1] in turns[-_NEWEST:]


def _is_broken(body: str) -> bool:
    """Whether the line prints measures, and none of them is finite."""
    measures = set(map(str.casefold, _MEASURE.findall(body[:_SHAPED])))
    return set() < measures <= {"nan", "inf"}


def _repeated_samples(evidence: Evidence) -> str:
    """The shapes of the finite samples of all repeated lines, one a line."""
    shapes: list[str] = []
    for template in filter(_is_repeated, evidence.templates):
        finite = [sample for sample in template.samples if _MEASURE.search(sample) and not _is_broken(sample)]
        if finite:
            finite.append(template.text.replace("<NUM>", "0"))  # as it reads out of its record
        shapes += map(_shape, finite)
    return "\n".join(shapes)


def _is_finite_elsewhere(shape: str, samples: str) -> bool:
    """Whether lines of the same shape, whatever wraps them, print finite measures."""
    return len(shape) > _SHORTEST and shape in samples


def words_of(text: str) -> str:
    """The text without its numbers, whether they are finite or not."""
    return _words(text[:_SHAPED])


@lru_cache(maxsize=4096)  # ranks end with the same lines, and each is asked about several times
def _words(text: str) -> str:
    return " ".join(_VALUE.sub("#", text).split())


def whole_numbers(text: str) -> list[int]:
    """The whole numbers of a text, which are no part of times or measures."""
    return list(map(int, _WHOLE.findall(text[:_SHAPED])))


def _letters_of(text: str) -> str:
    return " ".join(_SPELLED.findall(text[:_SHAPED]))


def _shape(text: str) -> str:
    """The words up to the last number."""
    words = words_of(text)
    return words[: words.rfind("#") + 1]


def _is_repeated(template: Template) -> bool:
    if template.count < _REPEATED:
        return False
    if template.first[0] != template.last[0]:
        return False
    return template.first[0].from_job


def _loops_of(template: Template, others: Iterable[Template]) -> Iterable[Loop]:
    """The loop of each process that prints the shape; of all together where nothing tells them apart. What processes
    print but once each is none."""
    loop = _loop_of(template, others)
    if not template.processes:
        return [loop]
    if template.count < _REPEATED * len(template.processes):
        return []
    loops, count = list[Loop](), max(loop.count // len(template.processes), 1)
    for lines in template.processes:
        ranks = frozenset({lines.process}) if isinstance(lines.process, int) else frozenset[int]()
        loops.append(
            replace(
                loop,
                first=lines.kept[0],
                last=lines.kept[-1],
                count=count,
                ranks=ranks,
                process=lines.process,
                kept=lines.kept,
            )
        )
    return loops


def _loop_of(template: Template, others: Iterable[Template]) -> Loop:
    stream, first = template.first
    counts = _counts(template.samples, shared=len(template.processes) > 1)
    measured = _is_measured(template, others, counts=counts)
    return Loop(stream, first, template.last[1], template.count, template.ranks, counts, measured, shape=template.text)


def _is_measured(template: Template, others: Iterable[Template], *, counts: bool) -> bool:
    """Whether its lines print a measure, as those of training do. A shape that does not count, or whose lines begin
    with different words, must take turns with another one."""
    if not _prints_measure(template, counts=counts):
        return False
    if counts and not template.text.startswith(_WILDCARD):
        return True
    return any(_is_interleaved(template, other) for other in others)


def _prints_measure(template: Template, *, counts: bool) -> bool:
    """Whether its lines print a measure that changes, or count for long beside one."""
    if _SET_UP.search(template.text):
        return False
    measures = {tuple(_MEASURE.findall(sample)) for sample in template.samples}
    if len(measures) > 1:
        return True
    if measures == {()}:
        return False
    return counts and template.count >= _INTERLEAVED


def _counts(samples: Sequence[str], *, shared: bool) -> bool:
    """Whether some whole number grows, or falls, from line to line. shared: several processes may be at one number."""
    rows = [tuple(whole_numbers(sample)) for sample in samples]
    if len(rows) < 2:
        return False
    columns: Iterator[tuple[int, ...]] = zip(*rows, strict=False)
    return any(_is_monotone(column, shared=shared) for column in columns)


def _is_monotone(column: Sequence[int], *, shared: bool) -> bool:
    """Whether the numbers move one way; where tasks run side by side, some come out of order."""
    moves = [later - earlier for earlier, later in pairwise(column)]
    if 0 in moves and not shared:
        return False
    return abs(sum(moves)) >= _DIRECTED * sum(map(abs, moves)) > 0


def _is_interleaved(template: Template, other: Template) -> bool:
    """Whether lines of two shapes take turns, as those of tables and bars within a loop do."""
    if template is other:
        return False
    if template.first[0] != other.first[0]:
        return False
    if min(template.count, other.count) < _INTERLEAVED:
        return False
    return max(template.first[1], other.first[1]) < min(template.last[1], other.last[1])
