"""The executor between a service and a scheduler that both answer late, or not at all."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from diagnoser.agent import executor
from diagnoser.agent.api_client import ApiClient, ClaimedPlan, _seconds_left
from diagnoser.agent.cluster import Cluster
from diagnoser.agent.executor import Executor
from diagnoser.agent.give_back import give_back
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.slurm.commands import run
from diagnoser.model.errors import BadInput
from tests.unit.memory_cluster import Fault, MemoryCluster, MemoryJob, MemoryScheduler

CORDON, LAUNCH = "cordon n1 diagnoser p1: ecc_error", "launch seven"
LOST = Fault(arrives=False, code=None)
PLAN: dict[str, Any] = {
    "id": "p1",
    "job": "memory-seven",
    "attempt": 1,
    "action": "cordon_and_resubmit",
    "nodes": ["n1"],
    "rollback": None,
    "steps": [],
    "diagnosis": "d1",
}
CHECK = PLAN | {"action": "check_and_resubmit", "nodes": []}


@dataclass
class Clock:
    """A minute passes with each look at it."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 60.0
        return self.now


@dataclass
class Service:
    """What the service hears, and answers: a check of two pairs, then one. gone: the plan is somebody else's."""

    reports: list[dict[str, Any]] = field(default_factory=list)
    results: list[list[dict[str, Any]]] = field(default_factory=list)
    gone: bool = False
    waits: int = 0
    after: str = "refused"
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content or b"{}")
        if path.endswith("/report"):
            if self.gone:
                return httpx.Response(409, json={"detail": "not yours"})
            self.reports.append(body)
            self.heard.set()
        if path.endswith("/check/next"):
            return self._round(1, [["n1", "n2"], ["n3", "n4"]])
        if path.endswith("/check/results"):
            self.results.append(body["results"])
            if len(self.results) == 1:
                return self._round(2, [["n1", "n3"]])
            return httpx.Response(200, json={"verdict": {"faulty": ["n1"], "reason": "n1 failed twice"}})
        if path.endswith("/plans/p1"):
            self.waits -= 1
            return httpx.Response(200, json={"state": "waiting" if self.waits >= 0 else self.after})
        return httpx.Response(200, json={"type": "ecc_error"})

    def _round(self, number: int, pairs: list[list[str]]) -> httpx.Response:
        return httpx.Response(200, json={"round": number, "pairs": pairs, "timeout_seconds": 60})

    @property
    def end(self) -> dict[str, Any]:
        return self.reports[-1]

    @property
    def codes(self) -> list[int | None]:
        return [step["exit_code"] for report in self.reports for step in report.get("steps", [])]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(executor, "UNCLEAR_SECONDS", 0.0)
    monkeypatch.setattr(executor, "PERSON_SECONDS", 0.0)


def scheduler(**fields: Any) -> MemoryScheduler:
    """Job seven has failed on n1 and n2."""
    nodes = {name: NodeRecord(name) for name in ("n1", "n2", "n3", "n4")}
    return MemoryScheduler({"seven": MemoryJob("seven", ("n1", "n2"), state="failed")}, nodes, **fields)


