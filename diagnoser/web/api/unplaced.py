"""The route of what came in and belongs to no job."""

from typing import Annotated, Self

from fastapi import Query
from pydantic import Field

from diagnoser.ingest.mapping_hints import mapping_hint
from diagnoser.model import UnplacedReason
from diagnoser.model.unplaced import UnplacedRecord
from diagnoser.web.api.params import Moment
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Answer, ApiRouter, Schema, StrictSchema

PAGE, PAGE_LIMIT = 100, 500

router = ApiRouter("logs")


class UnplacedQuery(StrictSchema):
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class RemedySchema(Answer):
    """mapping: lines for the mapping file with which these labels have a place; empty where none helps. setting: what
    to change at the shipper instead."""

    mapping: str = Field(validation_alias="mapping_lines")
    setting: str


class UnplacedSchema(Answer):
    """Lines with the same labels. detail: the reason in words. sample: the newest known line or record, redacted.
    sender: name of the token."""

    labels: dict[str, str]
    reason: UnplacedReason
    detail: str
    protocol: str
    sender: str
    cluster: str
    lines: int
    first_seen: Moment
    last_seen: Moment
    sample: str
    remedy: RemedySchema

    @classmethod
    def from_record(cls, record: UnplacedRecord) -> Self:
        stream = record.stream
        return cls.filled_from(
            stream,
            labels=dict(stream.labels),
            first_seen=record.first_seen,
            last_seen=stream.received,
            remedy=mapping_hint(stream.labels, stream.reason, stream.protocol),
        )


class UnplacedPage(Schema):
    """total: how many there are."""

    items: list[UnplacedSchema]
    total: int


@router.get("/unplaced", dependencies=READ, summary="List what came in and belongs to no job")
async def index(query: Annotated[UnplacedQuery, Query()], core: Core) -> UnplacedPage:
    """The newest first. A stream goes a week after its last line, and the oldest of a sender beyond 200."""
    now = core.clock()
    records = await core.store.unplaced.page(now, query.limit)
    items = list(map(UnplacedSchema.from_record, records))
    return UnplacedPage(items=items, total=await core.store.unplaced.count(now))
