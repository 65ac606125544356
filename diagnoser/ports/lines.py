"""Lines as they came, in a store that a site has already."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SourceLine:
    """nanoseconds: its time, since the epoch. labels: what the store knows of it, as the mapping reads them."""

    nanoseconds: int
    text: bytes
    labels: tuple[tuple[str, bytes], ...]


class LineSource(Protocol):
    """A query that a store answers for any stretch of time."""

    async def read(self, start: int, end: int, limit: int) -> list[SourceLine]:
        """Lines from ``start`` on and before ``end``, in nanoseconds since the epoch; of one time, in their order. If
        there are more than ``limit``, any ``limit`` of them. Lines outside of that time are no fault.

        Raises TooLarge when the answer would be, BadInput when the store refuses us for good.
        """

    async def close(self) -> None: ...
