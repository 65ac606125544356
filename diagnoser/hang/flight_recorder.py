"""PyTorch's flight recorder: what one rank asked its communication library to do, and how far that came.

One dump a rank, a pickle or JSON (formats 2.x, of NCCL and gloo). It names no host, and its rank stands in the file's
name only. Format: torch/csrc/distributed/c10d/FlightRecorder.hpp of PyTorch.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import orjson

from diagnoser.hang import pickle_reader
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
_LISTS, _PLAIN = (list, tuple), (int, str)
"""Types of what a reader of dumps makes: it knows no others, nor classes derived from these."""
_MACHINERY = ("torch/distributed/", "torch/utils/", "torch/_dynamo", "torch/autograd/", "torch/nn/modules/module.py")


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A process group of a job: one object for all ranks, see ``DumpReader``. ranks: none where no dump says."""

    description: str
    ranks: tuple[int, ...]


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
class Progress:
    """Sequence numbers of the last collective of a group that a rank has enqueued, and completed."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class RankDump:
    """What one rank recorded. operations: in the order in which they were enqueued; a full buffer has lost the oldest.
    progress: of each group that the rank is in, as far as the dump says."""

    rank: int
    operations: tuple[Operation, ...] = ()
    progress: Mapping[Group, Progress] | None = None

    @property
    def groups(self) -> frozenset[Group]:
        return frozenset(self.progress or ()) | {operation.group for operation in self.operations}


def rank_of_file(name: str) -> int:
    """The rank that a dump's file name ends in, -1 for none. A time is none."""
    match = None if _FILE_TIME.search(name) else _FILE_RANK.search(name)
    return int(match[1]) if match and len(match[1]) < 8 and int(match[1]) < RANKS_MAX else -1


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
        """ranks: a list, or one that was printed."""
        text = ranks if isinstance(ranks, str) else str(_ranks(ranks))
        known = self._by_text.get((description, text))
        if known is None:
            members = _ranks(ranks)
            known = self._by_ranks.get((description, members)) or self._new_group(description, members)
            self._by_text[description, text] = known
        return known

    def _new_group(self, description: str, members: tuple[int, ...]) -> Group:
        self._members += len(members)
        if self._members > MEMBERS_MAX:
            raise BadInput(f"the groups of this job have more than {MEMBERS_MAX} ranks together")
        self._by_ranks[description, members] = group = Group(description, members)
        return group


def _dump(data: bytes, rank: int, make_group: Callable[[str, Any], Group]) -> RankDump:
    if len(data) > BYTES_MAX:
        raise BadInput(f"a dump of {len(data)} bytes is larger than {BYTES_MAX}")
    dump = _json(data) if data.lstrip()[:1] == b"{" else pickle_reader.loads(data)
    if type(dump) is not dict or not {"entries", "pg_config"} & dump.keys():
        raise BadInput("this is no flight-recorder dump: it has neither 'entries' nor 'pg_config'")
    entries = [entry for entry in _listed(dump.get("entries"))[:ENTRIES_MAX] if type(entry) is dict]
    names = [_group_name(entry) for entry in entries]
    groups = _Groups(_mapping(dump.get("pg_config")), make_group)
    parsed = (_operation(entry, groups.find(*name)) for entry, name in zip(entries, names, strict=True))
    operations = sorted(filter(None, parsed), key=lambda operation: operation.order)
    return RankDump(rank, tuple(operations), _progress(dump, groups, zip(entries, names, strict=True), operations))


def _json(data: bytes) -> Any:
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
        self.by_name = {
            str(name): make_group(_text(group.get("desc")) or _text(group.get("name")), group.get("ranks"))
            for name, group in config.items()
            if type(group) is dict
        }

    def find(self, name: str, description: str) -> Group:
        """gloo writes one group without a name, at best the default one: of its others nobody knows the ranks."""
        if name in self.by_name:
            return self.by_name[name]
        nameless = self.by_name.get("")
        if description == DEFAULT and nameless and nameless.ranks:
            return self.make_group(DEFAULT, nameless.ranks)
        return self.make_group(description if description == DEFAULT else f"{description} {name}".strip(), ())


