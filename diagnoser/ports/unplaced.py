"""Where lines go that belong to no job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import UnplacedStream


class UnplacedSink(Protocol):
    async def record_unplaced(self, streams: Sequence[UnplacedStream]) -> None:
        """Add the counts of these streams to what is known of those with the same labels, reason and sender. Bounded:
        the sink may forget the oldest."""


@dataclass(frozen=True, slots=True)
class UnplacedRecord:
    """A stream with all of its lines so far. first_seen: when the first of them arrived."""

    stream: UnplacedStream
    first_seen: float


class UnplacedStore(UnplacedSink, Protocol):
    """Keeps the newest streams of each sender for some days after their last line."""

    async def unplaced(self, now: float, limit: int) -> list[UnplacedRecord]:
        """The newest ones first."""

    async def count_unplaced(self, now: float) -> int:
        """How many streams there are."""
