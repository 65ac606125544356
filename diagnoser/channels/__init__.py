"""The registry of channels for alerts: settings, receivers and routes go by it."""

from diagnoser.channels import alertmanager, apprise, slack
from diagnoser.channels.channel import Channel

CHANNELS: tuple[Channel, ...] = (
    slack.CHANNEL,
    alertmanager.CHANNEL,
    apprise.CHANNEL,
)
