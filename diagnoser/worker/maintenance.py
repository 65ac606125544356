"""What a worker does between two searches for due attempts: drop old logs, expire plans.

Each step is idempotent: all replicas do it, and the loser of a race changes nothing.
"""

from dataclasses import dataclass
from functools import partial

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis import node_logs
from diagnoser.model import CLEAN_RUNS, NODE_LOG
from diagnoser.planning.plan_service import PlanService
from diagnoser.ports import Clock
from diagnoser.worker.retention import Retention

EXPIRED_AT_ONCE = 100
NODE_LOG_HOURS = 24
"""How long logs of nodes are kept, by hours of arrival."""


@dataclass(eq=False)
class Maintenance:
    """Call ``sweep`` now and then. Raises Unavailable. baseline_hours: how long clean runs are kept."""

    store: SqlStore
    plans: PlanService
    clock: Clock
    baseline_hours: int = 0
    retention: Retention | None = None

    def __post_init__(self) -> None:
        self._swept = 0  # the newest part of node logs at the last sweep

    async def sweep(self) -> None:
        await self._drop_old_parts()
        await self._expire_plans()
        if self.retention:
            await self.retention.step()

    async def _drop_old_parts(self) -> None:
        """Drop expired node logs and clean runs. They are stored by the hour, so once an hour is enough."""
        hour = newest = node_logs.hour_of(self.clock())
        if hour == self._swept:
            return
        if self.retention:
            newest = node_logs.hour_of(await self.retention.trusted_time())
        await self.store.node_logs.drop_parts(NODE_LOG, newest - NODE_LOG_HOURS)
        await self.store.node_logs.drop_parts(CLEAN_RUNS, newest - self.baseline_hours)
        self._swept = hour

    async def _expire_plans(self) -> None:
        now = self.clock()
        for plan in await self.store.plans.expired(now, EXPIRED_AT_ONCE):
            await self.plans.change(plan, now, partial(self.plans.commands.expire, now=now))
