"""PyTorch's flight recorder: what one rank asked its communication library to do, and how far that came.

One dump a rank, a pickle or JSON (formats 2.x, of NCCL and gloo). It names no host, and its rank stands in the file's
name only. Format: torch/csrc/distributed/c10d/FlightRecorder.hpp of PyTorch.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from diagnoser.hang import pickle_reader
from diagnoser.hang.values import LISTS, listed, mapping, mappings, text
from diagnoser.model.errors import BadInput

DEFAULT = "default_pg"
"""The description of the group of all ranks."""
BYTES_MAX = 32 << 20
CONTAINERS_MAX = 4_000_000
"""Most lists and objects of a dump in JSON."""
ENTRIES_MAX = 100_000
RANKS_MAX = 200_000
"""Most ranks of a group."""
MEMBERS_MAX = 4_000_000
"""Most ranks of all groups of a job together: one dump may name one long list many times."""
_FILE_RANK = re.compile(r"(?:rank[_-]?)?(\d+)(?:\.[A-Za-z]\w*)*$")
_FILE_TIME = re.compile(r"_\d{8}_\d{6}\.txt$")
_PEER = re.compile(r"(?:send|recv)\w* (\d+)(?:->|<-)(\d+)$")
_SENDS = re.compile(r"(?:^|:)i?send\b")
_PLAIN = (int, str)
_RANK_DIGITS = 7
_MACHINERY = re.compile("torch/distributed/|torch/utils/|torch/_dynamo|torch/autograd/|torch/nn/modules/module[.]py")


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A process group of a job: one object for all ranks, see ``DumpReader``. ranks: none where no dump says."""

    description: str
    ranks: tuple[int, ...]

    @property
    def title(self) -> str:
        return self.description or "default"


class Operation(NamedTuple):
    """One collective, or one send or receive, that a rank has enqueued.

    sequence: of the group's collectives, or of its point-to-point operations. peer: the other rank of a send or
    receive, -1 for a collective. sizes, types: of its input, as written. order: among all operations of the rank.
    frame: where the program called it, "" when not recorded.
    """

    group: Group
    name: str
    sequence: int
    order: int
    done: bool
    peer: int = -1
    sends: bool = False
    sizes: str = ""
    types: str = ""
    frame: str = ""

    @property
    def is_collective(self) -> bool:
        return self.peer < 0


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Sequence numbers of the last collective of a group that a rank has enqueued, and completed."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class RankDump:
    """What one rank recorded.

    operations: in the order in which they were enqueued; a full buffer has lost the oldest.
    progress: of each group that the rank is in, as far as the dump says.
    """

    rank: int
    operations: tuple[Operation, ...] = ()
    progress: Mapping[Group, GroupProgress] = field(default_factory=dict)

    @property
    def groups(self) -> frozenset[Group]:
        return frozenset(self.progress).union(map(attrgetter("group"), self.operations))


def rank_of_file(name: str) -> int:
    """The rank that a dump's file name ends in, -1 for none. A time is none."""
    if _FILE_TIME.search(name):
        return -1
    match = _FILE_RANK.search(name)
    if match is None or len(match[1]) > _RANK_DIGITS:
        return -1
    rank = int(match[1])
    if rank >= RANKS_MAX:
        return -1
    return rank


class DumpReader:
    """Reads the dumps of one job. A group may have another name on each rank: its description and its ranks tell which
    it is, and these are looked at once, however many dumps name them."""

    def __init__(self) -> None:
        self._by_text: dict[tuple[str, str], Group] = {}
        self._by_ranks: dict[tuple[str, tuple[int, ...]], Group] = {}
        self._members = 0

    def read(self, data: bytes, rank: int) -> RankDump:
        """Raises BadInput for what is no dump."""
        return _dump(data, rank, self.group)

    def group(self, description: str, ranks: Any) -> Group:
        """Find the group, or make it.

        ranks: a list, or one that was printed.
        """
        printed = ranks if isinstance(ranks, str) else str(_ranks(ranks))
        known = self._by_text.get((description, printed))
        if known is None:
            known = self._by_text[description, printed] = self._with_members(description, _ranks(ranks))
        return known

    def _with_members(self, description: str, members: tuple[int, ...]) -> Group:
        known = self._by_ranks.get((description, members))
        if known is not None:
            return known
        self._members += len(members)
        if self._members > MEMBERS_MAX:
            raise BadInput(f"the groups of this job have more than {MEMBERS_MAX} ranks together")
        self._by_ranks[description, members] = group = Group(description, members)
        return group


