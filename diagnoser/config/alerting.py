"""Builds the receivers of alerts and the table that routes them, from the settings."""

import re
import time
from typing import TYPE_CHECKING

from diagnoser.adapters import files
from diagnoser.config.folders import rules_folder, site_or_shipped
from diagnoser.config.settings import Settings, listed
from diagnoser.model.errors import BadInput
from diagnoser.notifications import routing
from diagnoser.notifications.routing import AlertRouting, AlertTable
from diagnoser.ports import AlertChannel

if TYPE_CHECKING:
    import httpx

ALERTS = "alerts.yaml"
_APPRISE = re.compile(r"([a-z0-9_-]+)=(\S+)")


def load_table(settings: Settings) -> AlertTable:
    """The table of this site; the shipped one where its rules have none. Raises RuleFaults, BadInput."""
    path = site_or_shipped(rules_folder(settings), ALERTS)
    return routing.load(path.name, files.text(path))


def load_routing(settings: Settings) -> AlertRouting:
    """Raises RuleFaults; BadInput where the table names a receiver that nobody configured."""
    table, receivers = load_table(settings), receiver_names(settings)
    unknown = routing.unknown_receivers(table, receivers)
    if unknown:
        known = ", ".join(receivers) or "none"
        raise BadInput(f"{ALERTS} names {', '.join(unknown)}; the configured receivers are: {known}")
    return AlertRouting(table, receivers)


def receiver_names(settings: Settings) -> tuple[str, ...]:
    """Raises BadInput."""
    names = []
    if settings.slack_token.get_secret_value() or settings.slack_url.get_secret_value():
        names.append("slack")
    if settings.alertmanager_url:
        names.append("alertmanager")
    return (*names, *(name for name, _ in _apprise_urls(settings)))


def channels(settings: Settings, client: "httpx.AsyncClient") -> dict[str, AlertChannel]:
    """Open the channels, by the name of the receiver. Raises BadInput."""
    from diagnoser.adapters.alertmanager import Alertmanager
    from diagnoser.adapters.slack import SlackBot, SlackWebhook

    built: dict[str, AlertChannel] = {}
    if token := settings.slack_token.get_secret_value():
        built["slack"] = SlackBot(
            token, settings.slack_channel, buttons=bool(slack_operators(settings)), api=settings.slack_api_url
        )
    elif url := settings.slack_url.get_secret_value():
        built["slack"] = SlackWebhook(url, client, time.time, allow_private=settings.allow_private_targets)
    if settings.alertmanager_url:
        built["alertmanager"] = Alertmanager(settings.alertmanager_url, client, time.time)
    for name, url in _apprise_urls(settings):
        from diagnoser.adapters.apprise import AppriseReceiver  # loads for a while, and most sites have none

        built[name] = AppriseReceiver(name, url)
    return built


def slack_operators(settings: Settings) -> frozenset[str]:
    """Who may press buttons; nobody where their presses cannot be proven."""
    if not settings.slack_signing_secret.get_secret_value():
        return frozenset()
    return frozenset(listed(settings.slack_operators))


def _apprise_urls(settings: Settings) -> list[tuple[str, str]]:
    """The URLs are secrets: no message shows them."""
    pairs = []
    for place, word in enumerate(settings.apprise_urls.get_secret_value().split(), 1):
        match = _APPRISE.fullmatch(word)
        if match is None:
            raise BadInput(f"DIAGNOSER_APPRISE_URLS: entry {place} is not name=URL")
        pairs.append((match[1], match[2]))
    names = [name for name, _ in pairs]
    if len({*names, "slack", "alertmanager"}) < len(names) + 2:
        raise BadInput("DIAGNOSER_APPRISE_URLS: each receiver needs a name of its own, other than slack, alertmanager")
    return pairs