def _operation(entry: Mapping[str, Any], group: Group) -> Operation | None:
    title = _text(entry.get("profiling_name"))
    is_p2p = entry["is_p2p"] is True if "is_p2p" in entry else bool(_PEER.search(title))
    peer = _peer(title, group) if is_p2p else -1
    sequence = _number(entry.get("p2p_seq_id") if is_p2p else entry.get("collective_seq_id", entry.get("seq_id")))
    if sequence < 0 or (is_p2p and peer < 0):
        return None
    return Operation(
        group=group,
        name=title.partition(" ")[0],
        sequence=sequence,
        order=_number(entry.get("record_id")),
        done=entry.get("retired") is True or entry.get("state") == "completed",
        peer=peer,
        sends=is_p2p and bool(_SENDS.search(title)),
        sizes=_sizes(entry.get("input_sizes")),
        types=_sizes(entry.get("input_dtypes")),
        frame=own_frame(_listed(entry.get("frames"))),
    )


def _progress(
    dump: Mapping[str, Any],
    groups: _Groups,
    entries: Iterable[tuple[dict[str, Any], tuple[str, str]]],
    operations: Sequence[Operation],
) -> dict[Group, Progress]:
    """Read progress from ``pg_status``, which numbers the rank's groups; then from the operations.

    The numbers count up in the order in which the rank made its groups, as do the groups' names.
    """
    status = {_number(number): row for number, row in _mapping(dump.get("pg_status")).items() if type(row) is dict}
    names = sorted((name for name in groups.by_name if name.isdecimal()), key=int)
    by_number = dict(zip(sorted(status), names, strict=False)) if len(names) == len(status) else {}
    descriptions: dict[str, str] = {}
    for entry, (name, description) in entries:
        by_number[_number(entry.get("pg_id"))] = name
        descriptions[name] = description
    progress = {
        groups.find(name, descriptions.get(name, "")): Progress(
            _number(status[number].get("last_enqueued_collective")),
            _number(status[number].get("last_completed_collective")),
        )
        for number, name in by_number.items()
        if number in status
    }
    talks = {operation.group for operation in operations if not operation.is_collective}
    collects = {operation.group for operation in operations if operation.is_collective}
    for group in talks - collects:
        progress.pop(group, None)  # its numbers count sends and receives
    return progress_of(operations, progress)


def progress_of(
    operations: Iterable[Operation], known: Mapping[Group, Progress] | None = None
) -> dict[Group, Progress]:
    """At least ``known``, and what the collectives among the operations say."""
    progress = dict(known or {})
    for operation in operations:
        if operation.is_collective:
            before = progress.get(operation.group, Progress(-1, -1))
            progress[operation.group] = Progress(
                max(before.enqueued, operation.sequence),
                max(before.completed, operation.sequence) if operation.done else before.completed,
            )
    return progress


def _group_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description); the first formats only knew a name, or a number."""
    pair = entry.get("process_group")
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        return _text(pair[0]), _text(pair[1])
    return _text(entry.get("pg_name")) or str(_number(entry.get("pg_id"))), ""


def _peer(title: str, group: Group) -> int:
    """The other end of "nccl:recv 2<-3": ranks within the group, our own first."""
    match = _PEER.search(title)
    place = int(match[2]) if match and len(match[2]) < 8 else -1
    if not group.ranks:
        return place
    return group.ranks[place] if 0 <= place < len(group.ranks) else -1


def own_frame(frames: Iterable[Any]) -> str:
    """The innermost frame that is the program's own, "" for none."""
    for frame in islice(frames, 50):
        if type(frame) is dict:
            file = _text(frame.get("filename"))
            if file and not any(part in file for part in _MACHINERY):
                return f"{_text(frame.get('name'))} ({file}:{_number(frame.get('line'))})"[:300]
    return ""


def _ranks(text: Any) -> tuple[int, ...]:
    parts = re.findall(r"\d{1,7}", text[: 8 * RANKS_MAX]) if isinstance(text, str) else _listed(text)
    return tuple(number for number in map(_number, parts[:RANKS_MAX]) if number >= 0)


def _sizes(value: Any) -> str:
    """Bounded and flat: what a dump nests deeper is no size."""
    return ", ".join([_size(row) for row in value[:16]]) if type(value) in _LISTS else ""


def _size(row: Any) -> str:
    if type(row) in _LISTS:
        return f"[{', '.join([str(part)[:20] for part in row[:16] if type(part) in _PLAIN])}]"
    return str(row)[:20] if type(row) in _PLAIN else ""


def _number(value: Any) -> int:
    """-1 for what is none, or none of 64 bits."""
    if type(value) is int:
        return value if 0 <= value < 1 << 63 else -1
    return int(value) if type(value) is str and value.isascii() and value.isdecimal() and len(value) < 19 else -1


def _text(value: Any) -> str:
    return value[:300] if type(value) is str else ""


def _listed(value: Any) -> Sequence[Any]:
    return value if type(value) in _LISTS else ()


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if type(value) is dict else {}
