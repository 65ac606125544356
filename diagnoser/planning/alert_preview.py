"""What would be sent about a stored diagnosis, to whom and why, and what was sent: for people who set up alerts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnoser.model import Job
from diagnoser.model.alerts import Alert
from diagnoser.model.errors import existing
from diagnoser.model.plans import OutboxRecord
from diagnoser.notifications import text
from diagnoser.notifications.alert import seal
from diagnoser.notifications.routing import AlertRouting, Route
from diagnoser.planning.planner import alert_key, verdict_alert, verdict_key

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore


@dataclass(frozen=True, slots=True)
class AlertPreview:
    """rows: (id, why it does not apply) of the table's rows up to the one that decides, whose why is "". sent: what
    became of the messages about the diagnosis."""

    diagnosis: str
    alert: Alert
    text: str
    route: Route
    rows: list[tuple[str, str]]
    sent: list[OutboxRecord]


async def preview_alert(
    store: "SqlStore", id: str, routing: AlertRouting, redact: Callable[[str], str], base_url: str
) -> AlertPreview:
    """Raises NotFound."""
    record = existing(await store.diagnoses.find(id), f"there is no diagnosis {id[:80]!r}")
    job = await store.jobs.find(record.attempt.job) or Job(record.attempt.job)
    alert = seal(verdict_alert(record, job, f"{base_url}/diagnoses/{record.id}", redact))
    route, key = routing.route(alert), verdict_key(record)
    sent = await store.outbox.messages([alert_key(key, receiver) for receiver in route.receivers])
    return AlertPreview(record.id, alert, text.body(alert), route, routing.explain(alert), sent)
