"""Every way on which text leaves the service, and where it is masked. ``test_exits`` drives each."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    """modules: hold the connection, or write. messages: kinds of the outbox's messages that leave here."""

    name: str
    modules: tuple[str, ...]
    masked_in: str
    messages: tuple[str, ...] = ()


EXITS = (
    Exit("Alertmanager", ("channels.alertmanager.sending",), "planning.planner", ("alert",)),
    Exit("Apprise", ("channels.apprise.sending",), "planning.planner", ("alert",)),
    Exit("Slack", ("channels.slack.sending",), "planning.planner", ("alert",)),
    Exit("answer in Slack", ("channels.slack.buttons", "channels.slack.access"), "channels.slack.buttons"),
    Exit("answer to a question in Slack", ("channels.slack.questions",), "channels.slack.questions", ("slack",)),
    Exit("recovery webhook", ("adapters.webhook", "adapters.http"), "planning.planner", ("recovery",)),
    Exit("language model", ("adapters.openai", "adapters.openai_transport"), "adapters.openai"),
    Exit("embeddings", ("adapters.openai",), "adapters.openai"),
    Exit("assistant", ("integrations.mcp_server",), "integrations.assistant_text"),
    Exit("traces", ("adapters.otlp",), "adapters.otlp"),
    Exit("own log", ("observability.logging",), "observability.logging"),
    Exit("downloaded lists", ("web.api.exports",), "web.api.exports"),
    Exit("post-mortems", ("web.pages.post_mortem",), "wording.post_mortem"),
    Exit("error answers", ("web.http.problems",), "web.http.problems"),
)

NO_EXIT: Mapping[str, str] = {
    "adapters.redis": "wakes other replicas; carries ids",
    "adapters.prometheus": "asks about nodes by their names; carries no text of a log",
    "adapters.kafka": "reads lines, commits offsets",
    "adapters.line_sources.store_client": "reads lines of a log store by the operator's query",
    "adapters.oidc": "signs people in; carries no text of a log",
    "adapters.object_archive": "the site's own store of logs as they came",
    "channels.channel": "names what channels for alerts send with",
    "agent": "beside the site's scheduler: carries lines to the service",
    "client": "beside a training: carries lines to the service",
    "integrations.api_client": "asks the service",
    "integrations.http_api": "asks the service",
    "commands": "run by a person of the site, who may read the logs",
    "evaluations": "runs evaluations on the site's own nodes",
    "config": "builds adapters from the settings",
    "app": "makes the clients that adapters send with",
    "processes": "makes the listening socket",
    "supervisor": "the processes of this machine",
    "web": "answers who may read the log of the job, as it was printed",
}
"""Modules and packages that may use the network without a mask, and why."""
