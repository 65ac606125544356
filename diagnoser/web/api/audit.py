"""The route of the audit log: who did what, from where, and what was before and after."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any

from fastapi import Query
from pydantic import AliasPath, Field

from diagnoser.adapters.sql.audit import AuditRepository
from diagnoser.model.audit import ActorKind, AuditEntry, AuditResult
from diagnoser.model.queries import AuditFilter
from diagnoser.web.api.params import LARGEST, Moment, Name, Search, TimeField, first_page, optional_seconds
from diagnoser.web.http.authentication import AUDIT
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Answer, ApiRouter, Schema, StrictSchema

PAGE, PAGE_LIMIT = 100, 500

router = ApiRouter("audit")


class AuditQuery(StrictSchema):
    """Filters; all that are given must match."""

    actor: Name = Field("", description="Name of a person or token")
    kind: ActorKind | None = None
    action: Search = Field("", description="A part of the method and route, or of the command")
    object_kind: Search = Field("", description="`plan`, `incident`, `rule`, `token`, `user`, ...")
    object_id: Name = Field("", description="A part of the object's id")
    result: AuditResult | None = None
    since: TimeField | None = Field(None, description="Seconds since the epoch or ISO 8601")
    until: TimeField | None = None
    before: int = Field(0, ge=0, le=LARGEST, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)

    def where(self) -> AuditFilter:
        since, until = optional_seconds(self.since), optional_seconds(self.until)
        return AuditFilter(
            self.actor, self.kind, self.action, self.object_kind, self.object_id, self.result, since, until
        )


class AuditShape(Answer):
    """actor_kind: whether a person, an agent's or another token, a command of the service, or a button in Slack.
    action: method and route, or the command. before, after: the fields that differ."""

    id: int
    time: Moment
    actor: str = Field(validation_alias=AliasPath("actor", "name"))
    actor_kind: ActorKind = Field(validation_alias=AliasPath("actor", "kind"))
    address: str = Field(validation_alias=AliasPath("actor", "address"))
    action: str
    object_kind: str
    object_id: str
    result: AuditResult
    detail: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


class AuditPage(Schema):
    """Newest first. ``next`` is what ``before`` must be for the following page, null on the last one."""

    items: list[AuditShape]
    next: int | None


@router.get("/audit", dependencies=AUDIT, summary="List what people and tokens did")
async def index(query: Annotated[AuditQuery, Query()], core: Core) -> AuditPage:
    """Every call that may change something, refused ones included. Lines of logs are not in it."""
    entries, after = await list_entries(core.store.audit, query)
    return AuditPage(items=AuditShape.list_of(entries), next=after)


async def list_entries(store: AuditRepository, query: AuditQuery) -> tuple[Sequence[AuditEntry], int | None]:
    """One page, and where the next one begins, None on the last one."""
    entries = await store.page(query.where(), query.before, query.limit + 1)
    return first_page(entries, query.limit, attrgetter("id"))
