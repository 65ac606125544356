"""Which of two lines of an attempt was printed later, and how that is known. Pure.

Lines of one stream are in order. Two streams share no order but the times that their lines print: a line that arrived
later may have been printed earlier, for outputs are buffered and shippers take files in turn.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from diagnoser.model.lines import Stream

LATE = 60.0
"""Seconds that a shipper may be behind: what began to arrive so long after a line of the same process came after it."""
_OUTPUT = re.compile(r"stderr|stdout|(?<![a-z])(?:err|out)(?![a-z])")
"""What differs in the names of the two outputs of a process."""
_RESTART = re.compile(r"/attempt_(\d+)/")
"""torchrun's --log-dir has a folder for each time that it starts its processes."""


class Printed(Protocol):
    """A line or a point of the progress series."""

    @property
    def stream(self) -> Stream: ...
    @property
    def number(self) -> int: ...
    @property
    def time(self) -> float: ...
    @property
    def is_dated(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Order:
    """after: whether one line was printed after another, None where nobody can tell. why: how that is known."""

    after: bool | None
    why: str


def is_after(one: Printed, other: Printed) -> Order:
    """Whether ``one`` was printed after ``other``. Their times are on one clock: see ``localize.clock_skew``."""
    if one.stream == other.stream:
        return Order(one.number > other.number, "they are lines of one stream")
    if follows_restart(one.stream, other.stream) or follows_restart(other.stream, one.stream):
        return Order(follows_restart(one.stream, other.stream), "a launcher started the processes of one of them later")
    if not (one.is_dated and other.is_dated):
        untimed = "they are of two streams that do not both print times: which one arrived first tells nothing"
        return Order(None, untimed)
    if one.time != other.time:
        return Order(one.time > other.time, "both print their time")
    return Order(None, "they are of two streams, and of the same moment")


def process_of(stream: Stream) -> tuple[str, int, str]:
    """The same for the standard output and the error output of one process, by their names."""
    return stream.node, stream.rank, _OUTPUT.sub("", stream.source)


def is_of_restart(stream: Stream) -> bool:
    """Whether a launcher tells by the name of the stream which of its starts the processes are of."""
    return _restart(stream) is not None


def follows_restart(one: Stream, other: Stream) -> bool:
    """Whether the processes that print ``one`` were started by the launcher after those that print ``other``."""
    later, before = _restart(one), _restart(other)
    return later is not None and before is not None and later[0] == before[0] and later[1] > before[1]


@lru_cache(maxsize=65536)
def _restart(stream: Stream) -> tuple[str, int] | None:
    """The folder of the launcher's logs on a node, and the number of the start."""
    found = _RESTART.search(stream.source)
    return (f"{stream.node}:{stream.source[: found.start()]}", int(found[1])) if found else None
