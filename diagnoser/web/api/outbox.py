"""Routes of the outbox: what was sent, and what could not be."""

from operator import attrgetter
from typing import Annotated, Literal, Self

from fastapi import Path, Query
from pydantic import Field

from diagnoser.model import MessageKind
from diagnoser.model.access import Credential
from diagnoser.model.plans import OutboxRecord
from diagnoser.web.api.params import Moment, first_page
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core, Plans
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, Schema, StrictSchema

PAGE, PAGE_LIMIT = 50, 200
RETRY_LIFE = 3600.0
"""Seconds before expiry that a retry by a person grants at least."""

router = ApiRouter("recovery")

MessageKey = Annotated[str, Path(pattern=r"^[^\x00-\x1f\x7f/]{1,300}$", description="Key of the effect")]


class MessageQuery(StrictSchema):
    state: Literal["pending", "sent", "dead", "expired", "withheld"] | None = None
    after: str = Field("", max_length=300, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class MessageSchema(Answer):
    """state: pending, sent, dead (given up: the receiver refused it), expired, withheld (an alert that is not sent, on
    purpose: `error` says why). due: the next try."""

    key: str
    kind: MessageKind
    target: str
    state: str
    tries: int
    due: Moment
    created: Moment
    expires: Moment
    error: str

    @classmethod
    def from_record(cls, record: OutboxRecord) -> Self:
        fields = {name: getattr(record, name) for name in ("state", "tries", "due", "error")}
        return cls.filled_from(record.message, **fields)


class MessagePage(Schema):
    items: list[MessageSchema]
    next: str | None


@router.get("/effects", dependencies=READ, summary="List outgoing plans and alerts")
async def index(query: Annotated[MessageQuery, Query()], core: Core) -> MessagePage:
    """Ordered by key. `state=dead` lists the dead letters."""
    records = await core.store.outbox.page(query.state or "", query.after, query.limit + 1)
    shown, after = first_page(records, query.limit, attrgetter("message.key"))
    return MessagePage(items=list(map(MessageSchema.from_record, shown)), next=after)


@router.post(
    "/effects/{key}/retry",
    dependencies=OPERATE,
    responses=answers(404, 409),
    summary="Send a dead or expired message again",
)
async def retry(key: MessageKey, core: Core, plans: Plans, caller: Caller) -> MessageSchema:
    """Try a dead or expired effect again. 409 for one that is pending or sent."""
    return MessageSchema.from_record(await retry_message(core, plans, caller, key))


async def retry_message(core: Core, plans: Plans, caller: Credential, key: str) -> OutboxRecord:
    """Raises NotFound, Conflict, OutOfScope."""
    check_whole_service(caller)
    now = core.clock()
    record = await core.store.outbox.retry(key, now, now + RETRY_LIFE)
    plans.outbox.notify()
    return record
