"""Requests that wait for their commit, taken in turns by job: a quiet job does not wait for a noisy one."""

from collections import deque
from typing import Generic, TypeVar

from diagnoser.model.errors import Overloaded, Unavailable

T = TypeVar("T")
JOB_SHARE = 4
"""One job may fill 1/4 of the queue: then its sender waits, and the others do not."""
RETRY_SECONDS = 1.0


class FairQueue(Generic[T]):
    """limit: most bytes of log text that wait. One request may always wait, however large."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[str, deque[tuple[int, T]]] = {}  # the job whose turn is next comes first
        self._sizes: dict[str, int] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, job: str, size: int, request: T) -> None:
        """Raises Overloaded when the job has its share of what may wait, Unavailable when all of it is taken."""
        own = self._sizes.get(job, 0)
        if self._size + size > self._limit:
            raise Unavailable("too many lines wait for the database")
        if own and own + size > self._limit // JOB_SHARE:
            raise Overloaded(f"too many lines of job {job} wait for the database", RETRY_SECONDS)
        self._waiting.setdefault(job, deque()).append((size, request))
        self._sizes[job] = own + size
        self._size += size

    def take(self, most: int) -> list[T]:
        """The next requests, at most ``most`` bytes of them, or a single larger one: one of each job in turn, and of
        each job in its order."""
        taken: list[T] = []
        total = 0
        while self._waiting:
            job, requests = next(iter(self._waiting.items()))
            size, request = requests[0]
            if taken and total + size > most:
                break
            requests.popleft()
            del self._waiting[job]
            self._sizes[job] -= size
            if requests:
                self._waiting[job] = requests
            else:
                del self._sizes[job]
            taken.append(request)
            total += size
        self._size -= total
        return taken