def _dump(data: bytes, rank: int, make_group: Callable[[str, Any], Group]) -> RankDump:
    if len(data) > BYTES_MAX:
        raise BadInput(f"a dump of {len(data)} bytes is larger than {BYTES_MAX}")
    dump = mapping(_loads(data))
    if not {"entries", "pg_config"} & dump.keys():
        raise BadInput("this is no flight-recorder dump: it has neither 'entries' nor 'pg_config'")
    entries = mappings(dump.get("entries"), ENTRIES_MAX)
    names = list(map(_group_name, entries))
    groups = _Groups(mapping(dump.get("pg_config")), make_group)
    operations = []
    for entry, name in zip(entries, names, strict=True):
        operation = _operation(entry, groups.find(*name))
        if operation is not None:
            operations.append(operation)
    operations.sort(key=lambda operation: operation.order)
    return RankDump(rank, tuple(operations), _progress(dump, groups, zip(entries, names, strict=True), operations))


def _loads(data: bytes) -> Any:
    if data.lstrip()[:1] != b"{":
        return pickle_reader.loads(data)
    if data.count(b"[") + data.count(b"{") > CONTAINERS_MAX:
        raise BadInput(f"the dump has more than {CONTAINERS_MAX} lists and objects")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"the dump is no JSON: {error}") from None


class _Groups:
    """The process groups of one dump, by their name."""

    def __init__(self, config: Mapping[Any, Any], make_group: Callable[[str, Any], Group]) -> None:
        self.make_group = make_group
        self.by_name: dict[str, Group] = {}
        for name, group in config.items():
            if type(group) is dict:
                description = text(group.get("desc")) or text(group.get("name"))
                self.by_name[str(name)] = make_group(description, group.get("ranks"))

    def find(self, name: str, description: str) -> Group:
        """gloo writes one group without a name, at best the default one: of its others nobody knows the ranks."""
        if name in self.by_name:
            return self.by_name[name]
        if description != DEFAULT:
            return self.make_group(f"{description} {name}".strip(), ())
        nameless = self.by_name.get("")
        return self.make_group(DEFAULT, nameless.ranks if nameless else ())


def _operation(entry: Mapping[str, Any], group: Group) -> Operation | None:
    title = text(entry.get("profiling_name"))
    peer, sends = -1, False
    # the first formats only tell by the title that two ranks talk to each other
    if entry.get("is_p2p", _PEER.search(title) is not None) is True:
        number = entry.get("p2p_seq_id")
        sends = _SENDS.search(title) is not None
        peer = _peer(title, group)
        if peer < 0:
            return None
    else:
        number = entry.get("collective_seq_id", entry.get("seq_id"))
    sequence = _number(number)
    if sequence < 0:
        return None
    return Operation(
        group=group,
        name=title.partition(" ")[0],
        sequence=sequence,
        order=_number(entry.get("record_id")),
        done=entry.get("retired") is True or entry.get("state") == "completed",
        peer=peer,
        sends=sends,
        sizes=_sizes(entry.get("input_sizes")),
        types=_sizes(entry.get("input_dtypes")),
        frame=own_frame(listed(entry.get("frames"))),
    )


