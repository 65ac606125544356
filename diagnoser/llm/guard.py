"""Keeps a model server from being asked too much: a budget per hour, and a circuit breaker. Time is an argument."""

from collections import deque
from dataclasses import dataclass

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class SpendingLimits:
    """Per hour; 0 is no limit. prices: of a million tokens read and written, in any one currency."""

    tokens: int = 0
    cost: float = 0.0
    price_in: float = 0.0
    price_out: float = 0.0

    def cost_of(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass(slots=True)
class Entry:
    """One question. Until the answer arrives it counts at the most that it may cost."""

    time: float
    tokens: int
    cost: float


class TokenBudget:
    """Tokens and cost within the last hour, for questions that were answered and those still open."""

    def __init__(self, limits: SpendingLimits) -> None:
        self._limits = limits
        self._entries: deque[Entry] = deque()

    def reserve(self, now: float, tokens_in: int, tokens_out: int) -> Entry | None:
        """Reserves room for a question of that size; None when the hour has none left."""
        while self._entries and self._entries[0].time <= now - HOUR:
            self._entries.popleft()
        entry = Entry(now, tokens_in + tokens_out, self._limits.cost_of(tokens_in, tokens_out))
        tokens, cost = entry.tokens, entry.cost
        for earlier in self._entries:
            tokens += earlier.tokens
            cost += earlier.cost
        if 0 < self._limits.tokens < tokens:
            return None
        if 0 < self._limits.cost < cost:
            return None
        self._entries.append(entry)
        return entry

    def charge(self, entry: Entry, tokens_in: int, tokens_out: int) -> None:
        """Replaces the reservation by what the question really cost."""
        entry.tokens, entry.cost = tokens_in + tokens_out, self._limits.cost_of(tokens_in, tokens_out)


class LLMCircuitBreaker:
    """Opens after ``failures`` in a row for ``rest`` seconds; then one question tries, and its end decides."""

    def __init__(self, failures: int, rest: float) -> None:
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