async def carried_out(
    cluster: MemoryCluster,
    service: Service | None = None,
    plan: dict[str, Any] = PLAN,
    clock: Callable[[], float] = lambda: 0.0,
    *,
    seconds: float = 1e6,
    dry: bool = False,
) -> Service:
    service = service or Service()
    transport = httpx.MockTransport(service.answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test") as http:
        typed: Cluster[MemoryJob] = cluster
        made = Executor(ApiClient(http), typed, "memory@host", clock, lambda: 1000.0, dry)
        await made.carry_out(ClaimedPlan(plan, "token", seconds))
    return service


async def test_a_node_is_cordoned_and_the_job_launched_without_it() -> None:
    """Each command is reported with its answer, and the end with the nodes that are out."""
    cluster = MemoryCluster(scheduler())
    service = await carried_out(cluster)
    assert cluster.scheduler.asked == [CORDON, LAUNCH]
    assert cluster.scheduler.jobs["seven"].nodes == ("n2", "n3")
    assert [report.get("drained") for report in service.reports] == [["n1"], [], ["n1"]]
    end = {"state": "reached", "detail": "launch 2 runs", "requeued": "memory-seven", "drained": ["n1"]}
    assert service.end == {"token": "token", **end}


async def test_a_rollback_reaches_the_next_launch_as_variables() -> None:
    """No node is touched."""
    cluster = MemoryCluster(scheduler())
    back = {"checkpoint": "/c/4000", "step": 4000}
    await carried_out(cluster, plan=PLAN | {"action": "rollback_and_resubmit", "nodes": [], "rollback": back})
    variables = ("DIAGNOSER_CHECKPOINT=/c/4000", "DIAGNOSER_CHECKPOINT_STEP=4000")
    assert cluster.scheduler.jobs["seven"].variables == variables


async def test_a_command_without_an_answer_that_arrived_is_not_run_again() -> None:
    """The job's launches tell that it was done."""
    cluster = MemoryCluster(scheduler(faults=[Fault(), Fault(code=None)]))
    service = await carried_out(cluster)
    assert cluster.scheduler.asked == [CORDON, LAUNCH]
    assert (service.end["state"], cluster.scheduler.jobs["seven"].attempt) == ("reached", 2)


async def test_a_command_that_did_not_arrive_is_run_again() -> None:
    """Each try is a step of the plan."""
    cluster = MemoryCluster(scheduler(faults=[Fault(), LOST, LOST]))
    service = await carried_out(cluster)
    assert cluster.scheduler.asked == [CORDON, LAUNCH, LAUNCH, LAUNCH]
    assert (service.end["state"], service.codes) == ("reached", [0, None, None, 0])


async def test_a_command_that_is_refused_ends_the_plan() -> None:
    """With what was answered, and nothing after it."""
    cluster = MemoryCluster(scheduler(faults=[Fault(arrives=False, code=1)]))
    service = await carried_out(cluster)
    assert (service.end["state"], service.end["detail"]) == ("not_reached", "n1 could not be cordoned: no")
    assert cluster.scheduler.asked == [CORDON]


async def test_a_refusal_that_passes_is_tried_again_and_told_once() -> None:
    """The cluster was busy, or somebody changed the node meanwhile."""
    busy = Fault(arrives=False, code=409, passing=True)
    cluster = MemoryCluster(scheduler(faults=[busy, busy, busy]))
    service = await carried_out(cluster)
    assert cluster.scheduler.asked == [CORDON] * 4 + [LAUNCH]
    assert (service.end["state"], service.codes) == ("reached", [409, 0, 0])


async def test_a_cluster_that_never_answers_is_given_up() -> None:
    """With what it was that got no answer."""
    cluster = MemoryCluster(scheduler(faults=[LOST] * 1000))
    service = await carried_out(cluster, clock=Clock())
    assert (service.end["state"], service.end["drained"]) == ("not_reached", [])
    assert "gave up after 300 s: cordon n1" in service.end["detail"]


async def test_a_cluster_that_is_slow_is_waited_for() -> None:
    """Its listings fail for a while; nothing is done until they come."""
    cluster = MemoryCluster(scheduler(away=5))
    service = await carried_out(cluster)
    assert (service.end["state"], cluster.scheduler.asked) == ("reached", [CORDON, LAUNCH])
    service = await carried_out(MemoryCluster(scheduler(away=10_000)), clock=Clock())
    assert service.end["state"] == "not_reached"
    assert service.end["detail"] == "the scheduler does not answer: the scheduler is slow"


async def test_a_cordon_is_told_also_when_its_report_was_lost() -> None:
    """The one before has died right after it: history and breaker must know that the node is out by us."""
    cluster = MemoryCluster(scheduler())
    cluster.scheduler.apply(("cordon", "n1", "diagnoser p1: ecc_error"))
    service = await carried_out(cluster)
    assert (service.end["state"], service.end["drained"]) == ("reached", ["n1"])
    assert cluster.scheduler.asked == [LAUNCH]


async def test_a_node_that_somebody_else_cordoned_is_left_as_it_is() -> None:
    """It is out already, and not by us."""
    cluster = MemoryCluster(scheduler())
    cluster.scheduler.apply(("cordon", "n1", "cables, ask Ida"))
    service = await carried_out(cluster)
    assert (service.end["state"], service.end["drained"]) == ("reached", [])
    assert cluster.scheduler.all_nodes["n1"].reason == "cables, ask Ida"


@pytest.mark.parametrize(
    ("fields", "options", "detail"),
    [
        ({"nodes": ["n1", "n9"]}, {}, "the scheduler did not give n9"),
        ({"job": "elsewhere-7"}, {}, "no job of this cluster"),
        ({}, {"seconds": -1.0}, "expired"),
        ({}, {"dry": True}, f"dry run; the next command would be: cordon n1 '{CORDON[10:]}'"),
    ],
    ids=["foreign node", "another cluster", "expired", "dry run"],
)
async def test_what_must_not_be_done_is_said_and_nothing_is_done(
    fields: dict[str, Any], options: dict[str, Any], detail: str
) -> None:
    """Not even the part that could be."""
    cluster = MemoryCluster(scheduler())
    service = await carried_out(cluster, plan=PLAN | fields, **options)
    assert (service.end["state"], detail in service.end["detail"]) == ("not_reached", True)
    assert cluster.scheduler.asked == []


@pytest.mark.parametrize("plan", [PLAN, CHECK], ids=["cordon", "check"])
@pytest.mark.parametrize("deaths", range(1, 5))
async def test_an_agent_that_dies_is_taken_over_wherever_it_was(plan: dict[str, Any], deaths: int) -> None:
    """Agents die after the first command that arrives, the last one carries on: nothing is done twice."""
    memory = scheduler(bad=frozenset({"n1"}))
    for _ in range(deaths):
        memory.arrived.clear()
        agent = asyncio.create_task(carried_out(MemoryCluster(memory), plan=plan))
        arrived = asyncio.create_task(memory.arrived.wait())
        await asyncio.wait((agent, arrived), return_when=asyncio.FIRST_COMPLETED)
        agent.cancel()
        arrived.cancel()
        await asyncio.gather(agent, arrived, return_exceptions=True)
    service = await carried_out(MemoryCluster(memory), plan=plan)
    checked = plan is CHECK
    late = checked and deaths > 2  # a job that was launched again already cannot be checked any more
    assert service.end["state"] == ("not_reached" if late else "reached")
    assert set(memory.done.values()) == {1}
    assert set(memory.done) == {CORDON, LAUNCH, *(["hold seven"] if checked else [])}
    assert memory.jobs["seven"].nodes == ("n2", "n3")


async def test_a_check_cordons_what_it_found_and_launches_the_job_again() -> None:
    """Round after round as the service says, with the seconds that the program measured; then all is let go."""
    cluster = MemoryCluster(scheduler(bad=frozenset({"n1"})))
    cluster.scheduler.all_nodes["n4"] = NodeRecord("n4", up=False)
    service = await carried_out(cluster, plan=CHECK)
    assert cluster.scheduler.asked == ["hold seven", CORDON, LAUNCH, "free"]
    first, second = service.results
    assert [(one["ok"], one["seconds"], one["detail"]) for one in first] == [
        (False, 2.5, 'printed {"seconds": 2.5}'),
        (False, 0.0, "n4 is down"),
    ]
    assert [one["nodes"] for one in second] == [["n1", "n3"]]
    assert (service.end["state"], service.end["drained"]) == ("reached", ["n1"])
    assert service.end["detail"] == "node check: n1 failed twice; launch 2 runs"


async def test_an_agent_without_a_check_leaves_no_job_held() -> None:
    """The job runs again, and the plan says that its nodes were not checked."""
    cluster = MemoryCluster(scheduler(), checks=False)
    service = await carried_out(cluster, plan=CHECK)
    assert (service.end["state"], "--check" in service.end["detail"]) == ("not_reached", True)
    assert cluster.scheduler.asked == ["hold seven", LAUNCH, "free"]


@pytest.fixture
def fast_heartbeat(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executor, "HEARTBEAT_SECONDS", 0.001)
    yield


@pytest.mark.usefixtures("fast_heartbeat")
async def test_the_lease_is_renewed_while_a_step_takes_long() -> None:
    """A check may take many minutes."""
    gate, service = asyncio.Event(), Service()
    cluster = MemoryCluster(scheduler(gate=gate))
    task = asyncio.create_task(carried_out(cluster, service, CHECK))
    while sum("steps" not in report for report in service.reports) < 3:
        service.heard.clear()
        await service.heard.wait()
    gate.set()
    await task
    assert service.end["state"] == "reached"


@pytest.mark.usefixtures("fast_heartbeat")
@pytest.mark.parametrize(("after", "state"), [("refused", "running"), ("sent", "held")])
async def test_a_plan_that_is_taken_away_stops_and_its_job_is_put_back(after: str, state: str) -> None:
    """Once it is clear that nobody will carry it out; as long as a person may still say yes, it is waited for."""
    service = Service(waits=3, after=after)
    cluster = MemoryCluster(scheduler(gate=asyncio.Event()))  # the check never ends
    task = asyncio.create_task(carried_out(cluster, service, CHECK))
    await service.heard.wait()
    service.gone = True
    await task
    assert (cluster.scheduler.jobs["seven"].state, service.waits) == (state, -1)
    assert all(report["state"] == "progress" for report in service.reports)


async def test_only_our_cordons_are_given_back() -> None:
    """All or nothing: one that a person made stops it, with the person's reason."""
    cluster = MemoryCluster(scheduler())
    cluster.scheduler.apply(("cordon", "n1", "diagnoser p1: ecc_error"))
    cluster.scheduler.apply(("cordon", "n2", "cables, ask Ida"))
    for names, fault in ((["n1", "n2"], "cables, ask Ida"), (["n1", "n9"], "no node n9"), (["n3"], "not cordoned")):
        with pytest.raises(BadInput, match=fault):
            await give_back(cluster, names)
    assert cluster.scheduler.asked == []
    assert await give_back(cluster, ["n1"]) == ["n1: back in service, was 'diagnoser p1: ecc_error'"]
    assert not cluster.scheduler.all_nodes["n1"].cordoned


async def test_a_command_that_is_not_there_is_a_refusal() -> None:
    """Waiting for it would not help."""
    result = await run(("no-such-command-of-slurm",), 5.0)
    assert (result.code, result.message) == (127, "no-such-command-of-slurm: No such file or directory")


def test_the_time_left_is_by_the_service_s_clock() -> None:
    """An agent whose clock is wrong by hours carries a plan out in time, and not too late."""
    for skew in (-7200, 0, 7200):
        there = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=skew)
        plan = {"expires": (there + timedelta(seconds=90)).isoformat()}
        assert _seconds_left(plan, format_datetime(there, usegmt=True)) == 90.0
    here = {"expires": (datetime.now(UTC) + timedelta(seconds=90)).isoformat()}
    assert 80.0 < _seconds_left(here, "") <= 90.0
