"""Slack: an incoming webhook or a bot, with buttons in its messages and answers in its threads."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, SecretStr

from diagnoser.channels.channel import Channel, OpenReceiver, Transport

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from diagnoser.ports import AlertChannel, Sender

NAME = "slack"


class SlackSettings(BaseModel):
    slack_url: SecretStr = Field(
        SecretStr(""),
        description="Slack-compatible incoming webhook for alerts, the receiver `slack`. Empty: none. With "
        "`DIAGNOSER_SLACK_TOKEN`, the bot is used instead.",
    )
    slack_token: SecretStr = Field(
        SecretStr(""),
        description="Token of a Slack bot (`xoxb-`, scope `chat:write`), which keeps one thread for an incident. "
        "Empty: none.",
    )
    slack_channel: str = Field("", description="Channel that the Slack bot tells, by name or id.")
    slack_signing_secret: SecretStr = Field(
        SecretStr(""),
        description="Signing secret of the Slack app, for buttons in its messages and questions in its threads. Empty: "
        "neither.",
    )
    slack_operators: str = Field(
        "",
        description="Ids of the Slack users who may press the buttons and ask in threads (`U024BE7LH`), comma "
        "separated. Empty: nobody.",
    )
    slack_api_url: str = Field("https://slack.com/api/", description="Address of Slack's API.")


def operators(settings: SlackSettings) -> frozenset[str]:
    """Who may press buttons; nobody where their presses cannot be proven."""
    if not settings.slack_signing_secret.get_secret_value():
        return frozenset()
    return frozenset(name.strip() for name in settings.slack_operators.split(",") if name.strip())


def _receivers(settings: SlackSettings) -> Mapping[str, OpenReceiver]:
    token, url = settings.slack_token.get_secret_value(), settings.slack_url.get_secret_value()

    def open_bot(_transport: Transport) -> "AlertChannel":
        from diagnoser.channels.slack.sending import SlackBot

        has_buttons = bool(operators(settings))
        return SlackBot(token, settings.slack_channel, buttons=has_buttons, api=settings.slack_api_url)

    def open_webhook(transport: Transport) -> "AlertChannel":
        from diagnoser.channels.slack.sending import SlackWebhook

        return SlackWebhook(url, transport.client, transport.clock, allow_private=transport.allow_private)

    if token:
        return {NAME: open_bot}
    return {NAME: open_webhook} if url else {}


def _routes(settings: SlackSettings) -> "Sequence[BaseRoute]":
    from diagnoser.channels.slack import buttons, questions
    from diagnoser.channels.slack.access import SlackAccess

    access = SlackAccess(settings.slack_signing_secret.get_secret_value(), operators(settings))
    return [*buttons.routes(access), *questions.routes(access)]


def _answers(settings: SlackSettings, transport: Transport) -> "Sender":
    from diagnoser.channels.slack.sending import SlackAnswers, SlackMethods

    token = settings.slack_token.get_secret_value()
    methods = SlackMethods(token, settings.slack_api_url) if token else None
    return SlackAnswers(transport, methods)


CHANNEL = Channel(
    name=NAME,
    settings=SlackSettings,
    receivers=_receivers,
    rate=1.0,  # Slack accepts one a second
    routes=_routes,
    answers=_answers,
)
