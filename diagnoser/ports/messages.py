"""Where lines are read from: a topic of a message queue, as one member of a consumer group, or a site's log store."""

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model.logs import Partition


@dataclass(frozen=True, slots=True)
class Message:
    """time: when it was produced or appended (seconds since the epoch), NaN where the queue does not say."""

    partition: Partition
    offset: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    time: float = float("nan")


StoredOffsets = Callable[[Collection[Partition]], Coroutine[None, None, Mapping[Partition, int]]]
"""Where to go on, of those partitions that anything is stored of."""


class MessageSource(Protocol):
    """The group gives each member some partitions, and takes them back when members come and go."""

    async def subscribe(self, stored: StoredOffsets) -> None:
        """Join the group. ``stored`` is asked at each assignment; a partition that it does not know is read from its
        beginning. Returns once the brokers answer; raises BadInput when they refuse us for good."""

    async def receive(self, size: int, wait: float) -> list[Message]:
        """The next messages, in the order of each partition, of partitions that are ours now: up to ``size`` bytes and
        one message, none after ``wait`` seconds. Raises BadInput when the brokers refuse us for good."""

    async def keep_alive(self) -> None:
        """Stay a member while what was received waits to be stored: nothing more is fetched until ``receive``."""

    async def rewind(self, partitions: Collection[Partition]) -> None:
        """Forget what was received of these: those still ours are read again from what is stored."""

    async def note_stored(self, offsets: Mapping[Partition, int]) -> None:
        """Tell the brokers how far these are stored, for those who watch the group's lag there. Never raises."""

    async def lag(self, offsets: Mapping[Partition, int]) -> int:
        """How many messages the brokers hold from these offsets on, as far as is known without asking them."""

    def owned(self) -> frozenset[Partition]:
        """The partitions that are ours now."""

    async def close(self) -> None:
        """Leave the group."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """nanoseconds: its time, since the epoch. labels: what the store knows of it, as the mapping reads them."""

    nanoseconds: int
    text: bytes
    labels: tuple[tuple[str, bytes], ...]
