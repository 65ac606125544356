"""Learns which process of the job each name in a log stands for, by what the log says of its names.

Whatever a site's launcher or logger calls a process (``@1/3``, ``<2>``, ``train.worker3``, a pid), it puts the name at
the same place in front of many lines. Somewhere the log counts its processes: in a field, or in a sentence that each of
them prints, as ``worker 3 joined from gpu-07``. What stands together on a line belongs together.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import NamedTuple

from diagnoser.dialects import mentions
from diagnoser.model.choice import only, single
from diagnoser.records import stream_names
from diagnoser.structure import tracebacks

_CLOCK = r"\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# begins with one digit, whatever follows: three times as fast to search for
_TIME = re.compile(rf"\d(?:\d{{3}}[-/]\d\d[-/]\d\d(?:[T ]\d{_CLOCK})?|(?<!\w\d){_CLOCK}|(?<!\w\d)\d{{8,9}}\.\d+)")
_DAY = re.compile(r"\b[A-Z][a-z]{2}[- ] ?\d{1,2} ~")
_WORD = re.compile(r"[A-Za-z0-9_][\w.-]*\w|\w")
_NUMBER = re.compile(r"\d+")
_OF_SIZE = re.compile(
    r"(?<![\w./])(?P<noun>[A-Za-z_]{0,40})[\s@#:_-]{0,2}(?P<index>\d{1,5})(?: of |/)(?P<size>\d{1,5})(?![\w./])"
)
_MAY_BE_OF_SIZE = re.compile(r"\d(?: of |/)\d")
_NUMBERED = re.compile(r"(?<![\w./])(?P<noun>[A-Za-z][A-Za-z_]{0,40})[\s#:=_-]{1,2}(?P<index>\d{1,5})(?![\w./])")
_PEER = re.compile(r"(?i)(?:^|\W)(?:to|with|next|toward|towards|via|peer at)\W{1,3}$")
"""What stands before the host of somebody else than the process that is counted."""
_HEADLESS = re.compile(r"\s(?!\s*\d)|(?:Exception Group )?Traceback \(most recent")
_LENGTH, _WORDS, _HEAD_WORDS = 240, 16, 9
"""Characters and words of a line that are looked at, and words among which names stand."""
_DIGITS = 5
"""Most of a number of a process."""
_MOST_LINES, _MOST_PROCESSES = 4_000, 4_096
_COVERED = 0.9
"""Least share of what stands at one place that are names."""
_LINES_OF_NAME, _SHARE = 3, 0.2
"""Least lines of a name, on average, or share of all lines that are named: a sentence is about whom it counts."""


class Name(NamedTuple):
    """One word of a line, or two beside each other.

    at: its place.
    before: the word in front of it but for its numbers, "" where that is a level.
    """

    at: int
    before: str
    words: tuple[str, ...]

    @property
    def column(self) -> "Name":
        """The name but for its numbers."""
        return self._replace(words=tuple(map(stream_names.skeleton, self.words)))


class _Words:
    """A line in words. text: without times."""

    def __init__(self, line: str) -> None:
        text = _TIME.sub("~", line[:_LENGTH])
        self.text = _DAY.sub("~", text) if " ~" in text else text

    @cached_property
    def shape(self) -> str:
        """The text without numbers."""
        return stream_names.skeleton(self.text)

    @cached_property
    def words(self) -> list[str]:
        """The first words of the text."""
        return _WORD.findall(self.text)[:_WORDS]

    def names(self, end: int = _HEAD_WORDS) -> Iterator[Name]:
        """The names that may stand in front of a word."""
        before = ""
        for at, word in enumerate(self.words[:end]):
            if _NUMBER.search(word):
                yield Name(at, before, (word,))
                following = self.words[at + 1 : min(at + 2, end)]
                if following and _NUMBER.search(following[0]):
                    yield Name(at, before, (word, following[0]))
            before = _before(word)


class _Count(NamedTuple):
    """A place where lines count processes.

    noun: what it calls them. end: names stand up to this word.
    hosts: index -> the host that stands beside it, "" without one.
    lines: that count, each with its index.
    """

    noun: str
    end: int
    hosts: Mapping[int, str]
    lines: Sequence[tuple[int, _Words]]


@lru_cache(maxsize=16384)
def _before(word: str) -> str:
    """A word in front of a name but for its numbers; "" for a level, which tells nobody apart."""
    if stream_names.is_none(word):
        return ""
    return "" if len(word) == 1 else stream_names.skeleton(word)


class ProcessNames:
    """The processes of a job by their names.

    lines: of the log, in order.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        heads = (line for line in lines if line.strip() and not _HEADLESS.match(line))
        read = list(map(_Words, islice(heads, _MOST_LINES)))
        counts = _consistent([*_side_by_side(read), *_of_sizes(read)], lines)
        self.hosts = {index: host for count in counts for index, host in count.hosts.items() if host}
        self.nouns: Mapping[str, int] = {}
        self.rank_hosts: Mapping[int, str] = {}
        """rank -> host."""
        self._names, self._machines = dict[Name, int](), set[Name]()
        self._names_of: dict[str, list[Name]] = {}
        self._are_ranks = False
        if not counts:
            return  # as in most logs
        self._shapes, self._count = Counter(words.shape for words in read), len(counts[0].hosts)
        self._are_ranks = self._count >= max(chain.from_iterable(map(mentions.world_sizes, lines)), default=1)
        if self._are_ranks:
            self.nouns = _nouns(counts)
            self.rank_hosts = self.hosts
        names = _names(counts, read)
        self._machines = {name for name in names if set(name.words) <= set(self.hosts.values())}
        if len(self._machines) < len(names):
            self._names = names

    def index_of(self, line: str, *, goes_on: bool = False) -> int:
        """The index of who prints a line; -1 where no name in it tells, or several do.

        goes_on: the line may be one of a traceback. All others of a machine may be its launcher's, though it runs but
        one process.
        """
        names = self._names_in(line)
        if not goes_on and self._machines.issuperset(names):
            return -1
        index = only({self._names[name] for name in names})
        return -1 if index is None else index

    def _names_in(self, line: str) -> list[Name]:
        """The names in a line, which is asked for several times."""
        if not self._names:
            return []
        if line not in self._names_of:
            self._names_of[line] = list(filter(self._names.__contains__, _Words(line).names()))
        return self._names_of[line]

    def place(self, line: str, body: str, rank: int, node: str) -> tuple[int, str]:
        """Rank and node of who prints a line.

        rank, node: as known otherwise; -1 and "" where they are not. The node of the process counts before that of who
        carries its lines.
        """
        if not self._names_in(line):
            return rank, node
        index = self.index_of(line, goes_on=tracebacks.may_go_on(body))
        if index < 0:
            return rank, node
        if self._are_ranks:
            if rank not in (-1, index):
                return rank, node
            rank = index
        return rank, self.hosts.get(index, node)

    def is_rare(self, line: str) -> bool:
        """Whether each process prints such a line once, at most."""
        return self._shapes[_Words(line).shape] <= self._count