def _progress(
    dump: Mapping[str, Any],
    groups: _Groups,
    entries: Iterable[tuple[Mapping[str, Any], tuple[str, str]]],
    operations: Sequence[Operation],
) -> dict[Group, GroupProgress]:
    """Read progress from ``pg_status``, which numbers the rank's groups; then from the operations.

    The numbers count up in the order in which the rank made its groups, as do the groups' names.
    """
    status = _status(dump)
    names = sorted((name for name in groups.by_name if _number(name) >= 0), key=int)
    by_number: dict[int, str] = {}
    if len(names) == len(status):
        by_number.update(zip(sorted(status), names, strict=True))
    descriptions: dict[str, str] = {}
    for entry, (name, description) in entries:
        by_number[_number(entry.get("pg_id"))] = name
        descriptions[name] = description
    progress = {}
    for number, name in by_number.items():
        if number in status:
            progress[groups.find(name, descriptions.get(name, ""))] = status[number]
    talks, collects = set(), set()
    for operation in operations:
        if operation.is_collective:
            collects.add(operation.group)
        else:
            talks.add(operation.group)
    for group in talks - collects:
        progress.pop(group, None)  # its numbers count sends and receives
    return progress_of(operations, progress)


def _status(dump: Mapping[str, Any]) -> dict[int, GroupProgress]:
    status = {}
    for number, row in mapping(dump.get("pg_status")).items():
        if type(row) is dict:
            enqueued, completed = row.get("last_enqueued_collective"), row.get("last_completed_collective")
            status[_number(number)] = GroupProgress(_number(enqueued), _number(completed))
    return status


_NOTHING: Mapping[Group, GroupProgress] = {}


def progress_of(
    operations: Iterable[Operation], known: Mapping[Group, GroupProgress] = _NOTHING
) -> dict[Group, GroupProgress]:
    """At least ``known``, and what the collectives among the operations say."""
    progress = dict(known)
    for operation in operations:
        if not operation.is_collective:
            continue
        before = progress.get(operation.group, GroupProgress(-1, -1))
        completed = max(before.completed, operation.sequence) if operation.done else before.completed
        progress[operation.group] = GroupProgress(max(before.enqueued, operation.sequence), completed)
    return progress


def _group_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description); the first formats only knew a name, or a number."""
    pair = listed(entry.get("process_group"))
    if len(pair) == 2:
        return text(pair[0]), text(pair[1])
    return text(entry.get("pg_name")) or str(_number(entry.get("pg_id"))), ""


def _peer(title: str, group: Group) -> int:
    """The other end of "nccl:recv 2<-3": ranks within the group, our own first; -1 for none."""
    match = _PEER.search(title)
    if match is None or len(match[2]) > _RANK_DIGITS:
        return -1
    place = int(match[2])
    if not group.ranks:
        return place
    return group.ranks[place] if place < len(group.ranks) else -1


def own_frame(frames: Iterable[Any]) -> str:
    """The innermost frame that is the program's own, "" for none."""
    for frame in map(mapping, islice(frames, 50)):
        file = text(frame.get("filename"))
        if file and not _MACHINERY.search(file):
            return f"{text(frame.get('name'))} ({file}:{_number(frame.get('line'))})"[:300]
    return ""


def _ranks(ranks: Any) -> tuple[int, ...]:
    parts = re.findall(r"\d{1,7}", ranks[: 8 * RANKS_MAX]) if isinstance(ranks, str) else listed(ranks)
    return tuple(number for number in map(_number, parts[:RANKS_MAX]) if 0 <= number < RANKS_MAX)


def _sizes(value: Any) -> str:
    """Bounded and flat: what a dump nests deeper is no size."""
    return ", ".join(map(_size, listed(value)[:16]))


def _size(row: Any) -> str:
    if type(row) in LISTS:
        return f"[{', '.join([str(part)[:20] for part in row[:16] if type(part) in _PLAIN])}]"
    return str(row)[:20] if type(row) in _PLAIN else ""


def _number(value: Any) -> int:
    """-1 for what is none, or none of 64 bits."""
    if type(value) is str and len(value) < 19 and value.isascii() and value.isdecimal():
        return int(value)
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    return -1
