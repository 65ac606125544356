"""Stacks of all ranks: the few whose main thread stands elsewhere than the many that wait in a collective.

Dumps of py-spy (`py-spy dump --pid`, also with --native, --locals or --json), of Python's faulthandler, and the files
of `torch.distributed.debug`, which hold those of all ranks. Grouping equal stacks and looking at the outliers is
ByteRobust's way (SOSP'25).
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import filterfalse
from typing import Any

import orjson

from diagnoser.hang.values import mappings
from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
FRAMES_MAX = 200
RANKS_MAX = 200_000
_RANK = re.compile(r"^=== Rank (\d{1,7}): .*===$")
_RANKS = re.compile(rb"^=== Rank \d{1,7}: ", re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) (?:0x[0-9a-fA-F]+|\d+)\b(?P<rest>.*)$")
_PY_SPY_FRAME = re.compile(r"^\s+(?P<name>[^\s(][^(]{0,200}?) \((?P<file>[^()]{1,400}?)(?::(?P<line>\d+))?\)$")
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>[^"]{1,400})", line (?P<line>\d+) in (?P<name>.{1,200})$')
_NATIVE = re.compile(r"\.(?:so[.\d]*|c|cc|cpp|cu|h|hpp)(?::\d+)?\)$")
_WAITS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier|broadcast|synchronize|_wait|\bwait\b|monitored_barrier|"
    r"recv|\bitem\b|c10d|distributed_c10d|ProcessGroup"
)
_LOCAL = re.compile(
    r"\((?:\S*/)?(?:threading|queue|selectors|subprocess|multiprocessing/\w+|torch/utils/data/\w+)\.py:"
)
"""Who waits there waits for another thread or process of its own."""
_LEAST = 3
"""Fewer ranks have no majority."""
_TOP = 3
"""Innermost frames that make two stacks equal."""


@dataclass(frozen=True, slots=True)
class RankStack:
    """The main thread of one rank. frames: innermost first, as "name (file:line)"."""

    rank: int
    frames: tuple[str, ...]

    @property
    def waits(self) -> bool:
        """Whether it stands in a collective, or in a wait for one."""
        top = self.frames[:_TOP]
        if any(map(_LOCAL.search, top)):
            return False
        return any(map(_WAITS.search, top))


def parse_stacks(data: bytes, rank: int) -> RankStack:
    """rank: whose process it is. Raises BadInput for a text without a frame."""
    text = _text(data)
    threads = list(_of_json(text) if text.lstrip()[:1] == "[" else _of_text(text.splitlines()))
    stacks = [(title, frames) for title, frames in threads if frames]
    if not stacks:
        raise BadInput("no stack was found: neither py-spy's nor faulthandler's format")
    _, main = stacks[-1]  # faulthandler prints the main thread last
    for title, frames in stacks:
        if "MainThread" in title:
            main = frames
            break
    return RankStack(rank, _of_python(main))


def is_of_all_ranks(data: bytes) -> bool:
    """Whether it has a heading for each rank."""
    if data[:1] not in b"=P":
        return False
    return _RANKS.search(data) is not None


def parse_all_stacks(data: bytes) -> list[RankStack]:
    """Read a file that has a heading for each rank; empty for one that has none. Ranks without a stack are left out."""
    parts: dict[int, list[str]] = {}
    part = list[str]()  # lines before the first heading belong to nobody
    for line in _text(data).splitlines():
        if match := _RANK.match(line):
            rank = int(match[1])
            part = []
            if rank < RANKS_MAX:
                part = parts.setdefault(rank, part)
        else:
            part.append(line)
    stacks = []
    for rank, lines in parts.items():
        try:
            stacks.append(parse_stacks("\n".join(lines).encode(), rank))
        except BadInput:
            continue  # its process did not answer
    return stacks


def _text(data: bytes) -> str:
    if len(data) > BYTES_MAX:
        raise BadInput(f"stacks of {len(data)} bytes are larger than {BYTES_MAX}")
    return data.decode("utf-8", "replace")


def _of_text(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each thread at its heading, whose rest is its title: its frames are added to the list as they follow."""
    frames = list[str]()
    for line in lines:
        if match := _THREAD.match(line):
            frames = []
            yield match["rest"], frames
        elif match := _PY_SPY_FRAME.match(line) or _FAULT_FRAME.match(line):
            frames.append(_frame(match["name"], match["file"], match["line"]))


def _of_json(text: str) -> Iterator[tuple[str, list[str]]]:
    """Read the output of `py-spy dump --json`."""
    try:
        threads = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"the stacks are no JSON: {error}") from None
    for thread in mappings(threads):
        frames = []
        for row in mappings(thread.get("frames"), FRAMES_MAX):
            file = row.get("short_filename") or row.get("filename")
            frames.append(_frame(row.get("name"), file, row.get("line")))
        yield str(thread.get("thread_name"))[:300], frames


def _frame(name: Any, file: Any, line: Any) -> str:
    place = f"{file}:{line}" if line else file
    return f"{name} ({place})"[:700]


def _of_python(frames: list[str]) -> tuple[str, ...]:
    """Leave out frames of libraries in C, which say less: all wait in the same few calls of the system."""
    python = list(filterfalse(_NATIVE.search, frames))
    return tuple((python or frames)[:FRAMES_MAX])


def outliers(stacks: Iterable[RankStack]) -> tuple[list[RankStack], int]:
    """Find stacks unlike the one in which most ranks wait, and the number of those; none where no majority waits."""
    by_rank = {stack.rank: stack for stack in stacks}
    others = [stack for stack in by_rank.values() if not stack.waits]
    waiting = len(by_rank) - len(others)
    if len(by_rank) < _LEAST or waiting * 2 <= len(by_rank):
        return [], 0
    if others:
        return others, waiting
    return _minority(by_rank.values())


def _minority(waiting: Collection[RankStack]) -> tuple[list[RankStack], int]:
    """Find the few that wait elsewhere than most, where all wait."""
    alike: dict[tuple[str, ...], list[RankStack]] = defaultdict(list)
    for stack in waiting:
        alike[tuple(frame.partition(" (")[0] for frame in stack.frames[:_TOP])].append(stack)
    most = max(map(len, alike.values()))
    few = list[RankStack]()
    for group in alike.values():
        if len(group) < most:
            few += group
    if not is_minority(len(few), most, len(waiting)):
        return [], 0
    return few, most


def is_minority(few: int, most: int, among: int) -> bool:
    """Tell whether ``few`` ranks differ from a majority that is alike."""
    if most * 2 <= among:
        return False
    return few * 4 <= among
