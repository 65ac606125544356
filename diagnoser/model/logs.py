"""Where the compressed logs of attempts are stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from diagnoser.model import AttemptKey, Stream
from diagnoser.model.access import Viewer


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a stream already holds: closed ranges of line numbers, sorted, disjoint, not adjacent.

    Written by compare-and-set on ``version``.
    """

    covered: tuple[tuple[int, int], ...] = ()
    version: int = 0

    @property
    def next(self) -> int:
        """The number that the next line gets when the shipper does not number its lines."""
        return self.covered[-1][1] + 1 if self.covered else 1


@dataclass(frozen=True, slots=True)
class Append:
    """One attempt's share of a commit. ``cursors``: stream -> (version that was read, ranges after this append).

    fatal: some line looks like a failure. Node logs are never diagnosed by themselves. raw: bytes of log text, where
    ``data`` holds lines as they came; 0 where it holds their delta. senders: those that may speak for one tenant only.
    """

    attempt: AttemptKey
    data: bytes
    received: float
    cursors: Mapping[Stream, tuple[int, tuple[tuple[int, int], ...]]]
    fatal: bool
    raw: int = 0
    senders: frozenset[Viewer] = frozenset()

    @property
    def new_streams(self) -> int:
        """How many streams nobody wrote to before."""
        return sum(not version for version, _ in self.cursors.values())


class Partition(NamedTuple):
    """A partition of a topic as one consumer group reads it. cluster: the id of the message brokers' cluster: the same
    topic of another one begins anew."""

    cluster: str
    group: str
    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class OffsetAdvance:
    """How far a commit brings a partition. ``next`` is the offset of the first message that is not stored.

    Written by compare-and-set on ``read``, the stored value that this commit goes on from; None where there is none.
    """

    partition: Partition
    read: int | None
    next: int


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A part of an attempt's log, as ``compress.raw_chunks`` reads it. raw: as in ``Append``."""

    id: int
    data: bytes
    raw: int = 0


@dataclass(frozen=True, slots=True)
class CompactionTiming:
    """When the pieces of an attempt become fewer: with ``window`` bytes of raw ones, when nothing came for ``idle``
    seconds behind a raw one, or with more than ``crowd`` of either kind."""

    window: int = 2 << 20
    idle: float = 30.0
    crowd: int = 256


@dataclass(frozen=True, slots=True)
class CompactionClaim:
    """merges_deltas: it has so many pieces that all of them become one delta, not only the raw ones."""

    attempt: AttemptKey
    merges_deltas: bool


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """A part of an object that can be read by itself: lines of one stream, or of many short ones.

    start, size: bytes of the object. streams: the first and the last one, as ``compress.segments.stream_order`` puts
    them. lines: the lowest and the highest number of any of them.
    """

    key: str
    start: int
    size: int
    streams: tuple[bytes, bytes]
    lines: tuple[int, int]
