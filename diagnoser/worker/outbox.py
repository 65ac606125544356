"""The only way anything leaves the service: claims due messages, sends them, records the result, backs off.

At least once: a crash or a stop between the send and its record sends again, under the same key, by which receivers
recognise duplicates. No database transaction is open while a message is being sent.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from random import Random

import orjson
import structlog

from diagnoser.adapters.sql.outbox import OutboxRepository
from diagnoser.model import AttemptKey, MessageKind, OutboxMessage
from diagnoser.model.errors import Deferred, DeliveryError, Unavailable, Withheld
from diagnoser.model.plans import DueMessage
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace, TraceStep, untraced
from diagnoser.ports import Clock, Sender, WakeSignal
from diagnoser.worker.lease import claimed, renewed

ERROR_LENGTH = 500
SLOW_SECONDS, SLOW_PAUSE, LONGEST_PAUSE = 5.0, 30.0, 120.0
"""A try that fails after so long rests its target: at first, and at most."""


class DeliveryResult(StrEnum):
    DELIVERED = "delivered"
    NOT_NOW = "not_now"  # the receiver or the way to it is down: another try may help
    REFUSED = "refused"  # another try cannot help
    TOO_SLOW = "too_slow"
    SENDER_FAILED = "sender_failed"  # a fault of our own: tried again
    NO_SENDER = "no_sender"  # this kind has no receiver (any more)
    TOO_LATE = "too_late"
    WITHHELD = "withheld"  # on purpose: silenced, or told already
    DEFERRED = "deferred"  # quiet hours


@dataclass(frozen=True, slots=True)
class OutboxConfig:
    """Seconds. The wait before try n+1 is drawn between 0 and ``first * 2**n``, at most ``longest``: full jitter
    (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015) keeps replicas from moving in step.

    send: the longest time for one try; poll: the longest sleep. lease: when another replica may take over; it
    is renewed during a send, so that it is short, and what a killed process held is soon sent by another one.
    rates: target -> sends a second at most; a target that is not named has no limit.
    """

    first: float = 1.0
    longest: float = 600.0
    send: float = 30.0
    lease: float = 6.0
    poll: float = 1.0
    at_once: int = 16
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Result:
    state: str
    reason: DeliveryResult
    error: str = ""
    retry_after: float | None = None
    until: float = 0.0


_SENT = _Result("sent", DeliveryResult.DELIVERED)
_EXPIRED = _Result("expired", DeliveryResult.TOO_LATE, "expired before it could be delivered")


def subject(message: OutboxMessage) -> tuple[AttemptKey, str] | None:
    """The attempt that the message is about, and the id of the diagnosis that it follows from, "" for none."""
    try:
        body = orjson.loads(message.body)
        if message.kind is MessageKind.RECOVERY:
            return AttemptKey(body["data"]["job"], body["data"]["attempt"]), body["data"]["diagnosis"]["id"]
        return (AttemptKey(body["job"], body["attempt"]), body.get("diagnosis", "")) if body.get("job") else None
    except (ValueError, KeyError, TypeError, AttributeError):  # an answer to Slack, or of an earlier version
        return None


class RateLimiter:
    """Spaces out sends to one target, and rests one that answers too late. A message that comes too early gets a slot,
    and passes when it returns."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        self._rates = rates
        self._free: dict[str, float] = {}
        self._slots: dict[str, float] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        self._seen = 0.0

    def note(self, target: str, now: float, *, slow: bool) -> None:
        """A target that does not answer in time rests, each time for longer: all others wait while it is tried."""
        until, pause = self._slow.get(target, (0.0, SLOW_PAUSE / 2))
        if not slow:
            self._slow.pop(target, None)
        elif until <= now:
            pause = min(2 * pause, LONGEST_PAUSE)
            self._slow[target] = now + pause, pause

    def wait(self, message: OutboxMessage, now: float) -> float:
        """Seconds until this message may be sent; 0 when it may go now."""
        if now < self._seen - SLOW_PAUSE:  # the clock was set back: times that it showed before hold no more
            for times in (self._free, self._slots, self._slow):
                times.clear()
        self._seen = now
        until, _ = self._slow.get(message.target, (0.0, 0.0))
        if now < until:
            return until - now
        rate = self._rates.get(message.target)
        if rate is None:
            return 0.0
        slot = self._slots.pop(message.key, None)
        if slot is None:
            slot = max(now, self._free.get(message.target, 0.0))
            self._free[message.target] = slot + 1.0 / rate
        if slot <= now:
            return 0.0
        self._slots[message.key] = slot
        return slot - now


