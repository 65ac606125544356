"""Counts in the badges of the navigation: known for some seconds, so that a page costs no count."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from diagnoser.model.errors import Unavailable
from diagnoser.ports import Clock

ATTENTION_SECONDS = 3.0
UNPLACED_SECONDS = 10.0

T = TypeVar("T")


class RememberedCount(Generic[T]):
    """One a process and viewer.

    count: asks the store, at the time that it is given.
    zero: before the first answer.
    seconds: how long an answer is used.
    """

    def __init__(self, count: Callable[[float], Awaitable[T]], zero: T, clock: Clock, seconds: float) -> None:
        self._ask = count
        self._count = zero
        self._clock = clock
        self._seconds = seconds
        self._until = 0.0

    async def __call__(self) -> T:
        """The last one known where the store does not answer: a page must not fail for its navigation."""
        now = self._clock()
        if now >= self._until:
            self._until = now + self._seconds
            try:
                self._count = await self._ask(now)
            except Unavailable:
                return self._count
        return self._count

    def forget(self) -> None:
        """Somebody has just decided something: the next page shows it."""
        self._until = 0.0
