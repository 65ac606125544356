"""The service's API, as an agent uses it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import zstandard

from diagnoser.integrations import http_api
from diagnoser.integrations.http_api import REQUEST_SECONDS
from diagnoser.model import AttemptKey, RuntimeFile
from diagnoser.model.errors import NotFound


@dataclass(frozen=True, slots=True)
class ClaimedPlan:
    """A claimed plan.

    token: proves the claim.
    seconds: until it expires, by the service's own clock.
    lease: seconds after a report in which no other agent gets it.
    """

    plan: Mapping[str, Any]
    token: str
    seconds: float
    lease: float


@dataclass(frozen=True, slots=True)
class ApiClient:
    """pause: how to sleep. Every call raises Unavailable when the service did not answer after some tries, Conflict
    when somebody else was first, Denied for a wrong token, and BadInput for what it will never accept."""

    client: httpx.AsyncClient
    pause: Callable[[float], Any] = asyncio.sleep

    async def register(self, job: Mapping[str, Any]) -> None:
        await self._call("POST", "/jobs", json=job)

    async def event(self, job: str, event: Mapping[str, Any]) -> None:
        await self._call("POST", f"/jobs/{job}/events", json=event)

    async def lines(self, job: str, attempt: int, source: str, first: int, body: bytes) -> None:
        """first: number of lines of the stream before these. Lines that are there already count once."""
        await self._logs({"job": job, "attempt": attempt, "source": source, "offset": first}, body)

    async def records(
        self, job: str, attempt: int, source: str, node: str, rank: int, first: int, lines: Sequence[bytes]
    ) -> None:
        """As ``lines``, each line a JSON record. node, rank: where they were printed; "" and -1 when not known."""
        query: dict[str, Any] = {"job": job, "attempt": attempt, "source": source, "offset": first}
        if node:
            query["node"] = node
        if rank >= 0:
            query["rank"] = rank
        await self._logs(query, b"\n".join(lines), "application/x-ndjson")

    async def node_lines(self, cluster: str, node: str, body: bytes) -> None:
        """Send what the scheduler wrote about a node, beside any job."""
        await self._logs({"source": "scheduler", "cluster": cluster, "node": node}, body)

    async def _logs(self, query: Mapping[str, Any], body: bytes, content_type: str = "text/plain") -> None:
        await self._call("POST", "/logs", params=query, content=body, headers={"content-type": content_type})

    async def job(self, id: str) -> dict[str, Any] | None:
        try:
            return dict(await self._json("GET", f"/jobs/{id}"))
        except NotFound:
            return None

    async def node(self, node: str, event: Mapping[str, Any]) -> None:
        await self._call("POST", f"/nodes/{node}/events", json=event)

    async def claim(self, executor: str, cluster: str, wait: float) -> ClaimedPlan | None:
        """The oldest plan to carry out, waiting up to ``wait`` seconds for one."""
        body = {"executor": executor, "cluster": cluster, "wait": wait}
        answer = await self._call("POST", "/plans/claim", json=body, timeout=wait + REQUEST_SECONDS)
        if answer.status_code == 204:
            return None
        claim, date = answer.json(), answer.headers.get("date", "")
        return ClaimedPlan(claim["plan"], claim["token"], _seconds_left(claim["plan"], date), claim["lease_seconds"])

    async def report(self, plan: str, report: Mapping[str, Any]) -> None:
        await self._call("POST", f"/plans/{plan}/report", json=report)

    async def check(
        self,
        plan: str,
        token: str,
        nodes: Sequence[str] = (),
        *,
        queries: bool = False,
        site_check: bool = False,
        pairs: bool = True,
    ) -> dict[str, Any]:
        """Ask what to do next. nodes: to be checked, empty for all of the job's. queries: this agent can ask nodes;
        site_check: it has a script of the site for it. pairs: it has a program to test pairs. A service that knows no
        queries is not told."""
        fields: dict[str, Any] = {"nodes": list(nodes), "queries": queries, "site_check": queries and site_check}
        body = {"token": token} | {name: value for name, value in fields.items() if value}
        if not pairs:
            body["pairs"] = False
        return dict(await self._json("POST", f"/plans/{plan}/check/next", json=body))

    async def checked(
        self,
        plan: str,
        token: str,
        round: int,
        results: Sequence[Mapping[str, Any]] = (),
        answers: Sequence[Mapping[str, Any]] = (),
        *,
        vouched: bool = False,
    ) -> dict[str, Any]:
        """Hands in results of pairs, or answers of nodes; the answer is what ``check`` answers then. vouched: whether
        the results are those of the operator's program."""
        body: dict[str, Any] = {"token": token, "round": round, "results": list(results)}
        if results:
            body["vouched"] = vouched
        if answers:
            body["answers"] = list(answers)
        return dict(await self._json("POST", f"/plans/{plan}/check/results", json=body))

    async def plan(self, id: str) -> dict[str, Any]:
        return dict(await self._json("GET", f"/plans/{id}"))

    async def newest_plans(self, limit: int) -> list[dict[str, Any]]:
        """List the newest plans that have not expired, newest first. Plans of other clusters are among them."""
        answer = await self._call("GET", "/plans", params={"limit": limit})
        date = answer.headers.get("date", "")
        return [plan for plan in answer.json()["items"] if _seconds_left(plan, date) > 0]

    async def diagnosis(self, id: str) -> dict[str, Any]:
        return dict(await self._json("GET", f"/diagnoses/{id}"))

    async def claim_evidence(self, cluster: str, limit: int, wait: float) -> list[dict[str, Any]]:
        """Requests for evidence of runs that may hang, at most so many, waiting up to ``wait`` seconds for one."""
        body = {"cluster": cluster, "limit": limit, "wait": wait}
        return list(await self._json("POST", "/evidence-requests/claim", json=body, timeout=wait + REQUEST_SECONDS))

    async def evidence(self, attempt: AttemptKey, dump: RuntimeFile, *, more: bool = False) -> None:
        """more: others that were taken with it follow. One that was sent before is replaced."""
        query: dict[str, Any] = {"kind": str(dump.kind), "rank": dump.rank}
        if dump.node:
            query["node"] = dump.node
        if more:
            query["more"] = "true"
        headers = {"content-type": "application/octet-stream", "content-encoding": "zstd"}
        path, body = f"/jobs/{attempt.job}/attempts/{attempt.number}/evidence", zstandard.compress(dump.data)
        await self._call("POST", path, params=query, content=body, headers=headers)

    async def node_snapshot(self, attempt: AttemptKey, node: str, parts: Sequence[Mapping[str, Any]]) -> None:
        """What a node said of itself before a plan for the attempt took it out. One that was sent before is
        replaced."""
        path = f"/jobs/{attempt.job}/attempts/{attempt.number}/node-snapshots"
        await self._call("POST", path, json={"node": node, "parts": list(parts)})

    async def places(self, cluster: str, places: Mapping[str, Sequence[str]]) -> None:
        """Tell where the nodes of a cluster stand, all of them."""
        await self._call("POST", "/nodes/places", json={"cluster": cluster, "places": dict(places)})

    async def evidence_result(self, request: str, cluster: str, result: str) -> None:
        await self._call("POST", f"/evidence-requests/{request}/result", json={"cluster": cluster, "result": result})

    async def claim_uncordons(self, cluster: str, wait: float) -> list[dict[str, Any]]:
        """Requests to give nodes back, waiting up to ``wait`` seconds for one."""
        body = {"cluster": cluster, "wait": wait}
        return list(await self._json("POST", "/uncordons/claim", json=body, timeout=wait + REQUEST_SECONDS))

    async def uncordon_result(self, request: str, cluster: str, state: str, result: str) -> None:
        body = {"cluster": cluster, "state": state, "result": result}
        await self._call("POST", f"/uncordons/{request}/result", json=body)

    async def _json(self, method: str, path: str, **request: Any) -> Any:
        return (await self._call(method, path, **request)).json()

    async def _call(self, method: str, path: str, **request: Any) -> httpx.Response:
        return await http_api.call(self.client, self.pause, method, path, **request)


def _seconds_left(plan: Mapping[str, Any], date: str) -> float:
    """Seconds until the plan expires. Both times come from the service's clock, so ours may be wrong; only where a
    proxy has stripped the answer's date does ours count."""
    try:
        now = parsedate_to_datetime(date)
    except ValueError:
        now = datetime.now(UTC)
    return (datetime.fromisoformat(plan["expires"]) - now).total_seconds()
