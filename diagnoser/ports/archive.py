"""Where original lines are kept once the database holds their compressed log only."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ArchivedObject:
    """changed: seconds since the epoch."""

    key: str
    changed: float


class Archive(Protocol):
    """Objects by key: letters, digits and ``._:@+=-`` in parts separated by ``/``. An object is never changed. Every
    method may raise Unavailable."""

    async def put(self, key: str, data: bytes) -> None:
        """Durable when it returns. The same object may be put again."""

    async def get(self, key: str, start: int, size: int) -> bytes | None:
        """``size`` bytes from ``start`` on; None when there is no such object."""

    async def delete(self, keys: Collection[str]) -> None:
        """Those that are gone already are no error."""

    async def objects(self, after: str, limit: int) -> list[ArchivedObject]:
        """The next ones after the key ``after``, in an order of the archive's own; "" for the first."""
