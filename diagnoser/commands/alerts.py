"""`alerts`: who would be notified of a diagnosis and why, and whether the receivers work."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, err, out, print_json, site
from diagnoser.config import alerting
from diagnoser.config.redaction import load_outbound_redactor
from diagnoser.config.settings import Settings
from diagnoser.model import Job
from diagnoser.model.alerts import Alert
from diagnoser.model.errors import DeliveryError, NotFound, existing
from diagnoser.model.outbox import OutboxRecord
from diagnoser.notifications import text
from diagnoser.notifications.alert import TEST_ALERT, seal
from diagnoser.planning.planner import alert_key, verdict_alert, verdict_key

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore

alerts_cli = typer.Typer(no_args_is_help=True, help="Show who is notified of what, and try the receivers.")


@alerts_cli.command()
def preview(
    id: Annotated[str, typer.Argument(help="Id of a diagnosis: the end of its page's address.")],
    json: AsJson = False,
) -> None:
    """Show what would be sent about a diagnosis now, to whom, which row of alerts.yaml decides, and what was sent."""
    settings = site()
    alert, sent = with_store(lambda store: _stored(store, settings, id), "alerts preview")
    routing = alerting.load_routing(settings)
    route, rows = routing.route(alert), routing.explain(alert)
    if json:
        print_json(
            {
                "row": route.row,
                "rows": [{"id": row, "why_not": why or None} for row, why in rows],
                "receivers": route.receivers,
                "severity": route.severity,
                "incident": alert.incident,
                "title": alert.title,
                "text": text.body(alert),
                "messages": [
                    {"receiver": message.message.target, "state": message.state, "why": message.error}
                    for message in sent
                ],
            }
        )
        return
    out.print(alert.title, style="bold")
    out.print(text.body(alert))
    out.print()
    for row, why in rows:
        out.print(f"  row {row}: {why or 'applies'}")
    who = ", ".join(route.receivers) or "nobody"
    if not routing.receivers:
        who += ": no receiver is configured"
    out.print(f"Told: {who} ({route.severity})")
    for message in sent:
        line = f"  {message.message.target}: {message.state}"
        if message.error:
            line += f": {message.error}"
        out.print(line)


@alerts_cli.command(name="test")
def try_receivers(
    receivers: Annotated[list[str] | None, typer.Argument(help="Names of receivers. Default: all of them.")] = None,
) -> None:
    """Send a test alert to the configured receivers. Ends with 1 where one of them cannot be reached."""
    settings = site()
    names = receivers or list(alerting.receiver_names(settings))
    if not names:
        raise NotFound("no receiver is configured: set DIAGNOSER_SLACK_URL, for example (docs/alerts.md)")
    if not asyncio.run(_try(settings, names)):
        raise typer.Exit(1)


async def _try(settings: Settings, names: list[str]) -> bool:
    """Whether the test reached each of them."""
    from diagnoser.adapters.http import create_client  # the other commands start without it

    reached = True
    async with create_client() as client:
        channels = alerting.open_receivers(settings, client)
        for receiver in names:
            name, _, place = receiver.partition(":")
            if name not in channels:
                raise NotFound(f"no receiver {name!r} is configured: there are {', '.join(channels) or 'none'}")
            try:
                await channels[name].post(TEST_ALERT, None, place)
                out.print(f"{receiver}: sent")
            except DeliveryError as error:
                reached = False
                err.print(f"{receiver}: {error}", style="red")
    return reached


async def _stored(store: "SqlStore", settings: Settings, id: str) -> tuple[Alert, list[OutboxRecord]]:
    """The alert of a stored diagnosis, and the messages about it. Raises NotFound."""
    record = existing(await store.diagnoses.find(id), f"there is no diagnosis {id!r}")
    job = await store.jobs.find(record.attempt.job) or Job(record.attempt.job)
    base = settings.base_url.rstrip("/") or f"http://{settings.host}:{settings.port}"
    redact = load_outbound_redactor(settings)
    alert = seal(verdict_alert(record, job, f"{base}/diagnoses/{id}", redact))
    receivers, key = alerting.load_routing(settings).route(alert).receivers, verdict_key(record)
    return alert, await store.outbox.messages([alert_key(key, receiver) for receiver in receivers])
