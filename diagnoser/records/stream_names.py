"""What the names of streams say: which number in them is the rank, which part is a host, and what is no name."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from diagnoser.dialects import host_places, node_lists
from diagnoser.dialects.rank_tables import MACHINE

_DIGITS = re.compile(r"\d+")
_LETTER = re.compile(r"(?<![A-Za-z])[a-z](?![A-Za-z])")
_NUMBERED = re.compile(r"(?P<word>[A-Za-z]*)(?P<sign>[\s_.:=#@/-]{0,2})(?P<number>\d{1,6})(?!\d)")
_WORD = re.compile(r"[A-Za-z]+")
_TIME = re.compile(r"\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d|\d\d/\d\d/\d\d|(?<![A-Za-z\d])\d{1,9}\.\d+(?:e|s\b|$)")
_FILE = re.compile(r"(?i)\.(?:py|cc|cpp|cu|cuh|hpp|hh?|c|rs|go|jl|r|m|java|scala|kt|so|json|ya?ml|txt|log|sh)\b")
_BARE = re.compile(r"\W{0,2}(\d{1,6})(?:/\d{1,6})?\W{0,2}")
_WORD_AND_NUMBER = re.compile(r"[^\w]{0,2}(?=[^\s]*\d)(?=[^\s]*[A-Za-z])[A-Za-z#@%].{0,79}|[#@%]\d{1,6}")
_LEVELS = "debug|info|notice|warn|warning|error|err|critical|fatal|trace|severe|verbose|dbg|inf|wrn|crit"
_COUNTERS = (
    "epochs?|steps?|iter|iters|iterations?|it|batch|minibatch|trials?|folds?|cv|rounds?|generations?|gen|episodes?|ep"
    "|updates?|layers?|blocks?|experts?|heads?|buckets?|chunks?|shards?|parts?|files?|samples?|queries|query|docs?"
    "|requests?|req|turns?|games?|envs?|seeds?|runs?|splits?|stages?|phases?|levels?|pages?|tables?|rows?|cols?|columns?"
    "|lines?|tests?|cases?|examples?|questions?|prompts?|tokens?|attempts?|versions?|params?|loss|acc|accuracy|lr|time"
    "|eta|section|chapter|item|index|idx|num|global_step|mem|memory|size|total|frame|thread|class|label|cluster|tree"
    "|checkpoint|ckpt|chain|draw|model|config|figure|fig|option|arg|port|exit|code|status|http|xid|errno|signal"
)
_SOURCE = (
    "for|if|elif|else|def|return|import|from|class|with|while|try|except|raise|lambda|and|or|not|in|is|as|self|print"
    "|int|float|str|void|const|auto|struct|template|namespace|public|private|static"
)
_NONE = re.compile(f"(?:{_LEVELS}|{_SOURCE})|.*(?:error|exception|warning|loss)", re.IGNORECASE)
"""Words that no stream is called by: levels, source."""
_COUNTER = re.compile(f"(?:{_COUNTERS})", re.IGNORECASE)
"""Words that stand before numbers, or alone, where a program counts or lists."""
_STREAM = (
    r"(?:(?:world|global|mpi|ddp|dist)_?)?ranks?|workers?|wrk|procs?|process|nodes?|hosts?|trainers?|actors?|replicas?"
    r"|[tdpecs]p|pods?|peers?|learners?|rollouts?|tasks?|clients?|servers?|machines?|gpus?|tpus?|instance|executors?|agents?"
)
_CALLED = re.compile(rf"(?i)(?<![A-Za-z])(?:{_STREAM})(?:[\s_.:=#/-]{{0,2}}\d|[\s_.:=#/-]{{1,2}}[a-z](?![A-Za-z]))")
_SAYS_RANK = re.compile(r"(?i)(?:(?:world|global|mpi|ddp|dist)_?)?rank|r")
_NODE_NOUN = re.compile(r"(?i).*(?:node|host|server|machine)")
_NO_RANK = re.compile(
    rf"{_NODE_NOUN.pattern}|(?:local|lr|gpu|cuda|device|dev|tpu|slot|lane|socket|core|numa|rack|cn|nid|dgx"
    r"|hgx|ip|port|pid|thread|attempt|restart|localrank|job|cluster)"
)
"""Words before numbers of nodes and devices."""
_PARTS = re.compile(r"[^\s/|@#()\[\]{}<>=:,]+")
_HOST = re.compile(
    r"(?i)(?=.*(?:node|host|server|machine|compute|dgx|hgx|nid|blade|cn))[a-z][a-z-]{0,40}(?:[_-][a-z]|[_-]?\d{1,6})"
    r"|(?:[a-z]+-)*gpu(?:-[a-z]*\d{1,6}|0\d{1,5}|\d{2,6})|ip-\d{1,3}(?:-\d{1,3}){3}"
)
_AT_HOST = re.compile(r"\w@([A-Za-z][\w.-]{1,80})(?=[])>}|:]{0,2}(?:\s|$))")
_OF_HOST = re.compile(r"([^.]{3,80})\.\d{1,5}")
"""A process by its number behind its machine's name."""
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_MACHINE = re.compile(r"[A-Za-z][\w-]*(?:\d\d|[-_][a-z])|[A-Za-z]\d{1,3}(?:[A-Za-z]\d{1,3}){1,4}")
"""How machines are numbered or lettered where no word says that it is one."""
_ANY_MACHINE = re.compile(MACHINE)
_SHORTEST_HOST = 3
"""Least characters of a machine's name that no word says is one: ``g1`` is a device."""
_DOMAIN = re.compile(
    r"(?i)[a-z][\w-]{0,62}(?:\.[a-z][\w-]{0,62}){2,6}|[a-z][\w-]{0,62}\.(?:local|internal|cluster|lan)"
)
_ROLE = re.compile(
    rf"(?i)(?:{_STREAM}|actor|critic|policy|reward|value|ref(?:erence)?|model|driver|head|master|chief|ps"
    r"|generator|evaluator|eval|train|test|stdout|stderr)[\s_.:=#/-]{0,2}\d{0,6}"
)
"""What processes do, which several ranks have in common as well."""
_PLACES = 4
"""Most numbers in a name that are looked at."""
_LEAST_SHARE = 0.75
"""Share of the numbers up to the largest from which on they count ranks: some ranks may be silent."""


