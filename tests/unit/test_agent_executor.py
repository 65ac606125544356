"""The executor between a service and a scheduler that both answer late, or not at all."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from diagnoser.agent import executor, repair_evidence, runtime, state_file
from diagnoser.agent.api_client import ApiClient, ClaimedPlan, _seconds_left
from diagnoser.agent.cluster import AskResults, Cluster, NodeQuestion
from diagnoser.agent.executor import Executor
from diagnoser.agent.node_query import Commands, known_commands, load_table
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.agent.slurm.commands import run
from diagnoser.agent.state_file import AgentState, JobCheckpoint
from diagnoser.agent.uncordon import give_back
from diagnoser.model.errors import BadInput, Denied, Unavailable
from diagnoser.recovery.node_query import NO_QUERIES, NodeQueryTable
from tests.unit.memory_cluster import Fault, MemoryCluster, MemoryJob, MemoryScheduler

UNASKED = "not confirmed by n1 itself (no query was run)"
CORDON, LAUNCH = "cordon n1 diagnoser p1: ecc_error", "launch seven"
LOST = Fault(arrives=False, code=None)
PLAN: dict[str, Any] = {
    "id": "p1",
    "job": "memory-seven",
    "attempt": 1,
    "action": "cordon_and_resubmit",
    "nodes": ["n1"],
    "proofs": [{"node": "n1", "kind": "node_log"}],
    "rollback": None,
    "steps": [],
    "diagnosis": "d1",
}
COMMANDS = {"gpu_ecc": ("nvidia-smi", "-q"), "site_check": ("/opt/nhc",)}
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
    """What the service hears, and answers: a check of two pairs, then one. gone: the plan is somebody else's.

    queries: to begin with; answers: to them. able: what agents said they can. faulty: what the answers prove. unproven:
    nothing is proven in the end, and the plan waits for a person. verdict: of a check that is over already.
    """

    reports: list[dict[str, Any]] = field(default_factory=list)
    results: list[list[dict[str, Any]]] = field(default_factory=list)
    vouched: list[bool | None] = field(default_factory=list)
    gone: bool = False
    away: bool = False
    waits: int = 0
    after: str = "refused"
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    queries: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    able: dict[str, Any] = field(default_factory=dict)
    faulty: list[str] = field(default_factory=list)
    unproven: bool = False
    bad_checkpoint: bool = False
    outcome: str = "failed"
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    snapshot_status: int = 204
    verdict: dict[str, Any] = field(default_factory=dict)

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content or b"{}")
        if self.away:
            return httpx.Response(503)
        if path.endswith("/report"):
            if self.gone:
                return httpx.Response(409, json={"detail": "not yours"})
            self.reports.append(body)
            self.heard.set()
        if path.endswith("/check/next"):
            self.able = {name: value for name, value in body.items() if name != "token"}
            if self.verdict:
                return httpx.Response(200, json={"round": 2, "pairs": [], "verdict": self.verdict})
            if self.queries and body.get("queries"):
                asked = {"round": 1, "queries": self.queries, "pairs": [], "timeout_seconds": 60}
                return httpx.Response(200, json=asked)
            if not body.get("pairs", True):
                return self._untested()
            return self._round(1, [["n1", "n2"], ["n3", "n4"]])
        if path.endswith("/check/results"):
            return self._after(body)
        if path.endswith("/jobs/memory-seven"):
            return httpx.Response(200, json={"nodes": ["n1", "n2", "n3", "n4"], "attempts": OPENED})
        return self._other(path, body)

    def _other(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path.endswith("/node-snapshots"):
            self.snapshots.append(body)
            return httpx.Response(self.snapshot_status, json={"detail": "no such route"})
        if path.endswith("/plans/p1") and self.bad_checkpoint:
            why = "/c/4000 was reported bad: a bit flipped"
            return httpx.Response(200, json={"reason": "bad_checkpoint", "state": "sent", "history": [{"why": why}]})
        if path.endswith("/plans/p1"):
            self.waits -= 1
            return httpx.Response(200, json=CHECK | {"state": "waiting" if self.waits >= 0 else self.after})
        return httpx.Response(200, json={"type": "ecc_error", "outcome": self.outcome})

    def _after(self, body: dict[str, Any]) -> httpx.Response:
        if "answers" in body:
            self.answers += body["answers"]
            if self.faulty:
                return httpx.Response(200, json={"verdict": {"faulty": self.faulty, "reason": "n1 says so itself"}})
            if not self.able.get("pairs", True):
                return self._untested()
            return self._round(1, [["n1", "n2"], ["n3", "n4"]])
        self.results.append(body["results"])
        self.vouched.append(body.get("vouched"))
        if self.unproven:
            return httpx.Response(409, json={"detail": "nothing proves that n1 is at fault"})
        if len(self.results) == 1:
            return self._round(2, [["n1", "n3"]])
        return httpx.Response(200, json={"verdict": {"faulty": ["n1"], "reason": "n1 failed twice"}})

    def _untested(self) -> httpx.Response:
        if self.unproven:
            return httpx.Response(409, json={"detail": "nothing proves that n1 is at fault"})
        return httpx.Response(200, json={"verdict": {"faulty": [], "reason": "no program for pairs (--check)"}})

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
    lease: float = 1e6,
    dry: bool = False,
    commands: Commands = COMMANDS,
    queries: NodeQueryTable = NO_QUERIES,
    state: AgentState | None = None,
) -> Service:
    service = service or Service()
    transport = httpx.MockTransport(service.answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test") as http:
        typed: Cluster[MemoryJob] = cluster
        known = (commands, state or AgentState(), queries)
        made = Executor(ApiClient(http), typed, "memory@host", clock, lambda: 1000.0, dry, *known)
        await made.carry_out(ClaimedPlan(plan, "token", seconds, lease))
    return service


async def test_a_node_is_cordoned_and_the_job_launched_without_it() -> None:
    """Each command is reported with its answer, and the end with the nodes that are out."""
    cluster = MemoryCluster(scheduler())
    service = await carried_out(cluster)
    assert cluster.scheduler.asked == [CORDON, LAUNCH]
    assert cluster.scheduler.jobs["seven"].nodes == ("n2", "n3")
    assert [report.get("drained") for report in service.reports] == [None, ["n1"], [], ["n1"]]
    end = {"state": "reached", "detail": f"launch 2 runs; {UNASKED}", "requeued": "memory-seven", "drained": ["n1"]}
    assert service.end == {"token": "token", **end}


async def test_a_claim_whose_answer_came_too_late_does_nothing() -> None:
    """Another agent has the plan by then, as the service says before the first command."""
    service, cluster = Service(), MemoryCluster(scheduler())
    service.gone = True
    await carried_out(cluster, service)
    assert cluster.scheduler.asked == []


async def test_a_rollback_reaches_the_next_launch_as_variables() -> None:
    """No node is touched."""
    cluster = MemoryCluster(scheduler())
    back = {"checkpoint": "/c/4000", "step": 4000}
    await carried_out(cluster, plan=PLAN | {"action": "rollback_and_resubmit", "nodes": [], "rollback": back})
    variables = ("DIAGNOSER_CHECKPOINT=/c/4000", "DIAGNOSER_CHECKPOINT_STEP=4000")
    assert cluster.scheduler.jobs["seven"].variables == variables


ROLLBACK = PLAN | {
    "action": "rollback_and_resubmit",
    "nodes": [],
    "rollback": {"checkpoint": "/c/4000", "step": 4000},
}


async def test_a_checkpoint_that_was_reported_bad_since_the_claim_is_refused() -> None:
    """Before the first command: nothing is done, and the service hears why."""
    cluster = MemoryCluster(scheduler())
    service = await carried_out(cluster, Service(bad_checkpoint=True), plan=ROLLBACK)
    assert (cluster.scheduler.asked, service.end["state"], service.end["refused"]) == (
        [],
        "not_reached",
        "bad_checkpoint",
    )
    assert "a bit flipped" in service.end["detail"]


async def test_a_rollback_that_is_under_way_is_finished() -> None:
    """Whoever takes it over does not leave the job between its end and its next launch."""
    cluster = MemoryCluster(scheduler())
    begun = ROLLBACK | {"steps": [{"command": "stop seven", "exit_code": 0, "output": "", "time": 1.0}]}
    service = await carried_out(cluster, Service(bad_checkpoint=True), plan=begun)
    assert service.end["state"] == "reached"


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
    assert (service.end["state"], service.end["detail"]) == ("not_reached", f"n1 could not be cordoned: no; {UNASKED}")
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
        (
            {"nodes": ["n1", "n9"], "proofs": [{"node": node, "kind": "scheduler"} for node in ("n1", "n9")]},
            {},
            "the scheduler did not give n9",
        ),
        ({"proofs": []}, {}, "no proof (node_log, scheduler, query, check, person) that n1"),
        ({"proofs": [{"node": "n1", "kind": "rumour"}]}, {}, "that n1 is at fault"),
        ({"proofs": [{"node": "n1"}]}, {}, "that n1 is at fault"),
        ({"job": "elsewhere-7"}, {}, "no job of this cluster"),
        ({}, {"seconds": -1.0}, "expired"),
        ({}, {"dry": True}, f"dry run; the next command would be: cordon n1 '{CORDON[10:]}'"),
    ],
    ids=[
        "foreign node",
        "unproven node",
        "unknown kind of proof",
        "no kind of proof",
        "another cluster",
        "expired",
        "dry run",
    ],
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


def printed(id: str, output: str, exit_code: int | None = 0) -> str:
    return json.dumps({"id": id, "exit_code": exit_code, "output": output}) + "\n"


TABLE = load_table(None).model_copy(update={"snapshots": ()})
OPENED = [{"number": 1, "opened": "2026-11-22T01:00:00+00:00"}]
XID = "2026-11-22T01:00:07+0000 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
QUIET = "2026-11-22T01:00:07+0000 n1 kernel: usb 1-1: new high-speed USB device number 2"
OLDER = XID.replace("T01:00", "T00:40")


async def asked(cluster: MemoryCluster, plan: dict[str, Any] = PLAN) -> Service:
    return await carried_out(cluster, plan=plan, commands=known_commands(TABLE), queries=TABLE)


@pytest.mark.parametrize("log", [QUIET, OLDER], ids=["another line", "long before the attempt"])
async def test_a_node_whose_own_log_does_not_confirm_the_fault_stays(log: str) -> None:
    """Whatever was shipped to the service as its log: the agent asked the node before the cordon, and nothing is
    done."""
    cluster = MemoryCluster(scheduler(said={"n1": printed("kernel_journal", log)}))
    service = await asked(cluster)
    assert cluster.scheduler.asked == []
    assert (service.end["state"], service.end["refused"]) == ("not_reached", "not_confirmed")
    assert "n1 was asked (kernel_journal)" in service.end["detail"]


async def test_a_node_that_confirms_its_fault_is_cordoned() -> None:
    """By any of its answers, although another one can be read and shows nothing; it is asked once."""
    said = printed("kernel_journal", QUIET) + printed("kernel_ring_buffer", XID.replace("n1 kernel: ", ""))
    cluster = MemoryCluster(scheduler(said={"n1": said}))
    service = await asked(cluster)
    assert cluster.scheduler.asked == [CORDON, LAUNCH]
    assert service.end["state"] == "reached"
    assert "n1 confirms it: 2026-11-22T01:00:07+0000 NVRM: Xid" in service.end["detail"]
    commands = [step["command"] for report in service.reports for step in report.get("steps", [])]
    assert len([command for command in commands if command.startswith("ask n1")]) == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (printed("kernel_ring_buffer", "dmesg: Operation not permitted", 1), "Operation not permitted"),
        (printed("kernel_journal", "journalctl: No such file", None), "No such file"),
        ("srun: error: n1", "no answer: srun: error: n1"),
        ("".join(printed(query.id, "") for query in TABLE.queries), "its own log could not be read"),
    ],
)
async def test_a_node_that_cannot_be_asked_is_cordoned_and_the_plan_says_so(said: str, why: str) -> None:
    """What the service holds as proof stands: a node that lost its GPU often answers nothing any more."""
    cluster = MemoryCluster(scheduler(said={"n1": said}))
    service = await asked(cluster)
    assert cluster.scheduler.asked == [CORDON, LAUNCH]
    assert "not confirmed by n1 itself" in service.end["detail"] and why in service.end["detail"]


@pytest.mark.parametrize(
    ("said", "status", "note"),
    [
        (printed("gpu_state", "Attached GPUs : 7"), 204, "evidence of n1 is kept, without kernel_journal"),
        ("", 204, "no evidence of n1 was kept: no answer"),
        (printed("gpu_state", "Attached GPUs : 7"), 404, "no evidence of n1 was kept: "),
    ],
    ids=["kept", "the node says nothing", "an older service"],
)
async def test_what_a_repair_destroys_is_kept_before_the_cordon(said: str, status: int, note: str) -> None:
    """Whatever comes of that, the plan goes on and says what is missing."""
    service, cluster = Service(snapshot_status=status), MemoryCluster(scheduler(said={"n1": said}))
    plan = PLAN | {"proofs": [{"node": "n1", "kind": "scheduler"}]}
    await carried_out(cluster, service, plan, queries=load_table(None))
    assert note in service.end["detail"], service.end
    assert service.end["state"] == "reached"
    parts = service.snapshots[0]["parts"] if service.snapshots else []
    assert [part["id"] for part in parts if part["exit_code"] == 0] == (["gpu_state"] if said else [])
    assert len(parts) == (len(load_table(None).snapshots) if said else 0), "what is missing is named, too"


class BusyCluster(MemoryCluster):
    """A person drains its node while that is asked."""

    async def ask(self, spec: PlanSpec, questions: Sequence[NodeQuestion]) -> AskResults:
        self.scheduler.apply(("cordon", "n1", "cables, ask Ida"))
        return await MemoryCluster.ask(self, spec, questions)


@pytest.mark.parametrize("proof", ["scheduler", "node_log"])
async def test_a_node_that_a_person_drains_while_it_is_asked_keeps_his_reason(proof: str) -> None:
    """Asking it, or keeping its evidence, takes minutes: the agent looks again before it cordons."""
    cluster = BusyCluster(scheduler(said={"n1": printed("kernel_journal", XID)}))
    service = await carried_out(
        cluster, plan=PLAN | {"proofs": [{"node": "n1", "kind": proof}]}, queries=load_table(None)
    )
    assert (cluster.scheduler.asked, service.end["drained"]) == ([LAUNCH], [])
    assert cluster.scheduler.all_nodes["n1"].reason == "cables, ask Ida"


class SilentCluster(MemoryCluster):
    """Whose nodes are asked in vain: the scheduler never starts what asks them."""

    async def ask(self, spec: PlanSpec, questions: Sequence[NodeQuestion]) -> AskResults:
        await asyncio.sleep(3600)
        raise AssertionError("it is given up before")


async def test_evidence_that_nobody_gives_holds_no_plan_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over, the node goes, and the plan says that nothing was kept."""
    monkeypatch.setattr(repair_evidence, "NODE_SECONDS", 0.05)
    plan = PLAN | {"proofs": [{"node": "n1", "kind": "scheduler"}]}
    cluster = SilentCluster(scheduler(said={"n1": ""}))
    service = await carried_out(cluster, plan=plan, queries=load_table(None))
    assert "no evidence of n1 was kept: no answer within" in service.end["detail"]
    assert (service.end["state"], cluster.scheduler.asked) == ("reached", [CORDON, LAUNCH])


