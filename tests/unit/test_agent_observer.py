"""The observer between a scheduler and a service that goes away, and the file that it goes on from."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from diagnoser.agent import state_file
from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.nodes import NodeRecord, NodeStatus, node_events
from diagnoser.agent.observer import Observer
from diagnoser.agent.state_file import AgentState, JobCheckpoint, LogOffset
from diagnoser.integrations.http_api import TRIES
from diagnoser.model.errors import Unavailable
from tests.unit.memory_cluster import MemoryJob, MemoryScheduler, MemorySource

SEVEN = MemoryJob("seven", ("n1", "n2"), log=("step 1",))


@dataclass
class Service:
    """What it has taken, in short. away: numbers of the requests that fail. refuses: a path that it never takes."""

    heard: list[str] = field(default_factory=list)
    requests: int = 0
    away: range = range(0)
    refuses: str = " "

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.requests in self.away:
            return httpx.Response(503)
        path, query = request.url.path.removeprefix("/api/v1"), request.url.params
        if self.refuses in path:
            return httpx.Response(400)
        body = request.content.decode()
        if path == "/logs":
            self.heard.append(f"{query.get('node') or query['attempt']} {query['source']}: {body.strip()}")
        elif path == "/jobs":
            self.heard.append(f"registered {json.loads(body)['id']}")
        else:
            found = json.loads(body)
            self.heard.append(" ".join(str(found[name]) for name in ("attempt", "kind", "by") if name in found))
        return httpx.Response(204)


async def no_pause(seconds: float) -> None:
    """At once."""


@dataclass
class Site:
    path: Path
    scheduler: MemoryScheduler = field(
        default_factory=lambda: MemoryScheduler({"seven": SEVEN}, {name: NodeRecord(name) for name in ("n1", "n2")})
    )
    service: Service = field(default_factory=Service)

    async def look(self) -> list[str]:
        """What one look of an agent that has just started tells: it knows no more than the file."""
        before = len(self.service.heard)
        transport = httpx.MockTransport(self.service.answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test") as http:
            client, state = ApiClient(http, no_pause), state_file.load(self.path, 0.0)
            source = MemorySource(client, self.scheduler, state)
            observer: Observer[MemoryJob] = Observer(client, source, "lab", self.path, state)
            await observer.poll_once()
        return self.service.heard[before:]

    def becomes(self, job: MemoryJob) -> None:
        self.scheduler.jobs[job.name] = job


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "lab.json")


async def test_each_thing_is_told_once_and_in_order(site: Site) -> None:
    """Through restarts: registered, started, its lines; its last lines before its end; then the next launch."""
    assert await site.look() == ["registered memory-seven", "1 started", "1 stdout: step 1"]
    assert await site.look() == []
    site.becomes(replace(SEVEN, state="failed", log=("step 1", "the cause")))
    assert await site.look() == ["1 stdout: the cause", "1 exit"]
    site.becomes(MemoryJob("seven", ("n2",), attempt=2))
    assert await site.look() == ["registered memory-seven", "2 started"]
    assert await site.look() == []


@pytest.mark.parametrize("missed", range(1, 5))
async def test_a_service_that_goes_away_is_told_the_rest_later(site: Site, missed: int) -> None:
    """Whichever request it misses: only a registration may come twice, which changes nothing."""
    site.becomes(replace(SEVEN, state="failed"))
    site.service.away = range(missed, missed + TRIES)
    with pytest.raises(Unavailable):
        await site.look()
    await site.look()
    whole = ["registered memory-seven", "1 started", "1 stdout: step 1", "1 exit"]
    twice = ["registered memory-seven"] * (missed == 2)
    assert site.service.heard == twice + whole
    assert await site.look() == []


async def test_what_the_service_never_takes_holds_nothing_up(site: Site) -> None:
    """It is said in the agent's log, and the rest goes on."""
    site.service.refuses = "/events"
    assert await site.look() == ["registered memory-seven", "1 stdout: step 1"]
    assert await site.look() == []


async def test_the_schedulers_lines_about_a_dead_node_come_before_the_end(site: Site) -> None:
    """With the job, and in the node's own log."""
    await site.look()
    site.scheduler.all_nodes["n2"] = NodeRecord("n2", up=False, record="n2 is dead")
    site.becomes(replace(SEVEN, state="failed"))
    assert await site.look() == ["down diagnoser", "n2 scheduler: n2 is dead", "1 memory: n2 is dead", "1 exit"]
    site.scheduler.all_nodes["n2"] = NodeRecord("n2")
    assert await site.look() == ["resumed diagnoser"]


