"""What leaves the service, and what could not."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from diagnoser.model import EffectKind
from diagnoser.ports import EffectRecord
from diagnoser.web.api.fields import utc
from diagnoser.web.auth import READ, WRITE, Provided
from diagnoser.web.problems import answers
from diagnoser.web.services import Services

PAGE, PAGE_LIMIT = 50, 200
RETRY_LIFE = 3600.0
"""Seconds that a person's retry gives an effect at the least."""

router = APIRouter(tags=["recovery"])

EffectKey = Annotated[str, Path(pattern=r"^[^\x00-\x1f\x7f/]{1,300}$", description="Key of the effect")]


class EffectQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    state: Literal["pending", "sent", "dead", "expired"] | None = None
    after: str = Field("", max_length=300, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class EffectShape(BaseModel):
    """state: pending, sent, dead (given up: the receiver refused it), expired. due: the next try."""

    key: str
    kind: EffectKind
    target: str
    state: str
    tries: int
    due: datetime
    created: datetime
    expires: datetime
    error: str


class EffectPage(BaseModel):
    items: list[EffectShape]
    next: str | None


@router.get("/effects", dependencies=READ, responses=answers(400, 401, 503), summary="Alerts and plans on their way")
async def index(query: Annotated[EffectQuery, Query()], services: Provided) -> EffectPage:
    """By key. `state=dead` are the dead letters."""
    found = await services.store.effects_in(query.state or "", query.after, query.limit + 1)
    shown = found[: query.limit]
    after = shown[-1].effect.key if len(found) > query.limit else None
    return EffectPage(items=[of_effect(record) for record in shown], next=after)


@router.post("/effects/{key}/retry", dependencies=WRITE, responses=answers(400, 401, 403, 404, 409, 503))
async def retry(key: EffectKey, services: Provided) -> EffectShape:
    """Try a dead or expired effect again. 409 for one that is pending or sent."""
    return of_effect(await retry_effect(services, key))


async def retry_effect(services: Services, key: str) -> EffectRecord:
    """Raises NotFound, Conflict."""
    now = services.clock()
    record = await services.store.retry_effect(key, now, now + RETRY_LIFE)
    services.tell_outbox()
    return record


def of_effect(record: EffectRecord) -> EffectShape:
    effect = record.effect
    return EffectShape(
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
