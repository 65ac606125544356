"""What the web ring needs from the rest of the service, handed over as one value."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from prometheus_client import CollectorRegistry

from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.service import IngestReceipt
from diagnoser.integrations.ft_launcher import LogAttribution
from diagnoser.model import AttemptKey, Line, Plan, Progress
from diagnoser.observability.metrics import Metrics, Watched
from diagnoser.planning.transitions import PlanCommands
from diagnoser.ports import Clock, DiagnosisRecord, PlanTransition, Store, WakeSignal
from diagnoser.retrieval.incidents import Incidents

HealthCheck = Callable[[], Awaitable[str]]
"""Asks a part whether it works: returns a few words of detail, raises DiagnoserError when it does not."""

KeptLinesQuery = Callable[[DiagnosisRecord], Awaitable[Sequence[Line]]]
"""The kept lines of an attempt, and of the node's log that the root line comes from, for the context of cited lines."""

ProgressQuery = Callable[[AttemptKey], Awaitable[Sequence[Progress]]]
"""What the log of an attempt says about its training, step by step."""


class LogIngest(Protocol):
    async def accept(self, body: bytes, format: str, defaults: RecordDefaults, received: float) -> IngestReceipt: ...


class Scope(StrEnum):
    """What a token may do. Each includes those before it.

    execute: what an agent needs: ship logs, tell of jobs and nodes, carry out plans. write: also decide, as a person
    does: approve and refuse plans, reset breakers, say whether a verdict is right.
    """

    READ = "read"
    EXECUTE = "execute"
    WRITE = "write"

    def covers(self, needed: "Scope") -> bool:
        order = tuple(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Token:
    """``name`` tells tokens apart in logs; ``secret`` is what the caller shows."""

    name: str
    secret: str = field(repr=False)
    scope: Scope


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """wire_bytes: a body of logs as it is sent. body_bytes: the same after decompression.

    flight_bytes: the bodies of all requests that are being read or wait for their commit.
    """

    wire_bytes: int = 64 << 20
    body_bytes: int = 64 << 20
    flight_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class AppDependencies:
    """base_url: how people reach this service, without a slash at the end; "" makes links relative.

    tokens: empty switches authentication off. checks: parts that /readyz asks beside the store. spare: parts that it
    tells of as well, and that the service is ready without.
    stopping: set when the process begins to stop, so that live streams end. wake: told when an event has arrived.
    orders: what people and executors may do to plans. incidents: what they say about verdicts, and what
    is alike. outbox: told when there may be something to send. attribution: log files that launchers ask about.
    metrics: counts what becomes of plans.
    """

    store: Store
    intake: LogIngest
    clock: Clock
    registry: CollectorRegistry
    orders: PlanCommands
    incidents: Incidents
    wake: WakeSignal | None = None
    limits: RequestLimits = RequestLimits()
    base_url: str = ""
    checks: Mapping[str, HealthCheck] = field(default_factory=dict)
    spare: Mapping[str, HealthCheck] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()
    view: KeptLinesQuery | None = None
    series: ProgressQuery | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    outbox: WakeSignal | None = None
    attribution: LogAttribution | None = None
    metrics: Metrics | None = None

    async def change_plan(self, id: str, now: float, rule: PlanTransition, *, alone: bool = True) -> Plan:
        """Run a rule on a stored plan, count what it decided, and let it be sent. Raises NotFound, Conflict.

        alone: the rule looks at nothing but the plan.
        """
        watched = Watched(rule)
        plan = (await self.store.change_plan(id, now, watched, alone=alone)).plan
        assert plan is not None, "rules on a stored plan keep it"
        if self.metrics:
            self.metrics.ruled(watched)
        self.tell_outbox()
        return plan

    def tell_outbox(self) -> None:
        """There may be something to send."""
        if self.outbox:
            self.outbox.notify()
