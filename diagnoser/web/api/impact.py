"""The report of impact: what failures cost, and which were dealt with without a person."""

import asyncio
from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from diagnoser.diagnosis.collection_pause import collection_paused
from diagnoser.impact.report import SHOWN_ATTEMPTS, ImpactReport, build_report
from diagnoser.web.api.params import Name
from diagnoser.web.api.views import WITHIN
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import ApiRouter, StrictSchema

router = ApiRouter("impact", dependencies=READ)


class ImpactQuery(StrictSchema):
    within: Literal["24h", "7d", "30d"] = Field("30d", description="Age of the verdicts of the failures")
    cluster: Name = ""


@router.get("/impact", summary="Report the impact of failures")
async def report(query: Annotated[ImpactQuery, Query()], core: Core) -> ImpactReport:
    """What failures cost, how they were closed, how often they come, and how much of their time long jobs trained."""
    now = core.clock()
    since = now - WITHIN[query.within]
    with collection_paused():
        attempts = await core.store.impact.attempts(since, SHOWN_ATTEMPTS)
        is_sample = len(attempts) == SHOWN_ATTEMPTS
        # It is computed beside other requests.
        return await asyncio.to_thread(build_report, attempts, since, now, cluster=query.cluster, is_sample=is_sample)
