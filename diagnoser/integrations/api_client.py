"""Reads diagnoser from Python:

    async with connect("http://diagnoser:8321", token) as api:
        for incident in (await api.incidents())["items"]:
            print(incident["type"], incident["failures"])

Results are the API's own JSON; their types are drawn from its description (``api_types``), and a test holds paths,
parameters and types against that. Needs a token of the scope read where there are tokens.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import httpx

from diagnoser.integrations import http_api
from diagnoser.integrations.http_api import Pause

if TYPE_CHECKING:
    from diagnoser.integrations.api_types import (
        DiagnosisPage,
        DiagnosisShape,
        FoundList,
        IncidentPage,
        IncidentShape,
        JobPage,
        LogPage,
        NodeShape,
        PlanPage,
        PlanShape,
        SimilarList,
    )


@dataclass(frozen=True, slots=True)
class DiagnoserClient:
    """pause: how to sleep between tries. query: further parameters, as the API describes them; those that are None or
    empty count as not given.

    Every call raises Unavailable when the service did not answer after some tries, NotFound, Denied and OutOfScope for
    a wrong token, and BadInput for parameters that it does not take.
    """

    http: httpx.AsyncClient
    pause: Pause = asyncio.sleep

    async def incidents(self, **query: object) -> "IncidentPage":
        """Those that are not resolved, the newest first."""
        return cast("IncidentPage", await self._get("/incidents", query))

    async def incident(self, id: str) -> "IncidentShape":
        return cast("IncidentShape", await self._get(f"/incidents/{_segment(id)}"))

    async def diagnoses(self, **query: object) -> "DiagnosisPage":
        """Current ones, the newest first."""
        return cast("DiagnosisPage", await self._get("/diagnoses", query))

    async def diagnosis(self, id: str) -> "DiagnosisShape":
        return cast("DiagnosisShape", await self._get(f"/diagnoses/{_segment(id)}"))

    async def similar(self, id: str, **query: object) -> "SimilarList":
        """Confirmed failures that resemble a diagnosis, the most similar first."""
        return cast("SimilarList", await self._get(f"/diagnoses/{_segment(id)}/similar", query))

    async def job(self, id: str) -> "JobPage":
        return cast("JobPage", await self._get(f"/jobs/{_segment(id)}"))

    async def search(self, job: str, attempt: int, q: str, **query: object) -> "FoundList":
        """Lines of the log of an attempt that match the words of ``q``, the best match first."""
        return cast("FoundList", await self._get(f"/jobs/{_segment(job)}/attempts/{attempt}/search", {"q": q, **query}))

    async def log(self, job: str, attempt: int, **query: object) -> "LogPage":
        """A window of the log of an attempt."""
        return cast("LogPage", await self._get(f"/jobs/{_segment(job)}/attempts/{attempt}/log", query))

    async def nodes(self, **query: object) -> "list[NodeShape]":
        """Each with its last event."""
        return cast("list[NodeShape]", await self._get("/nodes", query))

    async def node_events(self, node: str, **query: object) -> "list[NodeShape]":
        """What happened to a node, the newest first."""
        return cast("list[NodeShape]", await self._get(f"/nodes/{_segment(node)}/events", query))

    async def plans(self, **query: object) -> "PlanPage":
        return cast("PlanPage", await self._get("/plans", query))

    async def plan(self, id: str) -> "PlanShape":
        return cast("PlanShape", await self._get(f"/plans/{_segment(id)}"))

    async def _get(self, path: str, query: Mapping[str, object] = {}) -> object:
        given: dict[str, Any] = {name: value for name, value in query.items() if value not in (None, "")}
        return (await http_api.call(self.http, self.pause, "GET", path, params=given)).json()


@asynccontextmanager
async def connect(url: str, token: str = "") -> AsyncIterator[DiagnoserClient]:
    """Raises BadInput for an unusable address."""
    async with http_api.connect(url, token) as http:
        yield DiagnoserClient(http)


def _segment(name: str) -> str:
    return quote(name, safe="")
