"""Routes of the outbox: what was sent, and what could not be."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from diagnoser.client.service import API
from diagnoser.model import MessageKind
from diagnoser.model.access import Credential
from diagnoser.ports import OutboxRecord
from diagnoser.web.api.params import utc
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import OPERATE, READ, Caller, Provided
from diagnoser.web.http.dependencies import AppDependencies
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

PAGE, PAGE_LIMIT = 50, 200
RETRY_LIFE = 3600.0
"""Seconds before expiry that a retry by a person grants at least."""

router = Router(prefix=API, tags=["recovery"])

MessageKey = Annotated[str, Path(pattern=r"^[^\x00-\x1f\x7f/]{1,300}$", description="Key of the effect")]


class MessageQuery(Schema):
    model_config = ConfigDict(extra="forbid")

    state: Literal["pending", "sent", "dead", "expired", "withheld"] | None = None
    after: str = Field("", max_length=300, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class MessageSchema(Schema):
    """state: pending, sent, dead (given up: the receiver refused it), expired, withheld (an alert that is not sent, on
    purpose: `error` says why). due: the next try."""

    key: str
    kind: MessageKind
    target: str
    state: str
    tries: int
    due: datetime
    created: datetime
    expires: datetime
    error: str


class MessagePage(Schema):
    items: list[MessageSchema]
    next: str | None


@router.get("/effects", dependencies=READ, responses=answers(400, 401, 503), summary="List outgoing plans and alerts")
async def index(query: Annotated[MessageQuery, Query()], services: Provided) -> MessagePage:
    """Ordered by key. `state=dead` lists the dead letters."""
    records = await services.store.outbox.page(query.state or "", query.after, query.limit + 1)
    items = records[: query.limit]
    after = items[-1].message.key if len(records) > query.limit else None
    return MessagePage(items=[of_message(record) for record in items], next=after)


@router.post(
    "/effects/{key}/retry",
    dependencies=OPERATE,
    responses=answers(400, 401, 403, 404, 409, 503),
    summary="Send a dead or expired message again",
)
async def retry(key: MessageKey, services: Provided, caller: Caller) -> MessageSchema:
    """Try a dead or expired effect again. 409 for one that is pending or sent."""
    return of_message(await retry_message(services, caller, key))


async def retry_message(services: AppDependencies, caller: Credential, key: str) -> OutboxRecord:
    """Raises NotFound, Conflict, OutOfScope."""
    check_whole_service(caller)
    now = services.clock()
    record = await services.store.outbox.retry(key, now, now + RETRY_LIFE)
    services.plans.outbox.notify()
    return record


def of_message(record: OutboxRecord) -> MessageSchema:
    effect = record.message
    return MessageSchema(
        key=effect.key,
        kind=effect.kind,
        target=effect.target,
        state=record.state,
        tries=record.tries,
        due=utc(record.due),
        created=utc(effect.created),
        expires=utc(effect.expires),
        error=record.error,
    )