@dataclass(eq=False)
class Outbox:
    """Made once; ``run`` it as a task, or ``step`` it in a test."""

    store: OutboxRepository
    senders: Mapping[MessageKind, Sender]
    clock: Clock
    wake: WakeSignal
    rng: Random
    metrics: Metrics
    config: OutboxConfig = OutboxConfig()
    trace: Trace = untraced

    def __post_init__(self) -> None:
        self._rate_limiter = RateLimiter(self.config.rates)
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Until it is cancelled. Waits while the database is down."""
        while True:
            try:
                if await self.step():
                    continue
            except Unavailable as error:
                self._log.warning("outbox_waits", error=str(error))
            await self.wake.wait(self.config.poll)

    async def step(self) -> int:
        """One round over what is due: the number of messages that were handled. Raises Unavailable."""
        claiming = self.store.claim(self.clock(), self.config.lease, self.config.at_once)
        async with claimed(claiming, self._release_on_shutdown) as due:
            if due:
                async with renewed(partial(self.store.extend, due), self.config.lease, self.clock):
                    await asyncio.gather(*(self._handle(message) for message in due))
        return len(due)

    async def _release_on_shutdown(self, due: DueMessage) -> None:
        await self.store.record_delivery(due, "deferred", retry_at=self.clock())

    async def _handle(self, due: DueMessage) -> None:
        now = self.clock()
        wait = self._rate_limiter.wait(due.message, now) if due.message.expires > now else 0.0
        if wait:
            with suppress(Unavailable):
                await self.store.record_delivery(due, "deferred", retry_at=min(now + wait, due.message.expires))
            return
        result = await self._try(due.message)
        ended = self.clock()
        is_slow = result.state == "pending" and ended - now >= SLOW_SECONDS
        self._rate_limiter.note(due.message.target, ended, slow=is_slow)
        try:
            retry_at = self._retry_at(due, result) if result.state == "pending" else result.until
            await self.store.record_delivery(due, result.state, retry_at=retry_at, error=result.error)
        except Unavailable as error:  # the lease ends by itself, then the message is sent again
            self._log.warning("effect_unsettled", key=due.message.key, error=str(error))
            return
        self._report(due, result)
        self._trace_delivery(due, result, now)

    async def _try(self, message: OutboxMessage) -> _Result:
        sender = self.senders.get(message.kind)
        if message.expires <= self.clock():
            return _EXPIRED
        if sender is None:
            return _Result("dead", DeliveryResult.NO_SENDER, "no receiver is configured")
        try:
            async with asyncio.timeout(self.config.send):
                await sender.send(message)
        except DeliveryError as error:
            if error.permanent:
                return _Result("dead", DeliveryResult.REFUSED, str(error))
            return _Result("pending", DeliveryResult.NOT_NOW, str(error), error.retry_after)
        except Withheld as why:
            return _Result("withheld", DeliveryResult.WITHHELD, str(why))
        except Deferred as why:
            until = min(why.until, message.expires)
            return _Result("deferred", DeliveryResult.DEFERRED, str(why), until=until)
        except TimeoutError:
            return _Result("pending", DeliveryResult.TOO_SLOW, "no answer in time")
        except Exception as error:  # a faulty sender must not stop the others
            return _Result("pending", DeliveryResult.SENDER_FAILED, type(error).__name__)
        return _SENT

    def _retry_at(self, due: DueMessage, result: _Result) -> float:
        """Never before the receiver's own retry time, never after the expiry, when the message is given up."""
        longest = min(self.config.longest, self.config.first * 2.0 ** min(due.tries, 60))
        wait = max(self.rng.uniform(0.0, longest), result.retry_after or 0.0)
        return min(self.clock() + wait, due.message.expires)

    def _trace_delivery(self, due: DueMessage, result: _Result, since: float) -> None:
        if self.trace is untraced:  # whom a message is about stands in its body
            return
        about = subject(due.message)
        if about is not None:
            attempt, diagnosis = about
            self.trace(
                TraceStep.DELIVER,
                attempt,
                since,
                diagnosis=diagnosis,
                error=result.error[:ERROR_LENGTH],
                kind=due.message.kind.value,
                target=due.message.target,
                result=result.reason.value,
                tries=due.tries,
            )

    def _report(self, due: DueMessage, result: _Result) -> None:
        label = "retried" if result.state == "pending" else result.state
        self.metrics.outbox_deliveries.labels(due.message.kind, label).inc()
        level = self._log.info if result.state in ("sent", "withheld", "deferred") else self._log.warning
        level(
            "effect_handled",
            key=due.message.key,
            kind=due.message.kind.value,
            state=result.state,
            reason=result.reason.value,
            tries=due.tries,
            error=result.error[:ERROR_LENGTH],
        )