def skeleton(value: str) -> str:
    """A name without what differs between the streams of a set: numbers, and letters that stand alone."""
    return _LETTER.sub("a", _DIGITS.sub("0", value))


def is_none(value: str) -> bool:
    """Whether no stream is called so: a level, a counter, a time, a file, source."""
    if _TIME.search(value) and _TIME.search(without(host_in(value, ()), value)):
        return True
    if _FILE.search(value):
        return True
    words = _WORD.findall(value)
    if not words:
        return not (_BARE.fullmatch(value) or _ADDRESS.search(value))
    if any(map(_NONE.fullmatch, words)):
        return True
    return any(map(_COUNTER.fullmatch, _numbered_words(value) or words))


def is_counter(word: str) -> bool:
    """Whether a program counts by it."""
    return _COUNTER.fullmatch(word) is not None


def is_no_rank(word: str) -> bool:
    """Whether it stands before numbers of nodes and devices."""
    return _NO_RANK.fullmatch(word) is not None


def is_node_noun(word: str) -> bool:
    """Whether it stands before numbers of nodes."""
    return _NODE_NOUN.fullmatch(word) is not None


def may_be_host(word: str) -> bool:
    """Whether it is a machine's name, or may be one where what stands beside it says so."""
    if _is_host(word):
        return True
    if not _ANY_MACHINE.fullmatch(word):
        return False
    if not node_lists.is_host_name(word):
        return False
    if len(word) < _SHORTEST_HOST:
        return False
    if is_called_stream(word.partition(".")[0]):
        return False
    if is_none(word):
        return False
    return _ROLE.fullmatch(word) is None


def is_numbered(value: str) -> bool:
    """Whether it has a number, or ends with a letter for one: ``node-a``."""
    return _DIGITS.search(value) is not None or _LETTER.search(value) is not None


