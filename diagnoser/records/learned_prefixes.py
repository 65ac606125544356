"""Learns the prefix of this very log: the token in front of its lines that tells its streams apart.

A site's own launcher or shell puts ``w3>``, ``[node-a/2]`` or ``gpuhost07 |`` in front of every line, and no table of
dialects can know it. The log shows it by itself: the same token stands in front of all lines of a traceback, which
keep their indentation after it; or few values take turns in front of lines that are alike behind each of them.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple

from diagnoser.dialects import mentions
from diagnoser.dialects.mentions import Tells
from diagnoser.dialects.prefixes import Prefix
from diagnoser.model.choice import single
from diagnoser.records import stream_names
from diagnoser.records.sections import END
from diagnoser.records.stream_names import NumberRule

_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE)"
_CLOCK = r"(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_SECONDS = r"\d{9,16}(?:\.\d{1,9})?|\d{1,7}\.\d{1,9}s?"
_STAMP = (
    r"(?:[|;,] {0,3})?"
    rf"(?:\[? {{0,8}}(?:{_CLOCK}|{_SECONDS})\]?(?: [-|]|[|;,])?[ \t]{{0,3}}(?<=[ \t|;,])){{0,2}}"
)
"""A launcher may print the time before the name of the stream: by the clock, since the epoch, or since the start."""
_NAME = r"[\w.@#%/=:+-]{1,80}"
_COUNTED = rf"{_NAME}(?: \w{{0,12}}\d{{1,6}}(?: of \d{{1,6}})?)?"
"""``rank 3``, ``gpu-7 r3`` and ``Rank 3 of 8`` have blanks within."""
_CHANNEL = r"(?: [\[(]?std(?:out|err)[\])]?)?"
_END = r"(?:[ \t]|$)"


@dataclass(frozen=True, slots=True)
class PrefixForm:
    """How the name of a stream is set off from the message: a pattern whose group ``value`` is the name.

    is_weak: ordinary text looks like this, too: what stands before must look like a name and a number.
    is_sure: no program writes so by itself: whoever carries the lines does.
    is_head: a logger's head, which stands in front of a record and not of all of its lines.
    examples: (line, value, message).
    """

    name: str
    pattern: re.Pattern[str]
    examples: tuple[tuple[str, str, str], ...]
    is_weak: bool = False
    is_head: bool = False
    is_sure: bool = False


def _form(
    name: str, source: str, *examples: tuple[str, str, str], is_weak: bool = False, is_sure: bool = False
) -> PrefixForm:
    return PrefixForm(name, re.compile(_STAMP + source), examples, is_weak, is_sure=is_sure)


_DATED = re.compile(rf"\[?{_CLOCK}\b")
"""No program prints anything in front of its own time, so what stands there is a carrier's."""
_HEAD = re.compile(rf"\[?{_CLOCK}\b| {{0,4}}[\[(<]?{_LEVEL}\b")
"""A logger's head, with or without a name in it."""


def _head(name: str, source: str, *examples: tuple[str, str, str]) -> PrefixForm:
    return PrefixForm(name, re.compile(source), examples, is_head=True)


