"""Tells people when an evaluated checkpoint scores worse than those before it.

Each replica looks; the key of a message is the same wherever it is made, so that it is stored and sent once.
"""

import asyncio
from dataclasses import dataclass

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.evaluations.scores import drops, series
from diagnoser.model.errors import Unavailable
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.ports import Clock, WakeSignal

PERIOD = 60.0
RUNS = 200
"""Evaluations that are looked at, the newest."""
FRESH_SECONDS = 3600.0
"""For how long after its end an evaluation is looked at: longer than the service is away at an upgrade, and shorter
than its messages are kept."""


@dataclass(frozen=True)
class ScoreWatch:
    """Run it as a task, or ``step`` it in a test. outbox: notified when there is something to send."""

    store: SqlStore
    planner: DecisionPlanner
    clock: Clock
    outbox: WakeSignal

    async def run(self) -> None:
        """Until it is cancelled. Waits while the database is down."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.step()
            except Unavailable as error:
                structlog.get_logger().warning("scores_not_checked", error=str(error))

    async def step(self) -> None:
        """Raises Unavailable."""
        now = self.clock()
        fresh = {run.id: run for run in await self.store.trials.runs(RUNS, now - FRESH_SECONDS)}
        if not fresh:
            return
        suites = {run.suite.name for run in fresh.values()}
        looked_at = [run for run in await self.store.trials.runs(RUNS) if run.suite.name in suites]
        trials = await self.store.trials.trials_of([run.id for run in looked_at])
        for drop in drops(series((run, trials[run.id]) for run in looked_at)):
            if drop.score.run in fresh:
                for message in self.planner.alert_score_drop(drop, now):
                    await self.store.outbox.add(message)
                    self.outbox.notify()
