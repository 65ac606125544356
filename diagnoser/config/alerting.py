"""Builds the receivers of alerts and the table that routes them, from the settings."""

import time
from typing import TYPE_CHECKING

from diagnoser import channels
from diagnoser.channels.channel import OpenReceiver, Transport
from diagnoser.config.folders import site_rules
from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput
from diagnoser.notifications import routing
from diagnoser.notifications.routing import AlertRouting, AlertTable
from diagnoser.ports import AlertChannel, Sender

if TYPE_CHECKING:
    import httpx
    from starlette.routing import BaseRoute

ALERTS = "alerts.yaml"


def load_table(settings: Settings) -> AlertTable:
    """The table of this site, or the shipped one. Raises RuleFaults, BadInput."""
    return routing.load(ALERTS, site_rules(settings).used[ALERTS])


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
    return tuple(_receivers(settings))


def open_receivers(settings: Settings, client: "httpx.AsyncClient") -> dict[str, AlertChannel]:
    """By name. Raises BadInput."""
    transport = _transport(settings, client)
    return {name: open_receiver(transport) for name, open_receiver in _receivers(settings).items()}


def answer_senders(settings: Settings, client: "httpx.AsyncClient") -> dict[str, Sender]:
    """What sends answers to people, by the channel in which they asked."""
    transport = _transport(settings, client)
    return {channel.name: channel.answers(settings, transport) for channel in channels.CHANNELS if channel.answers}


def rates() -> dict[str, float]:
    """Target -> messages that may be sent a second."""
    return {channel.name: channel.rate for channel in channels.CHANNELS if channel.rate}


def routes(settings: Settings) -> "list[BaseRoute]":
    """At which presses of buttons arrive."""
    return [route for channel in channels.CHANNELS if channel.routes for route in channel.routes(settings)]


def _transport(settings: Settings, client: "httpx.AsyncClient") -> Transport:
    return Transport(client, time.time, settings.allow_private_targets)


def _receivers(settings: Settings) -> dict[str, OpenReceiver]:
    """Those of all channels. Each has a name of its own, and none that of another channel. Raises BadInput."""
    receivers: dict[str, OpenReceiver] = {}
    names = {channel.name for channel in channels.CHANNELS}
    for channel in channels.CHANNELS:
        others = names - {channel.name}
        for name, open_receiver in channel.receivers(settings).items():
            if name in others.union(receivers):
                raise BadInput(f"a receiver of {channel.name} cannot be called {name!r}: another one is")
            receivers[name] = open_receiver
    return receivers
