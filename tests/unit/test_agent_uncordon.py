"""The agent's duty of giving nodes back."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.claims import LONGEST_WAIT
from diagnoser.agent.node_check import run_groups
from diagnoser.agent.node_query import load_table
from diagnoser.agent.nodes import NodeRecord, NodeStatus, node_events
from diagnoser.agent.return_check import ReturnCheck
from diagnoser.agent.slurm.cluster import SlurmCluster
from diagnoser.agent.slurm.commands import CommandResult, Slurm
from diagnoser.agent.state_file import AgentState
from diagnoser.agent.uncordon import Uncordoner
from diagnoser.model.errors import Unavailable
from tests.unit.memory_cluster import MemoryCluster, MemoryScheduler

TABLE = load_table(None)


@dataclass
class Service:
    """requests: that are handed out. status: of claims, 200 as a rule. told: until a test has seen enough."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    results: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    pauses: list[float] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path.removeprefix("/api/v1"), json.loads(request.content)
        if path == "/uncordons/claim":
            handed, self.requests = self.requests, []
            return httpx.Response(self.status, json=handed)
        self.results.append((path, body))
        self.told.set()
        return httpx.Response(204)


def asked(node: str) -> dict[str, Any]:
    return {"id": f"id-{node}", "node": node, "by": "ida"}


def scheduler() -> MemoryScheduler:
    made = MemoryScheduler(all_nodes={name: NodeRecord(name) for name in ("n1", "n2", "n3")})
    made.apply(("cordon", "n1", "diagnoser p1: ecc_error"))
    made.apply(("cordon", "n2", "cables, ask Ida"))
    return made


async def run(
    service: Service, cluster: MemoryCluster, turns: int = 20, *, dry: bool = False, state: AgentState | None = None
) -> None:
    """turns: pauses before the test has gone wrong, or has seen enough."""
    left = iter(range(turns))

    async def pause(seconds: float) -> None:
        service.pauses.append(seconds)
        if next(left, None) is None:
            service.told.set()
            await asyncio.sleep(60)
        await asyncio.sleep(0)

    http = httpx.AsyncClient(transport=httpx.MockTransport(service.answer), base_url="http://diagnoser.test")
    check, known = ReturnCheck(cluster, TABLE, TABLE.commands), state or AgentState()
    agent = Uncordoner(ApiClient(http, pause), cluster, "lab", dry, check, known)
    task = asyncio.create_task(agent.run())
    await service.told.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_node_that_a_plan_took_out_is_given_back() -> None:
    """And the service is told how it went, and what was looked at."""
    service, cluster = Service([asked("n1")]), MemoryCluster(scheduler(), checks=False)
    await run(service, cluster)
    ((path, body),) = service.results
    assert (path, body["cluster"], body["state"]) == ("/uncordons/id-n1/result", "lab", "done")
    not_checked = "not checked: this agent can run nothing on nodes"
    assert body["result"] == f"n1: back in service, was 'diagnoser p1: ecc_error'; {not_checked}"
    assert not cluster.scheduler.all_nodes["n1"].cordoned


SOUND = json.dumps({"id": "gpu_ecc", "exit_code": 0, "output": "0, 00000000:3B:00.0, 0"})
FAULTY = json.dumps({"id": "gpu_ecc", "exit_code": 0, "output": "0, 00000000:3B:00.0, 3"})
XID = "2026-11-22T01:00:07,5+00:00 NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
LOG = json.dumps({"id": "kernel_ring_buffer", "exit_code": 0, "output": XID})
XID_TIME = 1_795_309_207.0


@pytest.mark.parametrize(
    ("answers", "bad", "taken_out", "refusal"),
    [
        pytest.param(SOUND, "", 0.0, "", id="nothing speaks against it"),
        pytest.param(FAULTY, "", 0.0, "shows the fault still (gpu_ecc): 0, 00000000:3B:00.0, 3", id="a query"),
        pytest.param(SOUND, "n1", 0.0, "the node check failed on n1 alone", id="the node check"),
        pytest.param("", "", 0.0, "nothing could be asked of n1", id="it answers nothing"),
        pytest.param(LOG, "", XID_TIME - 60, "shows the fault still (kernel_ring_buffer)", id="a line after the plan"),
        pytest.param(LOG, "", XID_TIME + 60, "", id="the line that the plan was made from"),
        pytest.param(LOG, "", 0.0, "shows the fault still (kernel_ring_buffer)", id="out since nobody knows when"),
    ],
)
async def test_a_node_comes_back_proven(answers: str, bad: str, taken_out: float, refusal: str) -> None:
    """It is asked, then checked alone, and stays out of service where it shows a fault or cannot be asked."""
    cluster, state = MemoryCluster(scheduler()), AgentState()
    cluster.scheduler.said, cluster.scheduler.bad = {"n1": answers}, frozenset({bad})
    service = Service([{**asked("n1"), "taken_out": taken_out}])
    await run(service, cluster, state=state)
    ((_, body),) = service.results
    assert refusal in body["result"], body
    assert cluster.scheduler.all_nodes["n1"].cordoned is (body["state"] == "refused") is bool(refusal)
    assert cluster.scheduler.lent == []
    assert state.returned == ({} if refusal else {"n1": "ida"})


def test_the_event_of_a_node_that_this_agent_gave_back_is_its_own() -> None:
    """A person's resume shields a node from plans for a day; a check that passed does not."""
    before = dict.fromkeys(("n1", "n2"), NodeStatus("cordoned", ours=True))
    events = node_events(before, [NodeRecord("n1"), NodeRecord("n2")], {"n1": "ida"})
    assert [event and event["by"] for _, _, event in events] == ["diagnoser", "person"]