async def test_a_node_event_that_could_not_be_told_is_told_at_the_next_look(site: Site) -> None:
    """The jobs are told meanwhile."""
    site.scheduler.all_nodes["n1"] = NodeRecord("n1", cordoned=True, reason="cables, ask Ida")
    site.service.away = range(1, 1 + TRIES)
    with pytest.raises(Unavailable):
        await site.look()
    assert "1 started" in site.service.heard
    assert await site.look() == ["cordoned person"]
    assert await site.look() == []


async def test_a_job_that_is_no_more_is_forgotten(site: Site) -> None:
    """The file stays as small as the cluster is busy."""
    await site.look()
    del site.scheduler.jobs["seven"]
    await site.look()
    assert state_file.load(site.path, 0.0).jobs == {}


OURS = NodeRecord("n1", cordoned=True, reason="diagnoser p9: ecc_error")
THEIRS = NodeRecord("n1", cordoned=True, reason="cables, ask Ida")
DOWN = NodeRecord("n1", up=False, reason="Kubelet is silent")


@pytest.mark.parametrize(
    ("before", "node", "event"),
    [
        (NodeStatus(), THEIRS, ("cordoned", "person")),
        (NodeStatus(), OURS, None),
        (NodeStatus("cordoned", ours=True), OURS, None),
        (NodeStatus("cordoned", ours=True), THEIRS, ("cordoned", "person")),
        (NodeStatus("cordoned", ours=True), NodeRecord("n1"), ("uncordoned", "person")),
        (NodeStatus("cordoned"), NodeRecord("n1"), ("uncordoned", "person")),
        (NodeStatus("cordoned"), THEIRS, None),
        (NodeStatus(), DOWN, ("down", "diagnoser")),
        (NodeStatus("down"), NodeRecord("n1"), ("resumed", "diagnoser")),
        (NodeStatus("down"), replace(DOWN, cordoned=True), ("cordoned", "person")),
    ],
)
def test_node_changes_are_told_with_who_made_them(
    before: NodeStatus, node: NodeRecord, event: tuple[str, str] | None
) -> None:
    """What a person did is feedback; a cordon of ours is told with its plan."""
    bodies = [body for _, _, body in node_events({"n1": before}, [node]) if body]
    assert [(body["kind"], body["by"]) for body in bodies] == ([event] if event else [])


def test_what_the_agent_knows_survives_a_restart(tmp_path: Path) -> None:
    """The file gives back what was written; one that is broken, or of another version, is an agent that begins now."""
    job = JobCheckpoint("k8s:lab:job:train:x", 2, ("n1",), started=True, members=("p1/0",), past=("p0/0",))
    logs = {
        "7": LogOffset(5, inode=50, position=3, seam=9, attempt=2, first=False),
        "p1/0": LogOffset(3, time="Z", same=2),
    }
    state = AgentState(12.5, {"u1": job}, {"n1": NodeStatus("cordoned", True)}, logs)
    path = tmp_path / "lab.json"
    state_file.save(path, state_file.encode(state))
    assert state_file.load(path, 99.0) == state
    for broken in (b"", b"[]", b'{"version": 1}', b'{"version": 2, "time": 1, "jobs": {"x": {}}, "nodes": {}}'):
        path.write_bytes(broken)
        assert state_file.load(path, 99.0) == AgentState(99.0)


async def test_an_agent_that_is_stopped_within_a_look_does_not_repeat_what_it_reported(site: Site) -> None:
    """Else it would not know the pods or processes of a job that fails before it is started again."""
    waiting = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if len(site.service.heard) == 2:
            waiting.set()
            await asyncio.Event().wait()
        return site.service.answer(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://diagnoser.test") as http:
        client, state = ApiClient(http, no_pause), state_file.load(site.path, 0.0)
        source = MemorySource(client, site.scheduler, state)
        observer: Observer[MemoryJob] = Observer(client, source, "lab", site.path, state)
        looking = asyncio.create_task(observer.run(1.0))
        await waiting.wait()
        looking.cancel()
        await asyncio.wait([looking])
    assert site.service.heard == ["registered memory-seven", "1 started"]
    assert await site.look() == ["1 stdout: step 1"]
