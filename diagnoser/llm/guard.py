"""Keeps a model server from being asked too much: a budget per hour, and a circuit breaker. Time is an argument."""

from collections import deque
from dataclasses import dataclass

HOUR = 3600.0
FAILURES = 5
"""Failures in a row that open the breaker: one request that fails is no news of a busy server."""
REST_SECONDS = 60.0
"""A server that is started again needs about a minute to load its model."""


@dataclass(slots=True)
class Entry:
    """One question. Until the answer arrives it counts at the most tokens that it may take."""

    time: float
    tokens: int


class TokenBudget:
    """Tokens within the last hour, of questions that were answered and those still open.

    limit: tokens read and written in an hour; 0 is no limit.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._entries: deque[Entry] = deque()

    def reserve(self, now: float, tokens_in: int, tokens_out: int) -> Entry | None:
        """Reserve room for a question of that size; None when the hour has none left."""
        while self._entries and self._entries[0].time <= now - HOUR:
            self._entries.popleft()
        entry = Entry(now, tokens_in + tokens_out)
        tokens = entry.tokens + sum(earlier.tokens for earlier in self._entries)
        if 0 < self._limit < tokens:
            return None
        self._entries.append(entry)
        return entry

    def charge(self, entry: Entry, tokens_in: int, tokens_out: int) -> None:
        """Replace the reservation by the tokens that the question really took."""
        entry.tokens = tokens_in + tokens_out


class LLMCircuitBreaker:
    """Opens after ``failures`` in a row for ``rest`` seconds; then one question tries, and its end decides."""

    def __init__(self, failures: int = FAILURES, rest: float = REST_SECONDS) -> None:
        self._failures = failures
        self._rest = rest
        self._consecutive = 0
        self._closed_from = 0.0
        self._trying = False

    def rests(self, now: float) -> bool:
        return now < self._closed_from

    def admits(self, now: float) -> bool:
        """Whether a question may be asked; the caller must report how it ended with ``succeeded`` or ``failed``."""
        if self.rests(now):
            return False
        if self._consecutive < self._failures:
            return True
        if self._trying:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        self._consecutive, self._trying = 0, False

    def failed(self, now: float, rest: float | None = None) -> None:
        """rest: seconds that the server itself asked for; honoured from the first failure on."""
        self._consecutive, self._trying = self._consecutive + 1, False
        if rest is not None:
            self._closed_from = max(self._closed_from, now + rest)
        if self._consecutive >= self._failures:
            self._closed_from = max(self._closed_from, now + self._rest)