def is_word_and_number(value: str) -> bool:
    """Whether it is one word with a number or a letter for it, as ordinary text hardly begins."""
    if _WORD_AND_NUMBER.fullmatch(value):
        return True
    if _ADDRESS.fullmatch(value):
        return True
    return _HOST.fullmatch(value.lstrip("@#%")) is not None


def is_called_stream(value: str) -> bool:
    """Whether it says that it is a rank, worker, node or the like, and which."""
    return _CALLED.search(value) is not None


def have_no_gap(values: Collection[str]) -> bool:
    """Whether those that are nothing but a number, or one of so many, count from 0 or 1 without a gap."""
    numbers = sorted({int(bare[1]) for bare in map(_BARE.fullmatch, values) if bare})
    if not numbers:
        return True
    return numbers[0] <= 1 and numbers[-1] - numbers[0] + 1 == len(numbers) == len(values)


def _numbered_words(name: str) -> list[str]:
    """The words in front of the numbers of a name."""
    return [match["word"] for match in _NUMBERED.finditer(name)]


def _numbers(name: str) -> list[int]:
    """The numbers of a name, the last first."""
    return [int(match["number"]) for match in _NUMBERED.finditer(name)][::-1]


@dataclass(frozen=True, slots=True)
class NumberRule:
    """The rank is the number at a place of the name, counted from its end, and ``offset``.

    is_bare: only names that are nothing else are ranks: a launcher that numbers them speaks by a name of its own.
    """

    place: int
    offset: int = 0
    is_bare: bool = False

    def rank(self, name: str) -> int:
        """-1 for a name without such a number."""
        if self.is_bare and not _BARE.fullmatch(name):
            return -1
        numbers = _numbers(name)
        if self.place >= len(numbers):
            return -1
        return max(numbers[self.place] + self.offset, -1)


def number_rule(names: Collection[str], stated: Mapping[str, int], sizes: Collection[int]) -> NumberRule | None:
    """Which number in the names of streams is the rank; None where that is not certain.

    names: of all streams of the log; one without a number is the launcher's own.
    stated: name -> rank that the stream says it is. One that contradicts the number takes the rule away.
    sizes: numbers of ranks that the log states.
    """
    numbered = [name for name in names if _DIGITS.search(name)]
    if len(set(numbered)) < len(numbered):
        return None  # they are numbered on each host anew
    bare = list(filter(_BARE.fullmatch, numbered))
    if 1 < len(bare) < len(numbered):
        rule = _first_rule(bare, stated, sizes)
        return replace(rule, is_bare=True) if rule else None
    return _first_rule(numbered, stated, sizes)


def _first_rule(names: Collection[str], stated: Mapping[str, int], sizes: Collection[int]) -> NumberRule | None:
    """The first rule by which each name has a rank of its own, as the streams state it or as ranks are counted."""
    for rule in _rules(names):
        ranks = {name: rule.rank(name) for name in (*names, *stated)}
        if not _are_ranks(ranks):
            continue
        if stated:
            if stated.items() <= ranks.items():
                return rule
        elif rule.offset == 0 and count_ranks(ranks.values(), sizes):
            return rule
    return None


def _rules(names: Iterable[str]) -> Iterator[NumberRule]:
    """The numbers that differ between streams and are no node's or device's; those called a rank first."""
    places: dict[int, set[str]] = {}
    for name in names:
        words = _numbered_words(name)[::-1]
        for place, word in enumerate(words[:_PLACES]):
            places.setdefault(place, set()).add(word)
    usable = [place for place, words in places.items() if not any(map(_NO_RANK.fullmatch, words))]
    usable.sort(key=lambda place: (not all(map(_SAYS_RANK.fullmatch, places[place])), place))
    for place in usable:
        yield NumberRule(place)
        yield NumberRule(place, -1)


def _are_ranks(ranks: Mapping[str, int]) -> bool:
    """Whether every stream is a rank of its own."""
    if min(ranks.values()) < 0:
        return False
    return len(set(ranks.values())) == len(ranks)


