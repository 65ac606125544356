"""Tells people when an evaluated checkpoint scores worse than those before it.

Each replica looks; the key of a message is the same wherever it is made, so that it is stored and sent once.
"""

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.evaluations.scores import drops, series
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.ports import Clock, WakeSignal
from diagnoser.worker.repeat import send

PERIOD = 60.0
RUNS = 200
"""Evaluations that are looked at, the newest."""
FRESH_SECONDS = 3600.0
"""For how long after its end an evaluation is looked at: longer than the service is away at an upgrade, and shorter
than its messages are kept."""


async def alert_score_drops(store: SqlStore, planner: DecisionPlanner, clock: Clock, outbox: WakeSignal) -> None:
    """Look once. outbox: notified when there is something to send. Raises Unavailable."""
    now = clock()
    fresh = {run.id: run for run in await store.evaluations.runs(RUNS, now - FRESH_SECONDS)}
    if not fresh:
        return
    suites = {run.suite.name for run in fresh.values()}
    looked_at = [run for run in await store.evaluations.runs(RUNS) if run.suite.name in suites]
    trials = await store.evaluations.trials_of([run.id for run in looked_at])
    for drop in drops(series((run, trials[run.id]) for run in looked_at)):
        if drop.score.run in fresh:
            await send(store, planner.alert_score_drop(drop, now), outbox)
