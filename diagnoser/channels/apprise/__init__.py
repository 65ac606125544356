"""Alerts through Apprise: Teams, PagerDuty, Opsgenie, mail, Matrix and whatever else it knows. Extra `apprise`."""

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, SecretStr

from diagnoser.channels.channel import Channel, OpenReceiver, Transport
from diagnoser.model.errors import BadInput

if TYPE_CHECKING:
    from diagnoser.ports import AlertChannel

_NAME_AND_URL = re.compile(r"([a-z0-9_-]+)=(\S+)")


class AppriseSettings(BaseModel):
    apprise_urls: SecretStr = Field(
        SecretStr(""),
        description="Further receivers of alerts, as `name=URL` in Apprise's form, separated by white space: "
        "`pager=pagerduty://... mail=mailtos://...`. Needs the package `apprise`. Empty: none.",
    )


def _receivers(settings: AppriseSettings) -> Mapping[str, OpenReceiver]:
    """The URLs are secrets: no message shows them."""
    receivers: dict[str, OpenReceiver] = {}
    for place, word in enumerate(settings.apprise_urls.get_secret_value().split(), 1):
        match = _NAME_AND_URL.fullmatch(word)
        if match is None:
            raise BadInput(f"DIAGNOSER_APPRISE_URLS: entry {place} is not name=URL")
        name, url = match.groups()
        if name in receivers:
            raise BadInput("DIAGNOSER_APPRISE_URLS: each receiver needs a name of its own")
        receivers[name] = partial(_open, name, url)
    return receivers


def _open(name: str, url: str, _transport: Transport) -> "AlertChannel":
    from diagnoser.channels.apprise.sending import AppriseReceiver

    return AppriseReceiver(name, url)


CHANNEL = Channel(
    name="apprise",
    settings=AppriseSettings,
    receivers=_receivers,
)
