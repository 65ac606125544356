"""Prometheus' Alertmanager as a receiver of alerts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from diagnoser.channels.channel import Channel, OpenReceiver, Transport

if TYPE_CHECKING:
    from diagnoser.ports import AlertChannel

NAME = "alertmanager"


class AlertmanagerSettings(BaseModel):
    alertmanager_url: str = Field(
        "", description="Prometheus Alertmanager that alerts are pushed to, the receiver `alertmanager`. Empty: none."
    )


def _receivers(settings: AlertmanagerSettings) -> Mapping[str, OpenReceiver]:
    def open_receiver(transport: Transport) -> "AlertChannel":
        from diagnoser.channels.alertmanager.sending import Alertmanager

        return Alertmanager(settings.alertmanager_url, transport.client, transport.clock)

    return {NAME: open_receiver} if settings.alertmanager_url else {}


CHANNEL = Channel(
    name=NAME,
    settings=AlertmanagerSettings,
    receivers=_receivers,
)
