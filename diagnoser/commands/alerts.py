"""`alerts`: who would be notified of a diagnosis and why, and whether the receivers work."""

import asyncio
from typing import Annotated

import typer

from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, err, out, print_json, site
from diagnoser.config import alerting, tls
from diagnoser.config.settings import Settings
from diagnoser.config.site_files import load_outbound_redactor
from diagnoser.model.errors import DeliveryError, NotFound
from diagnoser.notifications.alert import TEST_ALERT
from diagnoser.planning.alert_preview import AlertPreview, preview_alert

alerts_cli = typer.Typer(no_args_is_help=True, help="Show who is notified of what, and try the receivers.")


@alerts_cli.command()
def preview(
    id: Annotated[str, typer.Argument(help="Id of a diagnosis: the end of its page's address.")],
    json: AsJson = False,
) -> None:
    """Show what would be sent about a diagnosis now, to whom, which row of alerts.yaml decides, and what was sent."""
    settings = site()
    routing, redact = alerting.load_routing(settings), load_outbound_redactor(settings)
    base = tls.public_address(settings)
    shown = with_store(lambda store: preview_alert(store, id, routing, redact, base), "alerts preview")
    alert, route = shown.alert, shown.route
    if json:
        print_json(
            {
                "row": route.row,
                "rows": [{"id": row, "why_not": why or None} for row, why in shown.rows],
                "receivers": route.receivers,
                "severity": route.severity,
                "incident": alert.incident,
                "title": alert.title,
                "text": shown.text,
                "messages": [
                    {"receiver": message.message.target, "state": message.state, "why": message.error}
                    for message in shown.sent
                ],
            }
        )
    else:
        _print(shown, "" if routing.receivers else ": no receiver is configured")


def _print(shown: AlertPreview, why_nobody: str) -> None:
    out.print(shown.alert.title, style="bold")
    out.print(shown.text)
    out.print()
    for row, why in shown.rows:
        out.print(f"  row {row}: {why or 'applies'}")
    who = ", ".join(shown.route.receivers) or "nobody"
    out.print(f"Told: {who}{why_nobody} ({shown.route.severity})")
    for message in shown.sent:
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
