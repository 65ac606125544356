"""The route of what came in and belongs to no job."""

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import ConfigDict, Field

from diagnoser.client.service import API
from diagnoser.ingest.remedies import remedy
from diagnoser.model import UnplacedReason
from diagnoser.ports import UnplacedRecord
from diagnoser.web.api.params import utc
from diagnoser.web.http.authentication import READ, Provided
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

PAGE, PAGE_LIMIT = 100, 500

router = Router(prefix=API, tags=["logs"])


class UnplacedQuery(Schema):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class RemedySchema(Schema):
    """mapping: lines for the mapping file with which these labels have a place; empty where none helps. setting: what
    to change at the shipper instead."""

    mapping: str
    setting: str


class UnplacedSchema(Schema):
    """Lines with the same labels. detail: the reason in words. sample: the newest known line or record, redacted.
    sender: name of the token."""

    labels: dict[str, str]
    reason: UnplacedReason
    detail: str
    protocol: str
    sender: str
    cluster: str
    lines: int
    first_seen: datetime
    last_seen: datetime
    sample: str
    remedy: RemedySchema


class UnplacedPage(Schema):
    """total: how many there are."""

    items: list[UnplacedSchema]
    total: int


@router.get(
    "/unplaced",
    dependencies=READ,
    responses=answers(400, 401, 503),
    summary="List what came in and belongs to no job",
)
async def index(query: Annotated[UnplacedQuery, Query()], services: Provided) -> UnplacedPage:
    """The newest first. A stream goes a week after its last line, and the oldest of a sender beyond 200."""
    now = services.clock()
    records = await services.store.unplaced.page(now, query.limit)
    return UnplacedPage(items=list(map(_schema, records)), total=await services.store.unplaced.count(now))


def _schema(record: UnplacedRecord) -> UnplacedSchema:
    stream = record.stream
    proposed = remedy(stream.labels, stream.reason, stream.protocol)
    return UnplacedSchema(
        labels=dict(stream.labels),
        reason=stream.reason,
        detail=stream.detail,
        protocol=stream.protocol,
        sender=stream.sender,
        cluster=stream.cluster,
        lines=stream.lines,
        first_seen=utc(record.first_seen),
        last_seen=utc(stream.received),
        sample=stream.sample,
        remedy=RemedySchema(mapping=proposed.mapping_lines, setting=proposed.setting),
    )