FORMS = (
    _head(
        "time and name in brackets",
        rf"\[{_CLOCK}[ ,|]{{1,3}}(?P<value>[^\[\]\n]{{1,60}})\][:|]?{_END}",
        ("[2026-01-02 03:04:05 DP0 TP1] step 3", "DP0 TP1", "step 3"),
        ("[03:04:05.123 | worker-3] step 3", "worker-3", "step 3"),
    ),
    _head(
        "name between time and level",
        rf"\[?{_CLOCK}\]?[ \t|-]{{1,4}}\[?(?P<value>{_NAME})\]?[ \t|:-]{{1,4}}(?=[\[(<]?{_LEVEL}\b)",
        ("2026-01-02 03:04:05,123 - worker-2 - INFO - step 3", "worker-2", "INFO - step 3"),
        ("03:04:05.123 [learner-1] INFO  org.acme.Trainer - step 3", "learner-1", "INFO  org.acme.Trainer - step 3"),
    ),
    _head(
        "name behind time and level",
        rf"(?:\[?{_CLOCK}\]?[ \t|-]{{1,4}})? {{0,4}}[\[(<]?{_LEVEL}[\])>]?[ \t|:-]{{1,4}}"
        rf"\[?(?P<value>{_NAME}(?:\{{[^{{}}\n]{{1,60}}\}})?)(?<!:)[\]:]{{1,2}}{_END}",
        ("2026-01-02T03:04:05Z  INFO worker{id=2}: step 3", "worker{id=2}", "step 3"),
    ),
    PrefixForm(
        "section",  # named in a line above
        re.compile(rf"(?P<value>[^{END}\n]{{1,120}}){END}"),
        ((f"rank_3{END}  File", "rank_3", "  File"),),
        is_sure=True,
    ),
    _form(
        "name and process in brackets",
        rf"\[(?P<value>{_NAME} \(pid \d{{1,8}}\))\]{_END}",
        ("10:00:01 [fit/2 (pid 81)] step 3", "fit/2 (pid 81)", "step 3"),
        is_sure=True,
    ),
    _form(
        "file",  # grep, where lines of several files are shown as one stream
        r"(?P<value>(?:[\w.@=+-]{1,80}/){0,8}?[\w.@=+-]{1,80}?)(?:[/._-](?:std)?(?:out|err))?\.(?:log|out|err|txt):(?!\d{1,7}(?::|$))",
        ("logs/rank_3.log:step 3", "logs/rank_3", "step 3"),
        ("run/attempt_0/3/stderr.log:  File", "run/attempt_0/3", "  File"),
        is_sure=True,
    ),
    _form(
        "brackets",
        rf"(?P<value>[\[(<{{][^\[\](){{}}<>\n]{{1,60}}[\])>}}])[:|]?{_END}",
        ("[node-a/2] step 3", "[node-a/2]", "step 3"),
        ('(actor 3)   File "a.py", line 3', "(actor 3)", '  File "a.py", line 3'),
        ("10:00:01 [w3]: step 3", "[w3]", "step 3"),
    ),
    _form(  # torchrun, whose role a site names
        "brackets and a colon",
        r"(?P<value>\[[^\[\](){}<>\n]{1,60}\]):",
        ("[gpu-7:3]:step 3", "[gpu-7:3]", "step 3"),
        ('[gpu-7:3]:  File "a.py", line 3', "[gpu-7:3]", '  File "a.py", line 3'),
    ),
    _form(
        "bar",
        rf"(?P<value>{_COUNTED}){_CHANNEL}(?: {{0,40}}[|│┃]{_END}|[|;,](?=\S))",
        ("trainer-1  | step 3", "trainer-1", "step 3"),
        ("12:00:01 web.1 | step 3", "web.1", "step 3"),
        ("1772618400.023;web.1;step 3", "web.1", "step 3"),
    ),
    _form(
        "sign",
        rf"(?P<value>{_COUNTED}(?:\(\w{{0,12}}\d{{1,6}}\))?)"
        rf"(?:[>\])]{{1,2}}:?{_END}| (?:-{{1,2}}|~|[»›•·]|::|[=-]?>|>>){_END}|\t)",
        ("w3> step 3", "w3", "step 3"),
        ("p5] step 3", "p5", "step 3"),
        ("gpu-7 r3 ~ step 3", "gpu-7 r3", "step 3"),
        ("10:00:01 gpu-7/g1(r3) > step 3", "gpu-7/g1(r3)", "step 3"),
        ("gpu-7\tstep 3", "gpu-7", "step 3"),
    ),
    _form(
        "colon",
        rf"(?P<value>{_COUNTED}(?:\(\d{{1,6}}\))?)(?<!:):{{1,2}}{_END}",
        ("node1:gpu3: step 3", "node1:gpu3", "step 3"),
        ("gpu-7(3): step 3", "gpu-7(3)", "step 3"),
        is_weak=True,
    ),
    _form(
        "level, time and name between tabs",
        rf"(?:{_LEVEL}\t)?{_CLOCK}(?: [+-]\d{{4}})?\t(?:{_LEVEL}\t)?(?P<value>{_NAME})\t{{1,3}}",
        ("INFO\t2026-01-02 03:04:05 +0000\tworkerpool0-1\t\tstep 3", "workerpool0-1", "step 3"),
        is_sure=True,
    ),
    _form("blank", rf"(?P<value>{_NAME}){_END}", ("rank_0005 step 3", "rank_0005", "step 3"), is_weak=True),
)
"""The surest first."""
_OF_SHELLS = "colon"
_LAYERS = 3
"""Most names that stand behind each other: ``pod-7 container``, ``gpu-7 [3]``."""
_MOST_LINES = 4_000
_FEW_LINES = 8
_MOST_VALUES = 4_096
_CARRIED_SHARE = 0.3
"""Least share of the lines that have the prefix where tracebacks have it, too."""
_SHARE, _NAMED_SHARE = 0.7, 0.5
"""The same without a traceback; and where the values call themselves ranks, workers, nodes."""
_TAG_SHARE = 0.95
"""Least share of lines that have a name which tells no streams apart."""
_LINES_OF_VALUE = 3
"""Least number of lines of a value, on average."""
_ALIKE, _NAMED_ALIKE = 0.5, 0.1
"""Least share of the lines of quieter streams that other streams print as well: processes of one job run one code."""
_TURNS = 1.5
"""Least number of times that a stream begins to speak: a counter has its lines in one piece."""
_MESSAGES, _NAMED_MESSAGES = 3, 2
"""Least number of different messages that streams have in common: a program that counts prints the same one again."""
_TRACEBACK = re.compile(r"(?:Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r' {2,8}File "[^"\n]{1,400}", line \d')
_DEEP = re.compile(r"\s|Traceback \(most recent")
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_WORDS = re.compile(r"[^\W\d_]{3,}")
_Peel = Callable[[str], tuple[int, str]]
_SHAPE = 60
"""Characters of a message by which it is compared."""


class _Headed(NamedTuple):
    """A line that has the form of a prefix."""

    value: str
    body: str


@dataclass(frozen=True, slots=True)
class _Layer:
    """One name in front of the lines. skeletons: of the values, so that a stream which was not seen is known."""

    form: PrefixForm
    values: frozenset[str]
    skeletons: frozenset[str]

    def split(self, line: str) -> tuple[str, str] | None:
        """(value, message) of a line that has this prefix."""
        match = self.form.pattern.match(line)
        if match is None:
            return None
        value = match["value"]
        if value in self.values or stream_names.skeleton(value) in self.skeletons:
            return value, line[match.end() :]
        return None


class Behind(NamedTuple):
    """What stands behind a prefix.

    carrier: the voice in front of all lines of a record. begins: the prefix is the head of a record.
    """

    prefix: Prefix
    body: str
    carrier: str = ""
    begins: bool = False


@dataclass(frozen=True, slots=True)
class LearnedPrefix:
    """The prefix of a log. rule: which number in the names is the rank, if any is.

    stated: name -> the rank that its stream says it is. hosts: names of machines that the log mentions.
    """

    layers: tuple[_Layer, ...]
    rule: NumberRule | None = None
    stated: Mapping[str, int] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset()

    def split(self, line: str) -> Behind | None:
        """Who speaks, and the message; None for a line without the prefix. A head stays in front of its message."""
        parts, body = _names_of(self.layers, line)
        if not parts:
            return None
        carrying = list(takewhile(lambda layer: not layer.form.is_head, self.layers))
        if len(parts) <= len(carrying):
            return Behind(self._prefix(parts), body, _voice(parts))
        outer, body = _names_of(carrying, line)
        return Behind(self._prefix(parts), body, _voice(outer), begins=True)

    @property
    def names_host(self) -> bool:
        """Whether a name is that of a machine: then it is a prefix even where the log is of one stream."""
        names = chain.from_iterable(layer.values for layer in self.layers if not layer.form.is_weak)
        return any(stream_names.host_in(name, ()) for name in names)

    def _prefix(self, parts: Sequence[str]) -> Prefix:
        name = " ".join(parts)
        rank, host = self.stated.get(name, -1), stream_names.host_in(name, self.hosts)
        if rank < 0 and self.rule and len(parts) == len(self.layers):
            rank = self.rule.rank(stream_names.without(host, name))
        return Prefix(rank=rank, node=host, voice=_voice(parts))


def _voice(parts: Sequence[str]) -> str:
    return f"w{' '.join(parts)}" if parts else ""


def _names_of(layers: Iterable[_Layer], line: str) -> tuple[list[str], str]:
    """(values of the layers that stand in front of a line, message)."""
    parts = []
    for layer in layers:
        parted = layer.split(line)
        if parted is None:
            break
        parts.append(parted[0])
        line = parted[1]
    return parts, line


def learn(lines: Sequence[str], peeled: _Peel, *, are_parted: bool = False) -> LearnedPrefix | None:
    """The prefix of a stream of a log, None where it has none.

    lines: the lines in order, without the prefixes that are known.
    are_parted: the known prefixes tell streams apart already.
    peeled: the rank that a known prefix at the beginning of a message names, -1 without one, and what stands behind it.
    """
    lines = [line for line in lines if line.strip()][:_MOST_LINES]
    layers, has_streams = _layers(lines, peeled)
    if not layers:
        return None
    prefix = _with_meaning(layers, lines, peeled)
    if are_parted or has_streams or prefix.names_host:
        return prefix
    return prefix if any(layer.form.is_sure for layer in layers) else None


def _layers(lines: Sequence[str], peeled: _Peel) -> tuple[list[_Layer], bool]:
    """The prefixes one behind the other, and whether one of them tells streams apart. A known prefix behind one that
    was learned is no layer: only some lines of a process have it."""
    layers, rest, has_streams = list[_Layer](), lines, False
    while len(layers) < _LAYERS:
        layer = _layer_of(rest, peeled)
        if layer is not None:
            has_streams = True
        elif not any(before.form.is_head for before in layers):
            layer = _tag_of(rest)
        if layer is None:
            break
        layers.append(layer)
        bodies = [parted[1] for parted in map(layer.split, rest) if parted]
        has_streams |= sum(map(bool, map(_DATED.match, bodies))) >= _TAG_SHARE * len(lines)
        rest = [body for body in bodies if peeled(body)[0] < 0]
    return layers, has_streams


def _layer_of(lines: Sequence[str], peeled: _Peel) -> _Layer | None:
    for form in FORMS if len(lines) >= _FEW_LINES else filter(attrgetter("is_sure"), FORMS):
        headed = _headed(form, lines)
        among = sum(map(bool, map(_HEAD.match, lines))) if form.is_head else len(lines)
        if not headed or len(headed) < _CARRIED_SHARE * among:
            continue
        for streams in _candidates(headed, peeled):
            if form.is_sure or streams.are_streams(among, of_shell=form.name == _OF_SHELLS):
                return _Layer(form, frozenset(streams.values), frozenset(map(stream_names.skeleton, streams.values)))
    return None


def _tag_of(lines: Sequence[str]) -> _Layer | None:
    """The same for a name that all lines share, as that of the only host, or of a container: it counts only beside
    names that tell streams apart."""
    for form in FORMS:
        matches = list(filter(None, map(form.pattern.match, lines)))
        values = Counter(match["value"] for match in matches)
        for value, count in values.most_common(1):
            if count < _TAG_SHARE * len(lines):
                continue
            if not _may_be_tag(value, count, form, len(lines)):
                continue
            if stream_names.is_word_and_number(value) or _begin_variously(matches):
                return _Layer(form, frozenset({value}), frozenset())
    return None


def _may_be_tag(value: str, count: int, form: PrefixForm, among: int) -> bool:
    """Whether a value may be a name that lines share. Of few lines it must be a host's, twice, in a form that is no
    part of a message.

    count: lines that have it.
    among: so many lines.
    """
    if stream_names.is_none(value):
        return False
    if among >= _FEW_LINES:
        return True
    if form.is_weak:
        return False
    if count < 2:
        return False
    return bool(stream_names.host_in(value, ()))


def _begin_variously(heads: Iterable[re.Match[str]]) -> bool:
    """Whether different words follow these heads: else they are the first words of a message."""
    words = (_WORDS.match(head.string, head.end()) for head in heads)
    return len({word[0] for word in words if word}) >= _MESSAGES


def _headed(form: PrefixForm, lines: Sequence[str]) -> list[_Headed]:
    headed = []
    for line in lines:
        match = form.pattern.match(line)
        if match and _may_be_name(match["value"], form):
            headed.append(_Headed(match["value"], line[match.end() :]))
    return headed


def _may_be_name(value: str, form: PrefixForm) -> bool:
    if not form.is_weak:
        return not stream_names.is_none(value)
    if not (stream_names.is_word_and_number(value) or stream_names.is_called_stream(value)):
        return False
    return not stream_names.is_none(value)


def _candidates(headed: Sequence[_Headed], peeled: _Peel) -> Iterable["_Streams"]:
    """All values of a form together, as hosts have names that are not alike; then those of each skeleton."""
    yield _Streams(headed, peeled)
    groups: dict[str, list[_Headed]] = {}
    for line in headed:
        groups.setdefault(stream_names.skeleton(line.value), []).append(line)
    for group in sorted(groups.values(), key=len, reverse=True):
        if len(group) < len(headed):
            yield _Streams(group, peeled)


class _Streams:
    """Lines whose heads may be the names of streams."""

    def __init__(self, headed: Sequence[_Headed], peeled: _Peel) -> None:
        self._headed, self._peeled = headed, peeled

    @cached_property
    def values(self) -> Counter[str]:
        """Values with the number of their lines."""
        return Counter(line.value for line in self._headed)

    def are_streams(self, lines: int, *, of_shell: bool) -> bool:
        """Whether these are streams.

        lines: how many there are with and without a head.
        of_shell: the heads are of the form in which parallel shells name hosts.
        """
        if len(self.values) > _MOST_VALUES:
            return False
        share = len(self._headed) / lines
        if self._is_carried and share >= _CARRIED_SHARE:
            return True
        if not self._are_common_names(share):
            return False
        if not self._take_turns:
            return False
        messages = _MESSAGES
        if share >= _TAG_SHARE:
            messages = 1 if of_shell and self._may_be_hosts else _NAMED_MESSAGES
        return self._print_alike(messages)

    def _are_common_names(self, share: float) -> bool:
        """Whether they are names, and so many lines begin with each that it is no chance.

        share: of the lines, how many begin with one.
        """
        if len(self.values) < 2:
            return False
        if not self._are_names:
            return False
        least = _NAMED_SHARE if self._are_called_streams else _SHARE
        if share < least:
            return False
        return len(self._headed) >= _LINES_OF_VALUE * len(self.values)

    @cached_property
    def _is_carried(self) -> bool:
        """Whether a traceback has the head on every line: its beginning, frames with their indentation, and what was
        raised."""
        begun = set[str]()
        for line in self._headed:
            if "raceback (most recent" in line.body:
                if _TRACEBACK.match(self._peeled(line.body)[1]):
                    begun.add(line.value)
            elif line.value in begun and _FRAME.match(self._peeled(line.body)[1]):
                return True
        return False

    @cached_property
    def _are_names(self) -> bool:
        """Whether the values look like names of streams: numbered or lettered; bare numbers without a gap."""
        lines = sum(count for value, count in self.values.items() if stream_names.is_numbered(value))
        if lines < _SHARE * len(self._headed):
            return False
        return stream_names.have_no_gap(self.values)

    @cached_property
    def _are_called_streams(self) -> bool:
        return all(map(stream_names.is_called_stream, self.values))

    @cached_property
    def _may_be_hosts(self) -> bool:
        """Whether a parallel shell may have put the values in front, also of a program that prints one kind of line:
        ``p95`` is no host."""
        return all(value[:2].isalpha() and mentions.PARALLEL_SHELL.fullmatch(f"{value}: ") for value in self.values)

    @property
    def _take_turns(self) -> bool:
        """Whether streams take turns, where a counter goes from each number to the next."""
        if self._are_called_streams:
            return True
        values = [line.value for line in self._headed]
        turns = [(before, after) for before, after in pairwise(values) if before != after]
        return len(turns) >= _TURNS * len(self.values)

    def _print_alike(self, messages: int) -> bool:
        """Whether the quieter streams print what others print as well, and it is text: levels, loggers, and keys of a
        table each have messages of their own. Of indented text only what they share says anything.

        messages: how many kinds they must share, unless they are called streams.
        """
        speakers: dict[str, set[str]] = {}
        quiet = Counter[str]()
        loudest = self.values.most_common(1)[0][0]
        for line in self._headed:
            shape = _shape(line.body)
            speakers.setdefault(shape, set()).add(line.value)
            if line.value != loudest:
                quiet[shape] += 1
        shared = [shape for shape in quiet if len(speakers[shape]) > 1 and _WORDS.search(shape)]
        quiet = Counter({shape: count for shape, count in quiet.items() if shape in shared or not _DEEP.match(shape)})
        share = _ALIKE
        if self._are_called_streams:
            share, messages = _NAMED_ALIKE, _NAMED_MESSAGES
        if len(shared) < messages:
            return False
        return sum(map(quiet.__getitem__, shared)) >= share * quiet.total()


def _shape(body: str) -> str:
    return _DIGITS.sub("0", body[: 2 * _SHAPE])[:_SHAPE]


@dataclass(slots=True)
class _Said:
    """What a log says of its streams.

    ranks: name of a stream -> ranks that its lines say they are.
    beginnings: first parts of names -> the names that begin so.
    hosts, sizes: machines and numbers of ranks that any line tells.
    """

    ranks: dict[str, set[int]] = field(default_factory=dict)
    beginnings: dict[str, set[str]] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)

    def read(self, body: str) -> None:
        self.hosts.update(stream_names.hosts_of(body))
        self.sizes.update(mentions.world_sizes(body))

    def read_of(self, parts: Sequence[str], body: str, peeled: _Peel) -> None:
        """Read a line of the stream whose name has these parts."""
        name = " ".join(parts)
        self.ranks.setdefault(name, set()).update(_ranks_said(body, peeled))
        for count in range(1, len(parts)):
            self.beginnings.setdefault(" ".join(parts[:count]), set()).add(name)


def _with_meaning(layers: Sequence[_Layer], lines: Sequence[str], peeled: _Peel) -> LearnedPrefix:
    """The prefix with what its values mean: by the numbers in them, and by what their streams say of themselves."""
    said = _Said()
    for line in lines:
        parts, body = _names_of(layers, line)
        said.read(line)
        if parts and len(parts) == len(layers):
            said.read_of(parts, body, peeled)
    names, hosts = said.ranks, said.hosts
    stated = single(names)
    rule = None
    if max(map(len, names.values()), default=0) < 2:
        rule = _rank_rule(names.keys(), stated, hosts, said.sizes)
    ranks = _numbered(names, rule, hosts) | stated
    hosts |= stream_names.shared_hosts(ranks) or stream_names.lone_hosts(names, is_ranked=bool(ranks))
    if rule is not None:
        rule = _rank_rule(names.keys(), stated, hosts, said.sizes)  # the numbers of hosts are known by now
    alone = {name: ranks[inner] for name, inner in single(said.beginnings).items() if inner in ranks}
    return LearnedPrefix(tuple(layers), rule, alone | stated, frozenset(hosts))


def _numbered(names: Iterable[str], rule: NumberRule | None, hosts: Collection[str]) -> dict[str, int]:
    """Name -> rank, of the names with a rank by the rule."""
    if rule is None:
        return {}
    ranks = {name: rule.rank(stream_names.without(stream_names.host_in(name, hosts), name)) for name in names}
    return {name: rank for name, rank in ranks.items() if rank >= 0}


def _rank_rule(
    names: Collection[str], stated: Mapping[str, int], hosts: Collection[str], sizes: Collection[int]
) -> NumberRule | None:
    """Which number in the names of streams is the rank.

    stated: name -> rank that the stream says it is.
    hosts: whose names hold numbers that are no rank.
    sizes: numbers of ranks that the log states.
    """
    bare = {name: stream_names.without(stream_names.host_in(name, hosts), name) for name in names}
    return stream_names.number_rule(bare.values(), {bare[name]: rank for name, rank in stated.items()}, sizes)


def _ranks_said(body: str, peeled: _Peel) -> set[int]:
    """Ranks that a process says it is."""
    ranks = set(map(int, mentions.named(Tells.SELF, body)))
    rank, _ = peeled(body)
    if rank >= 0:
        ranks.add(rank)
    return ranks