def _side_by_side(lines: Iterable[_Words]) -> Iterator[_Count]:
    """Counts beside hosts, in lines that differ in nothing else than numbers."""
    alike = defaultdict[str, list[_Words]](list)
    for words in lines:
        alike[words.shape].append(words)
    for group in alike.values():
        if len(group) > 1:
            yield from _counted(group)


def _counted(group: Sequence[_Words]) -> Iterator[_Count]:
    """The count beside a host in lines that are alike; where there are several, the last."""
    columns = list(zip(*(words.words for words in group), strict=False))
    hosts = [at for at, column in enumerate(columns) if _are_own_hosts(group, column)]
    if not hosts:
        return
    # those that look like machines whatever stands beside them, then the last: what a sentence says is surer
    hosts.sort(key=lambda at: (not stream_names.machines_among(columns[at][:1]), -at))
    for at in range(len(columns) - 1, -1, -1):
        indices = _indices(columns[at])
        if at in hosts and stream_names.machines_among(columns[at]):
            continue
        placed = _placed(indices, [columns[host] for host in hosts if host != at])
        if placed:
            yield _Count(_noun(columns, at), at + 1, placed, list(zip(indices, group, strict=True)))


def _placed(indices: Sequence[int], hosts: Iterable[Sequence[str]]) -> dict[int, str]:
    """The host of each process by the first of these columns that gives every one of them a single one."""
    if not indices:
        return {}
    for column in hosts:
        placed = single(_together(indices, column))
        if len(placed) == len(set(indices)) and not _are_numbered(column, indices):
            return placed
    return {}


def _are_own_hosts(group: Sequence[_Words], column: Sequence[str]) -> bool:
    """Whether the words of a column, of which there are several, look like names of machines, and what stands before
    them does not say that those are others'."""
    words = set(column)
    if len(words) < 2:
        return False
    if not all(map(stream_names.may_be_host, words)):
        return False
    first, host = group[0].text, column[0]
    return _PEER.search(first[: first.find(host)]) is None


def _indices(column: Sequence[str]) -> list[int]:
    """The numbers in words that differ in one only, where they count from 0 without a gap; empty of all others."""
    numbers = list(zip(*map(_NUMBER.findall, column), strict=False))
    counting = [each for each in numbers if len(set(each)) > 1]
    if len(counting) != 1 or max(map(len, counting[0])) > _DIGITS:
        return []
    indices = list(map(int, counting[0]))
    return indices if _count_up(set(indices)) else []


def _count_up(numbers: Collection[int]) -> bool:
    if not 1 < len(numbers) <= _MOST_PROCESSES:
        return False
    return (min(numbers), max(numbers)) == (0, len(numbers) - 1)


def _are_numbered(names: Sequence[str], indices: Sequence[int]) -> bool:
    """Whether names of no known form have the numbers of the processes: then they are names of these."""
    if stream_names.machines_among(names[:1]):
        return False
    return all(str(index) in _NUMBER.findall(name) for name, index in zip(names, indices, strict=True))