async def test_a_node_that_somebody_else_cordoned_is_never_touched() -> None:
    """Nor one that is not cordoned; the answer says why."""
    for node, why in (("n2", "cables, ask Ida"), ("n3", "not cordoned"), ("n9", "no node n9")):
        service, cluster = Service([asked(node)]), MemoryCluster(scheduler())
        await run(service, cluster)
        assert service.results[0][1]["state"] == "refused"
        assert why in service.results[0][1]["result"]
        assert cluster.scheduler.asked == []


async def test_a_node_that_another_plan_took_out_during_its_check_stays_out() -> None:
    """What was checked is the fault of the first plan alone."""

    class Crossed(MemoryCluster):
        async def lend(self, node: NodeRecord) -> None:
            await MemoryCluster.lend(self, node)
            self.scheduler.apply(("cordon", "n1", "diagnoser p2: gpu_fell_off"))

    service, cluster = Service([asked("n1")]), Crossed(scheduler())
    cluster.scheduler.said = {"n1": SOUND}
    await run(service, cluster)
    assert service.results[0][1]["state"] == "refused"
    assert "taken out anew" in service.results[0][1]["result"]


async def test_a_drain_of_a_person_during_the_loan_of_a_node_keeps_its_reason() -> None:
    """Overwritten by ours, the node would be given back against that person."""
    asked_of: list[str] = []

    async def runner(words: Sequence[str], seconds: float) -> CommandResult:
        asked_of.append(" ".join(words))
        if words[:3] == ("scontrol", "-o", "show"):
            return CommandResult(tuple(words), 0, "NodeName=n1 State=IDLE+DRAIN Reason=bad PSU [ida@2026-11-20]\n")
        return CommandResult(tuple(words), 0)

    await SlurmCluster(Slurm(runner), "lab").end_loan(NodeRecord("n1", reason="diagnoser p1: ecc_error"))
    assert [words for words in asked_of if "state=drain" in words] == []
    assert any("delete reservation" in words for words in asked_of)


@pytest.mark.parametrize("printed", ["trying again in 5 seconds ... ok\nseconds: 1.25", "seconds: 1.25"])
async def test_what_a_node_check_prints_beside_its_time_is_no_time(printed: str) -> None:
    """Three dots behind a word ended the agent."""

    async def group(place: int, names: Sequence[str], attempts: object) -> tuple[bool, str, float]:
        return True, printed, 9.0

    results = await run_groups({"pairs": [["n1"]]}, {"n1": NodeRecord("n1")}, group)
    assert results.results[0]["seconds"] == 1.25


async def test_a_node_is_not_judged_by_a_partner_that_is_down() -> None:
    """In the first round both are tested again; later the partner had passed, and only the first node is judged."""

    async def group(place: int, names: Sequence[str], attempts: object) -> tuple[bool, str, float]:
        raise AssertionError("nothing is run beside a node that is down")

    nodes, pairs = {"n1": NodeRecord("n1"), "n2": NodeRecord("n2", up=False)}, [["n1", "n2"]]
    assert not (await run_groups({"round": 1, "pairs": pairs}, nodes, group)).results[0]["ok"]
    assert not (await run_groups({"round": 2, "pairs": [["n2", "n1"]]}, nodes, group)).results[0]["ok"]
    with pytest.raises(Unavailable, match="n2, by which n1 was to be judged"):
        await run_groups({"round": 2, "pairs": pairs}, nodes, group)


CANCELLED = "slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-28T20:35:37 {}***"


@pytest.mark.parametrize(
    ("error", "cancelled"),
    [
        (f"{CANCELLED.format('')}\nsrun: error: n1: task 0: Terminated", True),
        (f"{CANCELLED.format('DUE TO PREEMPTION ')}\nsrun: error: n1: tasks 0-7: Terminated", True),
        ("srun: error: Node failure on n1\nsrun: error: n2: task 1: Terminated", True),
        (f"{CANCELLED.format('DUE TO TIME LIMIT ')}\nsrun: error: n1: task 0: Terminated", False),
        (f"srun: error: n1: task 0: Exited with exit code 1\n{CANCELLED.format('')}", False),
        ("srun: error: n1: task 0: Segmentation fault", False),
    ],
)
def test_a_check_that_was_cancelled_says_nothing_of_its_nodes(error: str, cancelled: bool) -> None:
    """By a person, for another job, or with a node that died; one that ran too long, or whose task failed, does."""
    assert CommandResult(("srun",), 143, error=error).was_cancelled is cancelled


async def test_a_dry_run_gives_nothing_back() -> None:
    """It says so."""
    service, cluster = Service([asked("n1")]), MemoryCluster(scheduler())
    await run(service, cluster, dry=True)
    assert service.results[0][1]["state"] == "refused"
    assert cluster.scheduler.asked == []


async def test_while_the_scheduler_is_away_the_lease_runs_out() -> None:
    """Nothing is told, so that the request is handed out anew."""
    service, cluster = Service([asked("n1")]), MemoryCluster(scheduler())
    cluster.scheduler.away = 1
    await run(service, cluster)
    assert service.results == []


async def test_a_service_that_knows_no_such_requests_is_asked_rarely() -> None:
    """An older one answers 404: the pauses grow."""
    service = Service(status=404)
    await run(service, MemoryCluster(scheduler()), turns=30)
    assert LONGEST_WAIT * 0.75 <= max(service.pauses) <= LONGEST_WAIT * 1.25
