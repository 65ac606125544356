"""The service as it is composed for `serve`, acting, and around it what the attacks need: two tenants and an agent.

All attacks of a run share one service. Each has a cluster, two jobs and three nodes of its own, so that neither budgets
nor histories of the others hide what it reaches.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import httpx
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import func, select

from diagnoser import app
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.sql.tables import IS_OPEN, attempts
from diagnoser.config.settings import Settings
from diagnoser.model import Plan
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.queries import PlanFilter
from diagnoser.web.http.services import WebServices
from tests.attacks.records import Place, Post
from tests.rule_files import ANALYZER

API = "/api/v1"
Setting = Literal["open", "tokens"]
"""The default install, where nobody needs a token; and one with tokens of two tenants."""
CREDENTIALS = {
    "agent": Credential("agent", Scope.AGENT),
    "red": Credential("red", Scope.INGEST, tenant="red"),
    "blue": Credential("blue", Scope.INGEST, tenant="blue"),
    "ingest": Credential("ingest", Scope.INGEST),
    "alerts": Credential("alerts", Scope.ALERTS),
    "red-operator": Credential("red-operator", Scope.OPERATE, tenant="red"),
}
"""Who speaks. ``red`` and ``ingest`` are the liar's: its tenant's token, and one that is bound to no tenant."""
SLACK_SECRET = "a-signing-secret-of-slack"
WAIT_SECONDS = 600.0
"""For verdicts, on a machine that is busy with other things."""
STUCK_SECONDS = 20.0
"""An attempt that is held for longer failed to be diagnosed."""
PUT_OFF_SECONDS = 5.0
"""From which on an attempt waits for silence, and not for a verdict."""


@dataclass
class Lab:
    """The cluster of one attack. The liar's job runs on ``own``, the victim's on ``theirs``; they share a node."""

    number: int
    cluster: str = ""
    done: list[str] = field(default_factory=list)
    executed: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = f"c{self.number}"
        self.liar, self.victim = f"slurm-{self.cluster}-100", f"slurm-{self.cluster}-101"
        self.shared, self.foreign = f"s{self.number}", f"v{self.number}"
        self.own: tuple[str, ...] = (f"r{self.number}", self.shared)
        self.theirs: tuple[str, ...] = (self.shared, self.foreign)

    @property
    def allocations(self) -> Mapping[str, tuple[str, ...]]:
        return {self.liar: self.own, self.victim: self.theirs}


@dataclass(frozen=True)
class Site:
    """client: to the service. setting: whether tokens are needed."""

    client: httpx.AsyncClient
    application: FastAPI
    setting: Setting

    @property
    def services(self) -> WebServices:
        services: WebServices = self.application.state.services
        return services

    @property
    def store(self) -> SqlStore:
        store = self.services.core.store
        assert isinstance(store, SqlStore)
        return store

    def place(self, lab: Lab, node: str) -> Place:
        return Place(lab.cluster, node, time.time())

    async def call(self, lab: Lab, who: str, path: str, *, sound: bool = False, **more: Any) -> httpx.Response:
        """A request, which is noted. sound: it must be accepted, as nobody lies in it."""
        headers = more.pop("headers", {})
        if self.setting == "tokens" and who:
            headers = {**headers, "authorization": f"Bearer {who}"}
        answer = await self.client.post(path, headers=headers, **more)
        shown = {name: value for name, value in more.items() if value}
        lab.done.append(f"{who or 'nobody'} POST {path} {shown} -> {answer.status_code} {answer.text[:200]}".rstrip())
        assert not sound or answer.status_code < 300, lab.done[-1]
        return answer

    async def send(self, lab: Lab, who: str, post: Post, *, sound: bool = False) -> httpx.Response:
        return await self.call(
            lab,
            who,
            post.path,
            sound=sound,
            content=post.body,
            params=dict(post.query),
            headers={"content-type": post.kind},
        )

    async def register(self, lab: Lab, job: str, tenant: str, nodes: tuple[str, ...]) -> None:
        ranks = {str(rank): node for rank, node in enumerate(nodes)}
        body = {"id": job, "attempt": 1, "cluster": lab.cluster, "tenant": tenant, "nodes": nodes, "rank_nodes": ranks}
        await self.call(lab, "agent", f"{API}/jobs", sound=True, json=body)
        started = {"kind": "started", "attempt": 1}
        await self.call(lab, "agent", f"{API}/jobs/{job}/events", sound=True, json=started)

    async def prints(self, lab: Lab, who: str, job: str, *lines: str, sound: bool = True) -> httpx.Response:
        """The job's own lines, as its shipper sends them."""
        post = Post(f"{API}/logs", "".join(f"{line}\n" for line in lines).encode(), "text/plain", {"job": job})
        return await self.send(lab, who, post, sound=sound)

    async def ends(self, lab: Lab, job: str, **event: Any) -> None:
        """The scheduler's word that the first launch failed."""
        body = {"kind": "exit", "attempt": 1, "code": 1, "reason": "NonZeroExitCode", **event}
        await self.call(lab, "agent", f"{API}/jobs/{job}/events", sound=True, json=body)

    async def settled(self) -> list[str]:
        """Once no attempt waits for a verdict. Those that could not be diagnosed.

        One that was put off waits for silence, which is no sign of a hang here: it may go on, and is no plan's matter.
        """
        until = time.monotonic() + WAIT_SECONDS
        open_ones = select(attempts.c.job, attempts.c.lease, attempts.c.dirty).where(IS_OPEN)
        while time.monotonic() < until:
            async with self.store.db.reading() as connection:
                found = (await connection.execute(open_ones)).all()
            now = time.time()
            waiting = [row for row in found if row.dirty <= now + PUT_OFF_SECONDS]
            stuck = [row.job for row in waiting if row.lease > now + STUCK_SECONDS]
            if len(stuck) == len(waiting):
                return stuck
            await asyncio.sleep(0.1)
        return [row.job for row in waiting]

    async def plans(self) -> list[Plan]:
        """All that were ever made."""
        found, after = list[Plan](), ""
        while page := await self.store.plans.page(PlanFilter(), after, 200):
            found, after = [*found, *page], page[-1].id
        return found

    async def attempts_of(self, job: str) -> int:
        async with self.store.db.reading() as connection:
            query = select(func.count()).select_from(attempts).where(attempts.c.job == job)
            return int((await connection.execute(query)).scalar_one())


@asynccontextmanager
async def running(folder: Path, setting: Setting) -> AsyncIterator[Site]:
    """The service in mode act, with the shipped rules. Silence is no sign of a hang here: labs wait for each other."""
    slack: dict[str, Any] = {"slack_signing_secret": SecretStr(SLACK_SECRET), "slack_operators": "U1"}
    settings = Settings(
        database_url=f"sqlite:///{folder / 'attacks.db'}",
        recovery_mode="act",
        tokens=SecretStr(f"admin:{'a' * 32}" if setting == "tokens" else ""),
        exit_grace_seconds=0.05,
        fatal_debounce_seconds=0.05,
        hang_check_idle_seconds=1e6,
        hang_diagnosis_idle_seconds=1e6,
        **slack,
    )
    with patch.object(app, "load_analyzer", lambda settings: ANALYZER):
        async with app.running(settings, asyncio.Event()) as served:
            transport = httpx.ASGITransport(served, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321", timeout=120) as client:
                site = Site(client, served, setting)
                if setting == "tokens":
                    for name, credential in CREDENTIALS.items():
                        await site.store.tokens.add(StoredToken(credential, hash_of(name)))
                yield site
