"""New diagnoses as they come (server-sent events), for pages that are open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from diagnoser.model.queries import News
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.web.http.authentication import READ, Caller, People
from diagnoser.web.http.dependencies import Core, Live
from diagnoser.web.http.routing import Answer, ApiRouter
from diagnoser.web.live.diagnosis_feed import NEWS_LIMIT

POLL_SECONDS = 2.0
RETRY_MILLISECONDS = 3000
_ID = r"^[A-Za-z0-9_.-]{0,64}$"

router = ApiRouter("diagnoses", dependencies=READ)


class NewDiagnosis(Answer):
    """A diagnosis that was stored since the last event."""

    id: str
    job: str
    attempt: int
    outcome: Outcome
    category: Category
    type: FailureType
    url: str


@router.get("/live", response_class=EventSourceResponse, summary="Stream new diagnoses")
async def live(
    core: Core,
    live: Live,
    people: People,
    caller: Caller,
    last_event_id: Annotated[str, Header(pattern=_ID)] = "",
    since: Annotated[str, Query(pattern=_ID, description="Id: begin with the diagnoses made after that one")] = "",
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events, one `diagnosis` each, from now on until the token ends. Earlier ones are in the list. A
    reader that was cut off sends the id of its last event as `Last-Event-ID` and gets what came since; `since` does the
    same for a reader that begins."""
    yield ServerSentEvent(comment="listening", retry=RETRY_MILLISECONDS)
    feed, base_url = live.news, core.config.base_url
    position = await feed.position()
    told = last_event_id or since
    missed = await core.store.diagnoses.news(told, NEWS_LIMIT) if told else []
    for news in missed:
        yield _event(news, base_url)
    sent = {news.id for news in missed}
    while await may_go_on(core, people, caller):
        position, fresh = await feed.since(position)
        for news in fresh:
            if news.id not in sent:
                yield _event(news, base_url)
        await pause(core.stopping)


async def may_go_on(core: Core, people: People, caller: Caller) -> bool:
    """Tell whether an event stream goes on: the service does, and the caller's token is still valid."""
    return not core.stopping.is_set() and await people.authenticator.is_valid(caller)


async def pause(stopping: asyncio.Event) -> None:
    """Until the next look, or the stop of the service."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), POLL_SECONDS)


def _event(news: News, base_url: str) -> ServerSentEvent:
    shown = NewDiagnosis.filled_from(
        news, job=news.attempt.job, attempt=news.attempt.number, url=f"{base_url}/diagnoses/{news.id}"
    )
    return ServerSentEvent(event="diagnosis", id=news.id, data=shown)