async def test_a_node_that_is_down_is_cordoned_without_its_own_word() -> None:
    """The scheduler sees that it is dead."""
    cluster = MemoryCluster(scheduler(said={"n1": printed("kernel_journal", QUIET)}))
    cluster.scheduler.all_nodes["n1"] = NodeRecord("n1", up=False)
    service = await asked(cluster)
    assert cluster.scheduler.asked == [CORDON, LAUNCH]
    assert "n1 is down" in service.end["detail"]


@pytest.mark.parametrize("kind", ["scheduler", "query", "check", "person"])
async def test_a_node_is_asked_only_where_its_shipped_log_is_all_there_is(kind: str) -> None:
    """The scheduler, a person, or the node itself has said it already."""
    cluster = MemoryCluster(scheduler(said={"n1": printed("kernel_journal", QUIET)}))
    both = PLAN | {"proofs": [*PLAN["proofs"], {"node": "n1", "kind": kind}]}
    service = await asked(cluster, both)
    assert (cluster.scheduler.asked, service.end["detail"]) == ([CORDON, LAUNCH], "launch 2 runs")


async def test_one_node_that_does_not_confirm_stops_the_plan_before_the_first_cordon() -> None:
    """All of its nodes are asked before the first one goes."""
    said = {"n1": printed("kernel_journal", XID), "n2": printed("kernel_journal", QUIET)}
    cluster = MemoryCluster(scheduler(said=said))
    proofs = [PLAN["proofs"][0] | {"node": node} for node in ("n1", "n2")]
    service = await asked(cluster, PLAN | {"nodes": ["n1", "n2"], "proofs": proofs})
    assert (cluster.scheduler.asked, service.end["refused"]) == ([], "not_confirmed")


