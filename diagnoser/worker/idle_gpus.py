"""Tells the owner of a job that it holds GPUs and does nothing with them: no step and no other line for an hour.

Each replica looks; the key of a message is the same wherever it is made, so that it is stored and sent once.
"""

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Job, MetricEvent, MetricEventKind
from diagnoser.model.job_contract import contract_of
from diagnoser.model.metric_events import NOWHERE
from diagnoser.model.queries import AttemptState, AttemptSummary
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.ports import Clock, WakeSignal
from diagnoser.recovery.downtime import gpus_of
from diagnoser.wording.phrases import plural
from diagnoser.wording.words import lasting
from diagnoser.worker.repeat import send

PERIOD = 60.0
IDLE_SECONDS = 3600.0
"""Without a line. A job may ask for more in its contract."""
FRESH_SECONDS = 3600.0
"""For how long an idle job is news: longer than the service is away at an upgrade, and shorter than its messages are
kept."""
OLDEST_SECONDS = 86_400.0 + FRESH_SECONDS
"""No contract allows a longer silence than a day: what has been silent for longer is no news."""
LOOKED_AT = 1_000
"""Silent attempts, those that printed last."""


async def alert_idle_gpus(store: SqlStore, planner: DecisionPlanner, clock: Clock, outbox: WakeSignal) -> None:
    """Look once at the attempts that fell idle lately; a hang has a verdict, and an alert. outbox: notified when there
    is something to send. Raises Unavailable."""
    now = clock()
    for attempt in await store.attempts.page(AttemptState.SILENT, now - IDLE_SECONDS, "", LOOKED_AT):
        idle = now - attempt.heard
        if attempt.diagnosis or idle > OLDEST_SECONDS:
            continue
        job = await store.jobs.find(attempt.key.job)
        if job is None or not job.registered:  # nobody would report its end
            continue
        gpus = gpus_of(job.labels.get("gpus"))
        if gpus and 0 <= idle - _allowed(job) < FRESH_SECONDS:
            event = MetricEvent(MetricEventKind.IDLE, NOWHERE, _why(gpus, idle, attempt))
            await send(store, planner.alert_metric(job, attempt.key.number, event, now), outbox)


def _allowed(job: Job) -> float:
    """Seconds without a line that are no news."""
    contract = contract_of(job)
    return max((IDLE_SECONDS, *filter(None, (contract.first_step_within, contract.cadence))))


def _why(gpus: int, idle: float, attempt: AttemptSummary) -> str:
    since = "since its last line"
    if not attempt.last_line:
        since = "since it began"
    return f"holds {plural(gpus, 'GPU')}, and has made no step and printed nothing for {lasting(idle)}, {since}"