def count_ranks(numbers: Collection[int], sizes: Collection[int] = ()) -> bool:
    """Whether different numbers count from 0 to the last rank. sizes: numbers of ranks that the log states."""
    if len(numbers) < 2:
        return False
    if min(numbers) != 0:
        return False
    most = max(numbers) + 1
    if sizes:
        return most <= max(sizes) < 2 * len(numbers)
    return len(numbers) >= _LEAST_SHARE * most


def without(host: str, name: str) -> str:
    """A name without the host in it, whose number is no rank."""
    return name.replace(host, "", 1) if host else name


def hosts_of(text: str) -> Iterable[str]:
    """Hosts that a message mentions."""
    return host_places.hosts_in(text)


def host_in(name: str, hosts: Collection[str]) -> str:
    """The part of a stream's name that is a host; "" without one.

    hosts: that the log mentions elsewhere.
    """
    for part in _PARTS.finditer(name):
        for word in (part[0], _OF_HOST.sub(r"\1", part[0])):
            if word in hosts or _is_host(word):
                return word
    at = _AT_HOST.search(name)
    return at[1] if at else ""


def shared_hosts(ranks: Mapping[str, int]) -> frozenset[str]:
    """The parts of streams' names that are machines, whatever those are called: each stands in the names of equally
    many ranks in a row. ranks: name -> rank."""
    columns = zip(*(_parts_before_rank(name, rank) for name, rank in ranks.items()), strict=False)
    for column in columns:
        ranks_of: dict[str, list[int]] = {}
        for part, rank in zip(column, ranks.values(), strict=True):
            ranks_of.setdefault(part, []).append(rank)
        if _are_machines(ranks_of):
            return frozenset(ranks_of)
    return frozenset()


def _parts_before_rank(name: str, rank: int) -> list[str]:
    return [part[0] for part in _PARTS.finditer(name) if _DIGITS.findall(part[0]) != [str(rank)]]


def lone_hosts(ranks: Mapping[str, Collection[int]], *, is_ranked: bool) -> frozenset[str]:
    """The names of streams themselves, where they are those of machines: one word each, of which several ranks print
    behind one and none behind two, or which are alike but for a number and no ranks.

    ranks: that print behind each name.
    is_ranked: a rank is known by some name.
    """
    words = {name.strip("[](){}<>") for name in ranks}
    if len(words) < 2 or not all(map(_PARTS.fullmatch, words)) or any(map(_ROLE.fullmatch, words)):
        return frozenset()
    counts = list(map(len, ranks.values()))
    if max(counts) > 1 and len(set().union(*ranks.values())) == sum(counts):
        return frozenset(words)
    return frozenset(words) if not is_ranked and _are_alike(words) else frozenset()


def _are_alike(names: Collection[str]) -> bool:
    """Whether names differ only by a letter or a number of two digits, which counts nothing, behind a word that is no
    role."""
    if len(set(map(skeleton, names))) != 1:
        return False
    if not all(map(_MACHINE.fullmatch, names)):
        return False
    if any(map(_ROLE.fullmatch, names)):
        return False
    if any(map(is_called_stream, names)):
        return False
    return not any(map(is_none, names))


def _are_machines(ranks_of: Mapping[str, list[int]]) -> bool:
    """Whether equally many ranks in a row share each name, which is no role: several, or names are alike."""
    width = len(next(iter(ranks_of.values())))
    if len(ranks_of) < 2:
        return False
    if width < 2 and not _are_alike(ranks_of):
        return False
    for name, ranks in ranks_of.items():
        if name.isdecimal():
            return False
        if _ROLE.fullmatch(name):
            return False
        if is_none(name):
            return False
        if sorted(ranks) != list(range(min(ranks), min(ranks) + width)):
            return False
    return True


def machines_among(names: Iterable[str]) -> frozenset[str]:
    """The names that are those of machines by their form; all of several that are alike but for a number."""
    different = frozenset(names)
    if len(different) > 1 and _are_alike(different):
        return different
    return frozenset(filter(_is_host, different))


def _is_host(part: str) -> bool:
    return any(pattern.fullmatch(part) for pattern in (_HOST, _ADDRESS, _DOMAIN))
