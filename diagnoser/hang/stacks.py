"""Stacks of all ranks: the few whose main thread stands elsewhere than the many that wait in a collective.

Dumps of py-spy (`py-spy dump --pid`) and of Python's faulthandler. Grouping equal stacks and looking at the outliers is
ByteRobust's way (SOSP'25).
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
FRAMES_MAX = 200
_THREAD = re.compile(r"^(?:Current thread|Thread) (?:0x[0-9a-fA-F]+|\d+)\b(?P<rest>.*)$")
_PY_SPY_FRAME = re.compile(r"^\s+(?P<name>[^\s(][^(]{0,200}?) \((?P<file>[^()]{1,400}?)(?::(?P<line>\d+))?\)$")
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>[^"]{1,400})", line (?P<line>\d+) in (?P<name>.{1,200})$')
_WAITS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier|broadcast|synchronize|_wait|\bwait\b|monitored_barrier|"
    r"recv|\bitem\b|c10d|distributed_c10d|ProcessGroup"
)
_LEAST = 3
"""Fewer ranks have no majority."""
_TOP = 3
"""Innermost frames that make two stacks equal."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of one rank. frames: innermost first, as "name (file:line)"."""

    rank: int
    frames: tuple[str, ...]

    @property
    def waits(self) -> bool:
        """Whether it stands in a collective, or in a wait for one."""
        return any(_WAITS.search(frame) for frame in self.frames[:_TOP])


def parse_stacks(data: bytes, rank: int) -> Stack:
    """Raises BadInput for a text without a frame."""
    if len(data) > BYTES_MAX:
        raise BadInput(f"stacks of {len(data)} bytes are larger than {BYTES_MAX}")
    threads: list[tuple[str, list[str]]] = []
    for line in data.decode("utf-8", "replace").splitlines():
        if match := _THREAD.match(line):
            threads.append((match["rest"], []))
        elif threads and (match := _PY_SPY_FRAME.match(line) or _FAULT_FRAME.match(line)):
            place = f"{match['file']}:{match['line']}" if match["line"] else match["file"]
            threads[-1][1].append(f"{match['name']} ({place})")
    stacks = [(rest, frames) for rest, frames in threads if frames]
    if not stacks:
        raise BadInput("no stack was found: neither py-spy's nor faulthandler's format")
    main = next((frames for rest, frames in stacks if "MainThread" in rest), None)
    return Stack(rank, tuple((main or stacks[-1][1])[:FRAMES_MAX]))  # faulthandler prints the main thread last


def outliers(stacks: Iterable[Stack]) -> list[tuple[Stack, int]]:
    """Stacks unlike the one in which most ranks wait, with the number of those; none where no majority waits."""
    alike: dict[tuple[str, ...], list[Stack]] = defaultdict(list)
    every = list(stacks)
    for stack in every:
        alike[tuple(frame.partition(" (")[0] for frame in stack.frames[:_TOP])].append(stack)
    waiting = [stack for stack in every if stack.waits]
    others = [stack for stack in every if not stack.waits]
    if len(every) < _LEAST or len(waiting) * 2 <= len(every):
        return []
    if others:
        return [(stack, len(waiting)) for stack in others]
    most = max(alike.values(), key=len)
    few = [stack for group in alike.values() if len(group) < len(most) for stack in group]
    return [(stack, len(most)) for stack in few] if len(most) * 2 > len(every) and len(few) * 4 <= len(every) else []