def running() -> MemoryScheduler:
    made = scheduler()
    made.jobs["seven"] = MemoryJob("seven", ("n1", "n2"))
    return made


@pytest.mark.parametrize("plan", [PLAN, CHECK, PLAN | {"action": "resubmit", "nodes": []}])
async def test_a_job_that_its_scheduler_shows_running_is_left_alone(plan: dict[str, Any]) -> None:
    """Neither launched again nor held for a check, and no node is cordoned: whoever said that it ended was wrong."""
    cluster = MemoryCluster(running())
    service = await carried_out(cluster, plan=plan, clock=Clock())
    assert [command for command in cluster.scheduler.asked if command != "free"] == []
    assert (service.end["state"], service.end["refused"]) == ("not_reached", "still_running")
    assert cluster.scheduler.jobs["seven"].state == "running"


async def test_a_job_that_hangs_is_launched_again_while_it_runs() -> None:
    """That is what the verdict is about."""
    cluster = MemoryCluster(running())
    service = await carried_out(cluster, Service(outcome="hung"), clock=Clock())
    assert (service.end["state"], cluster.scheduler.jobs["seven"].attempt) == ("reached", 2)


async def test_a_job_that_ends_moments_later_is_waited_for() -> None:
    """It prints why it fails before it ends."""
    memory = running()
    task = asyncio.create_task(carried_out(MemoryCluster(memory)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert memory.asked == []
    memory.jobs["seven"] = MemoryJob("seven", ("n1", "n2"), state="failed")
    service = await task
    assert (service.end["state"], memory.asked) == ("reached", [CORDON, LAUNCH])


async def test_a_launch_whose_end_the_agent_has_seen_does_not_run() -> None:
    """A workload may keep pods that run after the first one of its launch failed."""
    cluster = MemoryCluster(running())
    seen = JobCheckpoint("memory-seven", 1, ("n1", "n2"), started=True, ended=True)
    service = await carried_out(cluster, clock=Clock(), state=AgentState(jobs={"seven": seen}))
    assert (service.end["state"], cluster.scheduler.asked) == ("reached", [CORDON, LAUNCH])


async def test_the_end_of_an_earlier_launch_is_not_the_end_of_this_one() -> None:
    """The agent has seen launch 1 end, and the plan is about launch 2, which the scheduler shows running."""
    memory = running()
    memory.jobs["seven"] = MemoryJob("seven", ("n1", "n2"), attempt=2)
    cluster = MemoryCluster(memory)
    seen = JobCheckpoint("memory-seven", 1, ("n1", "n2"), started=True, ended=True)
    plan = PLAN | {"attempt": PLAN["attempt"] + 1}
    service = await carried_out(cluster, plan=plan, clock=Clock(), state=AgentState(jobs={"seven": seen}))
    assert [command for command in cluster.scheduler.asked if command != "free"] == []
    assert (service.end["state"], service.end["refused"]) == ("not_reached", "still_running")


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


async def test_a_node_that_is_gone_when_its_check_is_over_keeps_no_job_from_its_launch() -> None:
    """The cluster was made smaller meanwhile: there is nothing to take out, and the job was held for the check."""
    cluster = MemoryCluster(scheduler(bad=frozenset({"n1"})))
    cluster.scheduler.all_nodes.pop("n1")
    service = await carried_out(cluster, plan=CHECK)
    assert cluster.scheduler.asked == ["hold seven", LAUNCH, "free"]
    assert (service.end["state"], service.end["drained"]) == ("reached", [])


async def test_a_check_that_cannot_be_started_is_tried_again() -> None:
    """Its nodes may still be cleaned up; a cluster that never has room for it is given up, and the job runs again."""
    cluster = MemoryCluster(scheduler(no_room=2, bad=frozenset({"n1"})))
    service = await carried_out(cluster, plan=CHECK, clock=Clock())
    assert (service.end["state"], service.end["drained"]) == ("reached", ["n1"])
    cluster = MemoryCluster(scheduler(no_room=10_000))
    service = await carried_out(cluster, plan=CHECK, clock=Clock())
    assert (service.end["state"], cluster.scheduler.asked) == ("not_reached", ["hold seven", LAUNCH, "free"])
    assert "the nodes were not checked: the scheduler does not answer: the check was not" in service.end["detail"]


def query(node: str, id: str = "gpu_ecc", argv: tuple[str, ...] = ("nvidia-smi", "-q")) -> dict[str, Any]:
    return {"node": node, "id": id, "argv": list(argv), "timeout_seconds": 5.0}


@pytest.mark.parametrize(
    ("verdict", "state", "detail"),
    [
        ({"faulty": [], "reason": "all passed"}, "reached", "node check: all passed; launch 2 runs"),
        ({}, "not_reached", "launch 2 runs already"),
    ],
)
async def test_a_plan_whose_job_runs_again_is_reached_if_its_check_was_over(
    verdict: dict[str, Any], state: str, detail: str
) -> None:
    """Its agent died behind the launch, before it ended the reservation of the nodes: that is done now."""
    cluster = MemoryCluster(scheduler())
    cluster.scheduler.jobs["seven"] = MemoryJob("seven", ("n3", "n4"), attempt=2)
    begun = CHECK | {"steps": [{"command": "hold seven", "exit_code": 0, "output": "", "time": 1.0}]}
    service = await carried_out(cluster, Service(verdict=verdict), begun)
    assert (service.end["state"], service.end["detail"]) == (state, detail)
    assert cluster.scheduler.asked == ["free"]


async def test_a_node_that_proves_its_fault_is_cordoned_without_pairs() -> None:
    """It is asked while the job is held; what it says reaches the service as it was printed."""
    cluster = MemoryCluster(scheduler(said={"n1": printed("gpu_ecc", "1, 0000:0f:00.0, 3\n")}))
    service = await carried_out(cluster, Service(queries=[query("n1")], faulty=["n1"]), CHECK)
    assert service.able == {"queries": True, "site_check": True}
    assert service.answers == [{"node": "n1", "id": "gpu_ecc", "exit_code": 0, "output": "1, 0000:0f:00.0, 3\n"}]
    assert cluster.scheduler.asked == ["hold seven", CORDON, LAUNCH, "free"]
    commands = [step["command"] for report in service.reports for step in report.get("steps", [])]
    assert (commands[1], service.results) == ("ask n1 gpu_ecc", [])
    assert (service.end["state"], service.end["detail"]) == (
        "reached",
        "node check: n1 says so itself; launch 2 runs",
    )


async def test_clean_answers_are_followed_by_pairs() -> None:
    """The check goes on as it does without a suspect."""
    cluster = MemoryCluster(scheduler(said={"n1": printed("gpu_ecc", "0")}, bad=frozenset({"n1"})))
    service = await carried_out(cluster, Service(queries=[query("n1")]), CHECK)
    assert (len(service.answers), len(service.results)) == (1, 2)
    assert service.end["drained"] == ["n1"]


async def test_a_check_that_proves_nothing_leaves_the_job_to_a_person() -> None:
    """Nothing is cordoned; when the person refuses, the job that was held runs again."""
    cluster, state = MemoryCluster(scheduler(said={"n1": printed("gpu_ecc", "0")})), AgentState()
    service = await carried_out(cluster, Service(queries=[query("n1")], unproven=True, waits=2), CHECK, state=state)
    await restored(cluster, service, state)
    assert cluster.scheduler.asked == ["hold seven", "free", LAUNCH]
    assert cluster.scheduler.jobs["seven"].nodes == ("n1", "n2")
    assert all(report["state"] == "progress" for report in service.reports)


async def test_only_commands_of_the_agent_s_own_table_are_run() -> None:
    """Whoever has the service does not have the nodes: a command that stands elsewhere is answered, not run."""
    cluster = MemoryCluster(scheduler(said={"n1": printed("site_check", "")}))
    bad = [query("n1", "gpu_ecc", ("rm", "-rf", "/")), query("n1", "no_such"), query("n1", "site_check", ("sh",))]
    service = await carried_out(cluster, Service(queries=[*bad, query("n2", "site_check", ())]), CHECK)
    commands = [step["command"] for report in service.reports for step in report.get("steps", [])]
    assert [line for line in commands if line.startswith("ask")] == ["ask n2 site_check"]
    refused = [(one["id"], one["exit_code"]) for one in service.answers if "table of queries" in one["output"]]
    assert refused == [("gpu_ecc", None), ("no_such", None), ("site_check", None)]


async def test_a_node_that_cannot_be_asked_is_no_fault_of_it() -> None:
    """Down, not started, or talking nonsense: each question is answered with why there is no answer."""
    said = {"n1": "Traceback\n[]\n7\n" + json.dumps({"id": "gpu_ecc", "exit_code": True, "output": 5}), "n3": ""}
    cluster = MemoryCluster(scheduler(said=said))
    cluster.scheduler.all_nodes["n3"] = NodeRecord("n3", up=False)
    asked = [query(node) for node in ("n1", "n2", "n3", "n9")]
    service = await carried_out(cluster, Service(queries=asked), CHECK, clock=Clock())
    assert [(one["node"], one["exit_code"]) for one in service.answers] == [(f"n{n}", None) for n in (1, 2, 3, 9)]
    why = [one["output"] for one in service.answers]
    assert "no answer: Traceback" in why[0]
    assert why[1:] == ["n2 cannot be asked", "n3 is down", "n9 is down"]
    assert len(service.results) == 1, "the pairs follow, and no node is judged by one that is down"


async def test_an_agent_without_a_check_program_asks_all_the_same() -> None:
    """What proves a node is taken up; without proof, the plan says that the nodes were not checked."""
    said = {"n1": printed("gpu_ecc", "3")}
    cluster = MemoryCluster(scheduler(said=said), checks=False)
    service = await carried_out(cluster, Service(queries=[query("n1")], faulty=["n1"]), CHECK)
    assert (service.end["state"], service.end["drained"]) == ("reached", ["n1"])
    cluster = MemoryCluster(scheduler(said=said), checks=False)
    service = await carried_out(cluster, Service(queries=[query("n1")]), CHECK)
    assert (service.end["state"], "--check" in service.end["detail"]) == ("not_reached", True)


async def test_clean_answers_alone_leave_an_unproven_suspect_to_a_person() -> None:
    """Without a check program nothing else can clear or prove it: the job stays held until the person has decided."""
    cluster, state = MemoryCluster(scheduler(said={"n1": printed("gpu_ecc", "0")}), checks=False), AgentState()
    service = await carried_out(cluster, Service(queries=[query("n1")], unproven=True, waits=2), CHECK, state=state)
    await restored(cluster, service, state)
    assert (service.able["pairs"], service.waits) == (False, -1)
    assert cluster.scheduler.asked == ["hold seven", "free", LAUNCH]


@pytest.mark.parametrize("vouched", [True, False])
async def test_the_results_say_whose_program_ran(vouched: bool) -> None:
    """In each round; the service takes only the operator's for proof."""
    service = await carried_out(MemoryCluster(scheduler(bad=frozenset({"n1"})), vouched=vouched), plan=CHECK)
    assert service.vouched == [vouched, vouched]


async def test_an_agent_that_cannot_ask_does_not_say_that_it_can() -> None:
    """A service of before this step refuses fields that it does not know."""
    service = await carried_out(MemoryCluster(scheduler()), Service(queries=[query("n1")]), CHECK)
    assert (service.able, service.answers) == ({}, [])
    cluster = MemoryCluster(scheduler(said={"n1": ""}))
    service = await carried_out(cluster, Service(queries=[query("n1")]), CHECK, commands={})
    assert (service.able, service.answers) == ({}, [])


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
async def test_an_agent_that_cannot_renew_its_lease_stops() -> None:
    """The check of its job's nodes still runs: another agent may have the plan before it is over."""
    service, cluster = Service(), MemoryCluster(scheduler(gate=asyncio.Event()))  # the check never ends
    task = asyncio.create_task(carried_out(cluster, service, CHECK, lambda: 1e9 * service.away))
    while sum("steps" not in report for report in service.reports) < 2:
        service.heard.clear()
        await service.heard.wait()
    service.away = True
    with pytest.raises(Unavailable, match="lease"):
        await task
    assert cluster.scheduler.asked == ["hold seven", "free"]


async def restored(cluster: MemoryCluster, service: Service, state: AgentState) -> None:
    """Some turns of an agent that was killed and started again: it knows what the last one has saved."""
    http = httpx.AsyncClient(transport=httpx.MockTransport(service.answer), base_url="http://diagnoser.test")
    pause = AsyncMock(side_effect=[None] * 9)
    known = (False, COMMANDS, state_file.decode(state_file.encode(state)))
    async with http:
        made = Executor(ApiClient(http, pause), cluster, "memory@host", lambda: 0.0, lambda: 1000.0, *known)
        with pytest.raises(StopAsyncIteration):
            await made.restore_held_jobs()


@pytest.mark.usefixtures("fast_heartbeat")
@pytest.mark.parametrize(("after", "state"), [("refused", "running"), ("expired", "running"), ("sent", "held")])
async def test_a_plan_that_is_taken_away_stops_and_its_job_is_put_back(after: str, state: str) -> None:
    """Once it is clear that nobody will carry it out, also by an agent that was killed and started again meanwhile; as
    long as a person may still say yes, it is waited for."""
    service, saved = Service(waits=3, after=after), AgentState()
    cluster = MemoryCluster(scheduler(gate=asyncio.Event()))  # the check never ends
    task = asyncio.create_task(carried_out(cluster, service, CHECK, state=saved))
    await service.heard.wait()
    service.gone = True
    await task
    assert (cluster.scheduler.jobs["seven"].state, service.waits) == ("held", 3)
    await restored(cluster, service, saved)
    assert cluster.scheduler.jobs["seven"].state == state
    assert cluster.scheduler.asked.count(LAUNCH) == (state == "running")
    assert all(report["state"] == "progress" for report in service.reports)


@dataclass
class Claims(Service):
    """Answers claims in turn, then refuses the token."""

    claims: list[httpx.Response] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/plans/claim"):
            return Service.answer(self, request)
        return self.claims.pop(0) if self.claims else httpx.Response(401)

    async def serve(self, woken: asyncio.Event | None = None) -> None:
        """Until the agent has asked for one plan more than there are answers."""
        http = httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="http://diagnoser.test")
        async with http, asyncio.timeout(20), asyncio.TaskGroup() as group:
            made = Executor(ApiClient(http), MemoryCluster(scheduler()), "a", lambda: 0.0, lambda: 1000.0)
            with pytest.raises(Denied):
                await runtime._take_plans(made, group, woken)


async def test_a_plan_that_waits_for_a_person_leaves_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next plan is claimed before anybody decides."""
    monkeypatch.setattr(runtime, "PLANS_AT_ONCE", 1)
    plans = [CHECK | {"id": plan, "expires": "2100-01-01T00:00:00Z"} for plan in ("p1", "p2")]
    answers = [httpx.Response(200, json={"plan": plan, "token": "t", "lease_seconds": 60.0}) for plan in plans]
    service = Claims(claims=answers, waits=10**9, unproven=True)
    await service.serve()
    assert len(service.results) == 2


async def test_a_claim_that_failed_is_tried_again_after_its_own_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent with a webhook does not wait for a delivery as well, which may be lost."""
    monkeypatch.setattr(runtime, "WEBHOOK_SECONDS", 1e9)
    monkeypatch.setattr(runtime, "LONGEST_WAIT", 0.0)
    await Claims(claims=[httpx.Response(409, json={"detail": "taken"})]).serve(asyncio.Event())


async def test_only_our_cordons_are_given_back() -> None:
    """All or nothing: one that a person made stops it, with the person's reason."""
    cluster = MemoryCluster(scheduler())
    cluster.scheduler.apply(("cordon", "n1", "diagnoser p1: ecc_error"))
    cluster.scheduler.apply(("cordon", "n2", "cables, ask Ida"))
    for names, fault in ((["n1", "n2"], "cables, ask Ida"), (["n1", "n9"], "no node n9"), (["n3"], "not cordoned")):
        with pytest.raises(BadInput, match=fault):
            await give_back(cluster, names)
    assert cluster.scheduler.asked == []
    assert await give_back(cluster, ["n1"]) == ["n1: back in service, was 'diagnoser p1: ecc_error'; not checked"]
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
