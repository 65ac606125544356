"""New diagnoses as they come (server-sent events), for pages that are open."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel

from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.ports import DiagnosisFilter, DiagnosisRecord
from diagnoser.web.authentication import READ, Caller, Provided
from diagnoser.web.dependencies import AppDependencies

POLL_SECONDS = 2.0
RETRY_MILLISECONDS = 3000
NEWS_LIMIT = 200
OVERLAP_SECONDS = 60.0  # replicas' clocks differ, and a row is seen only after its commit

router = APIRouter(tags=["diagnoses"], dependencies=READ)


class News(BaseModel):
    """A diagnosis stored since the last poll."""

    id: str
    job: str
    attempt: int
    outcome: Outcome
    category: Category
    type: FailureType
    url: str


@router.get("/live", response_class=EventSourceResponse, summary="Stream new diagnoses")
async def live(services: Provided, caller: Caller) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events, one `diagnosis` each, from now on until the token ends. Earlier ones are in the list."""
    yield ServerSentEvent(comment="listening", retry=RETRY_MILLISECONDS)
    last_poll, known_ids = services.clock(), None
    while not services.stopping.is_set() and await services.authenticator.is_valid(caller):
        now = services.clock()
        records = await _since(services, last_poll - OVERLAP_SECONDS)
        if records is not None:
            for record in reversed(records):
                if known_ids is not None and record.id not in known_ids:
                    yield ServerSentEvent(event="diagnosis", id=record.id, data=_news(record, services.config.base_url))
            last_poll, known_ids = now, {record.id for record in records}
        await _pause(services.stopping)


async def _since(services: AppDependencies, since: float) -> list[DiagnosisRecord] | None:
    """Newest first; None while the database is unavailable, which does not end the stream."""
    try:
        return await services.store.diagnoses(DiagnosisFilter(since=since), "", NEWS_LIMIT)
    except Unavailable:
        return None


async def _pause(stopping: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(POLL_SECONDS):
            await stopping.wait()
    except TimeoutError:
        return


def _news(record: DiagnosisRecord, base_url: str) -> News:
    verdict = record.diagnosis
    return News(
        id=record.id,
        job=record.attempt.job,
        attempt=record.attempt.number,
        outcome=verdict.outcome,
        category=verdict.category,
        type=verdict.type,
        url=f"{base_url}/diagnoses/{record.id}",
    )
