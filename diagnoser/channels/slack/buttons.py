"""Buttons of messages in Slack: what a person pressed there is done here, in that person's name.

Only the listed users may decide. Nothing but an id of ours comes back with a button.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

import orjson
from fastapi import Request
from fastapi.responses import Response
from pydantic import Field, StringConstraints
from starlette.routing import BaseRoute

from diagnoser.channels.slack.access import SlackAccess
from diagnoser.channels.slack.message import APPROVE, CONFIRM, REFUSE, SILENCE, escape
from diagnoser.model import FeedbackVerdict, MessageKind, OutboxMessage
from diagnoser.model.access import Credential, Scope
from diagnoser.model.alerts import AlertSilence
from diagnoser.model.audit import actor_of
from diagnoser.model.errors import BadInput, DiagnoserError, NotFound
from diagnoser.ports import current_call
from diagnoser.web.api.feedback import NewFeedback, store_feedback
from diagnoser.web.api.plans import approve_plan, refuse_plan
from diagnoser.web.http.dependencies import Plans, Unscoped
from diagnoser.web.http.routing import Router, Schema
from diagnoser.web.http.services import ScopedServices

SILENCE_SECONDS = 24 * 3600.0
ANSWER_SECONDS = 25 * 60.0
"""Slack takes an answer for half an hour."""


class _User(Schema):
    id: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]{1,32}$")]
    username: Annotated[str, StringConstraints(max_length=100)] = ""


class _Press(Schema):
    action_id: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,60}$")]
    action_ts: Annotated[str, StringConstraints(pattern=r"^[0-9.]{0,40}$")] = ""
    value: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,100}$")]


class _Interaction(Schema):
    """The fields of Slack's payload that matter here."""

    type: Literal["block_actions"]
    user: _User
    actions: Annotated[list[_Press], Field(min_length=1, max_length=5)]
    response_url: Annotated[str, StringConstraints(pattern=r"^https?://", max_length=500)]


def routes(access: SlackAccess) -> Sequence[BaseRoute]:
    router = Router(include_in_schema=False)

    @router.post("/slack/actions")
    async def press(request: Request, scope: Unscoped, plans: Plans) -> Response:
        """Does what the button says. Slack shows no answer of ours: the person is told through the outbox.

        Raises Denied for what Slack did not sign, BadInput.
        """
        body = await request.body()
        access.check_signature(request, body, scope.core.clock)
        interaction = _interaction(body)
        answer = await _decide(scope, plans, access, interaction)
        await scope.core.store.outbox.add(_answer(interaction, answer, scope.core.clock()))
        plans.outbox.notify()
        return Response()

    return router.routes


async def _decide(scope: ScopedServices, plans: Plans, access: SlackAccess, interaction: _Interaction) -> str:
    """What the person is told."""
    user = interaction.user
    if user.id not in access.operators:
        return f"You may not decide here. Whoever runs diagnoser can add {user.id} to DIAGNOSER_SLACK_OPERATORS."
    by = Credential(f"slack:{user.username or user.id}", Scope.OPERATE)
    if call := current_call():
        call.actor = actor_of(by, call.address)
    try:
        return " ".join([await _act(scope, plans, by, press) for press in interaction.actions])
    except DiagnoserError as error:
        return scope.core.redact(str(error))


async def _act(scope: ScopedServices, plans: Plans, by: Credential, press: _Press) -> str:
    """Raises DiagnoserError."""
    plan_id = press.value.partition("~")[0]
    if press.action_id == APPROVE:
        plan = await approve_plan(scope.core, plans, by, plan_id, "approved in Slack", press.value)
        return f"Approved: the plan for {plan.job} goes to the cluster."
    if press.action_id == REFUSE:
        plan = await refuse_plan(scope.core, plans, by, plan_id, "refused in Slack")
        return f"Refused: nothing is done for {plan.job}."
    if press.action_id == CONFIRM:
        await store_feedback(scope, by, press.value, NewFeedback(verdict=FeedbackVerdict.CONFIRMED))
        return "Thank you: the verdict counts as confirmed, and similar failures are recognised by it."
    if press.action_id == SILENCE:
        until = scope.core.clock() + SILENCE_SECONDS
        await scope.core.store.alerts.save_silence(AlertSilence(press.value, until, by.name))
        return "This incident alerts nobody for a day."
    raise NotFound(f"there is no button {press.action_id!r}")


def _interaction(body: bytes) -> _Interaction:
    """Raises BadInput."""
    try:
        payload: Any = parse_qs(body.decode(), max_num_fields=10)["payload"][0]
        return _Interaction.model_validate_json(payload)
    except (ValueError, KeyError):
        raise BadInput("this is no press of a button as Slack sends it") from None


def _answer(interaction: _Interaction, text: str, now: float) -> OutboxMessage:
    """Shown to the person who pressed, and nobody else. A press that Slack sends again is answered once."""
    first = interaction.actions[0]
    key = f"slack-{interaction.user.id}-{first.action_id}-{first.value}-{first.action_ts}"
    message = {"response_type": "ephemeral", "replace_original": False, "text": escape(text)}
    body = orjson.dumps({"response_url": interaction.response_url, "message": message})
    return OutboxMessage(key, MessageKind.ANSWER, "slack", body, now, now + ANSWER_SECONDS)
