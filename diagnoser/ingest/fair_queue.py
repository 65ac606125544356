"""Requests that wait for their commit. A quiet job does not wait for a noisy one."""

from collections import deque
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

from diagnoser.model.errors import Overloaded, Unavailable

T = TypeVar("T")
JOB_SHARE = 4
"""One job may fill 1/4 of the queue: then its sender waits, and the others do not."""
RETRY_SECONDS = 1.0
CREDIT_BYTES = 1 << 20
"""How far a job that was silent may be ahead of the others when it sends again: its first bytes wait for nobody."""
_REMEMBERED = 1024


class FairQueue(Generic[T]):
    """Fair by bytes. Jobs that always have requests waiting get the same number of bytes taken, give or take a request
    of each. A job that sends less than that, and small requests, is in the next group, whatever the others send.
    Requests of one job keep their order.

    Self-clocked fair queueing (Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband Applications", INFOCOM
    1994), with a bounded credit for jobs that were silent, without which they would wait for a request of each of the
    others. limit: most bytes of log text that wait. One request may always wait, however large.
    """

    def __init__(self, limit: int, credit: int = CREDIT_BYTES) -> None:
        self._limit = limit
        self._credit = credit
        self._waiting: dict[str, deque[tuple[int, T]]] = {}
        self._turns: list[tuple[int, int, str]] = []
        """A heap of the jobs that wait: virtual time at which the next request is through, order of arrival, job."""
        self._through: dict[str, int] = {}
        """Virtual time at which a job's last request was through, of jobs that have no full credit again."""
        self._now = 0
        """Virtual time: bytes taken of a job that always had requests waiting."""
        self._arrivals = 0
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
        if job not in self._waiting:
            self._waiting[job] = deque()
            self._arrivals += 1
            begin = max(self._through.get(job, 0), self._now - self._credit)
            heappush(self._turns, (begin + size, self._arrivals, job))
        self._waiting[job].append((size, request))
        self._sizes[job] = own + size
        self._size += size

    def take(self, most: int) -> list[T]:
        """The next requests, at most ``most`` bytes of them, or a single larger one."""
        taken: list[T] = []
        total = 0
        while self._turns:
            through, arrival, job = self._turns[0]
            requests = self._waiting[job]
            size, request = requests[0]
            if taken and total + size > most:
                break
            requests.popleft()
            taken.append(request)
            total += size
            self._now = max(self._now, through)
            if requests:
                self._sizes[job] -= size
                heapreplace(self._turns, (through + requests[0][0], arrival, job))
            else:
                heappop(self._turns)
                del self._waiting[job], self._sizes[job]
                self._through[job] = through
        self._size -= total
        if len(self._through) > _REMEMBERED:
            full = self._now - self._credit
            self._through = {job: through for job, through in self._through.items() if through > full}
        return taken
