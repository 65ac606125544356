"""Where the compressed logs of attempts are stored."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from diagnoser.model import AttemptKey, Stream
from diagnoser.model.access import Viewer
from diagnoser.ports.archive import ArchivedSegment


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


class LogStore(Protocol):
    async def cursors(self, attempts: Sequence[AttemptKey]) -> dict[AttemptKey, dict[Stream, Cursor]]:
        """The cursors of all streams of these attempts; an unknown attempt has none."""

    async def stream_cursors(
        self, streams: Mapping[AttemptKey, Collection[Stream]]
    ) -> dict[AttemptKey, dict[Stream, Cursor]]:
        """The cursors of these streams, as far as there are any: an attempt may have thousands."""

    async def append(self, appends: Sequence[Append], advances: Sequence[OffsetAdvance] = ()) -> None:
        """Commit all or nothing; creates unknown jobs and attempts. Raises Conflict when a cursor moved, or when two
        appends are to one stream; OwnerMoved when a job is not its senders' any more; BadInput when an attempt would
        have too many streams.

        advances: where the lines were read; stored with them, so that each message counts once. Raises OffsetsMoved
        when one of these partitions has been read further meanwhile.
        """

    async def source_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset of the first message that is not stored, of those partitions that anything is stored of."""

    async def pieces(self, attempt: AttemptKey) -> list[StoredPiece]:
        """The whole log, oldest first."""

    async def stored_size(self, attempt: AttemptKey) -> int:
        """Bytes of all pieces of the log as they are stored."""

    async def newest_pieces(
        self, attempts: Collection[AttemptKey], count: int, size: int
    ) -> dict[AttemptKey, list[StoredPiece]]:
        """The end of each log: its newest ``count`` pieces without those of more than ``size`` stored bytes, oldest
        first."""

    async def raw_pieces(self, attempt: AttemptKey, size: int, after: int = 0) -> list[StoredPiece]:
        """The oldest raw pieces behind the one with the id ``after``, up to ``size`` bytes of log text (at least one
        piece, if there is any)."""

    async def jobs_with_raw(self, size: int) -> list[str]:
        """Jobs with an attempt that has more than ``size`` bytes of log text in raw pieces."""

    async def claim_compaction(self, now: float, timing: CompactionTiming, until: float) -> CompactionClaim | None:
        """An attempt whose pieces shall become fewer, for the caller alone until then. None when there is none."""

    async def put_off_compaction(self, attempt: AttemptKey, until: float) -> None:
        """Leave an attempt that cannot be compacted alone until then."""

    async def compact(
        self,
        attempt: AttemptKey,
        merged: bytes,
        replaced: Sequence[StoredPiece],
        archived: Sequence[ArchivedSegment] = (),
        now: float = 0.0,
    ) -> bool:
        """Replace pieces by the delta ``merged`` and end the claim; False when one of them is already gone. archived:
        where the lines of the raw ones are from now on."""

    async def current_attempt(self, job: str) -> int:
        """The highest attempt number of the job, 1 for an unknown job."""

    async def current_attempts(self, jobs: Collection[str]) -> dict[str, int]:
        """The same of many jobs at once."""

    async def newest_of_registered(self, jobs: Collection[str]) -> dict[str, int]:
        """The highest attempt number that an agent told of, of each of the jobs that one registered."""

    async def node_parts(self, logs: Sequence[str], least: int, newest: int | None = None) -> dict[str, list[bytes]]:
        """Of these logs (``model.node_log_id``) the deltas of all parts from number ``least`` on, oldest first.

        newest: at most this many deltas in all, the newest ones.
        """

    async def revisit(self, log: str, since: float, now: float) -> int:
        """Make attempts due again that ran on this log's node and failed or ended after ``since``; returns how many.

        Only attempts that were diagnosed: the others will see the log anyway.
        """

    async def drop_parts(self, kind: str, below: int) -> int:
        """Drop parts with numbers under ``below``; how many. kind: ``model.NODE_LOG`` or ``model.CLEAN_RUNS``."""