def _together(indices: Sequence[int], words: Sequence[str]) -> dict[int, set[str]]:
    together = defaultdict[int, set[str]](set)
    for index, word in zip(indices, words, strict=True):
        together[index].add(word)
    return together


def _noun(columns: Sequence[Sequence[str]], at: int) -> str:
    """The word in front of numbers, or of which they are the end."""
    word = columns[at][0]
    if word.isdecimal():
        return columns[at - 1][0] if at else ""
    return word.rstrip("0123456789_-.")


def _of_sizes(lines: Iterable[_Words]) -> Iterator[_Count]:
    """Counts of so many: ``worker 3 of 8``, ``@1/3``."""
    counting = defaultdict[tuple[str, int, int], list[tuple[int, _Words]]](list)
    for words in lines:
        if not _MAY_BE_OF_SIZE.search(words.text):
            continue
        for match in _OF_SIZE.finditer(words.text):
            end = len(_WORD.findall(words.text[: match.end("index")]))
            counting[match["noun"], end, int(match["size"])].append((int(match["index"]), words))
    for (noun, end, size), lines_of in counting.items():
        indices = {index for index, _ in lines_of}
        if stream_names.is_counter(noun):
            continue
        if len(indices) == size and _count_up(indices):
            yield _Count(noun, end, dict.fromkeys(indices, ""), lines_of)


def _consistent(counts: Iterable[_Count], lines: Iterable[str]) -> list[_Count]:
    """The counts of the most processes, as far as they agree on where these run."""
    counts = sorted(counts, key=_most_first)
    of_nodes = [count for count in counts if stream_names.is_node_noun(count.noun)]
    taken, hosts = _agreeing(_of_processes(counts, of_nodes, lines))
    return taken + [count for count in of_nodes if count.hosts == hosts and count not in taken]


def _most_first(count: _Count) -> tuple[int, bool, int]:
    return -len(count.hosts), not any(count.hosts.values()), -len(count.lines)


def _of_processes(counts: Iterable[_Count], of_nodes: Iterable[_Count], lines: Iterable[str]) -> list[_Count]:
    """None of devices; of nodes only where each runs one process, and no line speaks of ranks."""
    processes = [count for count in counts if not stream_names.is_no_rank(count.noun)]
    if processes or any("rank" in line.lower() for line in lines):
        return processes
    return list(filter(_is_one_a_host, of_nodes))


def _agreeing(counts: Sequence[_Count]) -> tuple[list[_Count], dict[int, str]]:
    """Those of as many processes as the first that contradict none before, and the hosts of the processes."""
    taken, hosts = list[_Count](), dict[int, str]()
    for count in counts:
        if len(count.hosts) < len(counts[0].hosts):
            break
        if all(host in ("", hosts.get(index, host)) for index, host in count.hosts.items()):
            taken.append(count)
            hosts |= {index: host for index, host in count.hosts.items() if host}
    return taken, hosts


def _is_one_a_host(count: _Count) -> bool:
    """Whether each of what is counted has a host of its own."""
    return len({*count.hosts.values()} - {""}) == len(count.hosts)


@dataclass(slots=True)
class _Column:
    """What stands at one place of the lines.

    names: how many different names. named, other: lines with one of them, and with anything else.
    shapes: of these lines.
    """

    names: int = 0
    named: int = 0
    other: int = 0
    shapes: set[str] = field(default_factory=set)

    def tells(self, lines: int) -> bool:
        """Whether who prints a line stands there, whatever is said, in enough of so many lines."""
        total = self.named + self.other
        if self.named < _COVERED * total:
            return False
        if len(self.shapes) < 2:
            return False
        return total >= min(_LINES_OF_NAME * self.names, _SHARE * lines)


def _names(counts: Iterable[_Count], lines: Sequence[_Words]) -> dict[Name, int]:
    """Name -> index of the only process that has it, of the names at places that tell who prints a line."""
    known = defaultdict[Name, set[int]](set)
    for count in counts:
        for index, words in count.lines:
            for name in words.names(min(count.end, _HEAD_WORDS)):
                known[name].add(index)
    names = single(known)
    columns = defaultdict[Name, _Column](_Column)
    for name in names:
        columns[name.column].names += 1
    for words in lines if names else ():
        for name in words.names():
            if name.column in columns:
                column = columns[name.column]
                column.named += name in names
                column.other += name not in names
                column.shapes.add(words.shape)
    return {name: index for name, index in names.items() if columns[name.column].tells(len(lines))}


def _nouns(counts: Iterable[_Count]) -> dict[str, int]:
    """Noun, in lower case -> how many processes it numbers; of single letters only that for ranks."""
    nouns = {count.noun.lower(): len(count.hosts) for count in counts if len(count.noun) > 1}
    return nouns | {noun: max(nouns.values()) for noun in ("rank", "r") if nouns}


def numbered(text: str, nouns: Mapping[str, int]) -> Iterator[int]:
    """The numbers of processes that a text mentions by one of these nouns."""
    for match in _NUMBERED.finditer(text):
        if int(match["index"]) < nouns.get(match["noun"].lower(), 0):
            yield int(match["index"])
