"""Who speaks for a job: two replicas over one database, the real intake, the real rules, and plans in mode act.

A squatter knows the next id of a scheduler, which counts up. It sends lines and an end under it before the agent
registers the job for its true owner.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from diagnoser.compress import AttemptLog
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.ingest.service import IngestService
from diagnoser.model import AttemptKey, Diagnosis, EventKind, Facts, Mode, Plan, PlanState, Provenance
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.queries import DiagnosisFilter, PlanFilter
from diagnoser.observability.metrics import Metrics
from diagnoser.worker.worker import WorkerConfig
from tests.integration.test_credentials import Clock, Intake
from tests.rule_files import ANALYZER
from tests.scripted_worker import Bystander, scripted_worker
from tests.serving import NOW, TIMING, Web, plan_commands, serving

CREDENTIALS = (
    Credential("agent", Scope.AGENT, cluster="main"),
    Credential("shipper", Scope.INGEST),
    Credential("owner", Scope.INGEST, tenant="alice"),
    Credential("squatter", Scope.INGEST, tenant="mallory"),
    Credential("alice", Scope.READ, tenant="alice"),
    Credential("mallory", Scope.READ, tenant="mallory"),
)
JOB = "slurm-main-124"
FATAL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, remote process exited\n"
EXIT: dict[str, Any] = {"kind": "exit", "code": 1}
REGISTERED = {"id": JOB, "attempt": 1, "cluster": "main", "nodes": ["gpu-01", "gpu-02"], "tenant": "alice"}


class RealRules(Bystander):
    """Reads the log by the shipped rules; ``clock`` is the test's."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def analyze(self, log: AttemptLog, facts: Facts) -> Diagnosis:
        return ANALYZER.analyze(log, facts, self.clock())


@dataclass
class Site:
    """Two replicas, and a worker on the first one."""

    replicas: list[Web]
    clock: Clock
    config: WorkerConfig = field(default_factory=lambda: WorkerConfig(timing=TIMING))

    @property
    def store(self) -> Any:
        return self.replicas[0].store

    async def post(self, who: str, path: str, body: Any, replica: int = 0, **query: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {who}"}
        if isinstance(body, str):
            more: dict[str, Any] = {"content": body.encode(), "headers": headers | {"content-type": "text/plain"}}
        else:
            more = {"json": body, "headers": headers}
        return await self.replicas[replica].client.post(f"/api/v1{path}", params=query, **more)

    async def lines(self, who: str, text: str, replica: int = 0, **query: Any) -> int:
        return (await self.post(who, "/logs", text, replica, **({"job": JOB} | query))).status_code

    async def get(self, who: str, path: str, replica: int = 0) -> httpx.Response:
        headers = {"authorization": f"Bearer {who}"}
        return await self.replicas[replica].client.get(f"/api/v1{path}", headers=headers)

    async def diagnose(self) -> None:
        """Whatever is due now, and a minute later."""
        planner = plan_commands(mode=Mode.ACT).planner
        metrics = Metrics(CollectorRegistry())
        worker = scripted_worker(self.store, RealRules(self.clock), planner, self.clock, self.config, metrics)
        for _ in range(3):
            await worker.step()
            self.clock.now += 20.0

    async def plans(self) -> list[Plan]:
        return list(await self.store.plans.page(PlanFilter(), "", 100))

    async def acting(self) -> list[Plan]:
        return [plan for plan in await self.plans() if plan.state in (PlanState.SENT, PlanState.WAITING)]

    async def text(self, job: str = JOB) -> str:
        """What a verdict reads of the first attempt's log."""
        log = await AttemptLogs(self.store, ANALYZER.compressor).load(AttemptKey(job, 1))
        return "\n".join(line.text for line in log.evidence.lines)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """The agent of the cluster ``main`` has asked for plans before, as agents do."""
    clock = Clock()
    async with AsyncExitStack() as stack:
        replicas = []
        for _ in range(2):
            intake = Intake()
            web = await stack.enter_async_context(serving(tmp_path, clock=clock, ingest=intake))
            metrics = Metrics(CollectorRegistry())
            intake.service = IngestService(web.store.logs, ANALYZER.compressor, metrics)
            task = asyncio.create_task(intake.service.run())
            stack.callback(task.cancel)
            replicas.append(web)
        for credential in CREDENTIALS:
            await replicas[0].store.tokens.add(StoredToken(credential, hash_of(credential.name)))
        await replicas[0].store.vitals.record_agent("main", "agent-1", NOW)
        yield Site(replicas, clock)


@pytest.mark.parametrize("squatter", ["squatter", "shipper"])
async def test_who_squats_the_next_id_moves_nothing(site: Site, squatter: str) -> None:
    """A fatal line and an end under the id of a job that comes next make no plan that acts: not before its agent
    registers it, and not while its scheduler shows it running. Its owner's lines are taken all the while."""
    assert await site.lines(squatter, FATAL) == 204
    assert (await site.post(squatter, f"/jobs/{JOB}/events", EXIT)).status_code == 200
    await site.diagnose()
    assert await site.acting() == []
    assert (await site.post("agent", "/jobs", REGISTERED)).status_code == 200
    assert (await site.post("agent", f"/jobs/{JOB}/events", {"kind": "started", "attempt": 1})).status_code == 200
    for replica in (0, 1):
        assert await site.lines("owner", f"step {replica}\n", replica) == 204
    assert (await site.post(squatter, f"/jobs/{JOB}/events", EXIT | {"code": 2}, 1)).status_code == 200
    await site.diagnose()
    assert await site.acting() == []
    (attempt,) = await site.store.jobs.attempts(JOB)
    assert attempt.ended is None


async def test_a_squatters_lines_are_no_part_of_the_job(site: Site) -> None:
    """Neither those from before the registration nor later ones, on either replica; its owner's are, all of them."""
    for replica in (0, 1):
        assert await site.lines("squatter", f"RuntimeError: forged {replica}\n", replica) == 204
        assert await site.lines("owner", f"ValueError: early {replica}\n", replica) == 204
    await site.post("agent", "/jobs", REGISTERED)
    for replica in (0, 1):
        assert await site.lines("squatter", f"RuntimeError: late {replica}\n", replica) == 204
        assert await site.lines("owner", f"KeyError: then {replica}\n", replica) == 204
    stored = await site.text()
    assert [word for word in ("early 0", "early 1", "then 0", "then 1") if word not in stored] == []
    assert "RuntimeError" not in stored
    assert await site.store.jobs.find(f"{JOB}~of~alice") is None, "its early lines have become the job's"


async def test_an_end_that_a_token_reports_is_a_hint(site: Site) -> None:
    """A registered job that runs goes on, whoever says that it ended; when its scheduler says so, a plan is made."""
    await site.post("agent", "/jobs", REGISTERED)
    await site.post("agent", f"/jobs/{JOB}/events", {"kind": "started", "attempt": 1})
    assert await site.lines("shipper", FATAL) == 204
    for kind in ("exit", "cancelled", "preempted"):
        assert (await site.post("shipper", f"/jobs/{JOB}/events", {"kind": kind})).status_code == 200
    await site.diagnose()
    assert (await site.plans(), len(await site.store.diagnoses.page(DiagnosisFilter(job=JOB), "", 10))) == ([], 1)
    await site.post("agent", f"/jobs/{JOB}/events", {"kind": "exit", "attempt": 1, "code": 1, "reason": "FAILED"})
    await site.diagnose()
    assert [plan.job for plan in await site.acting()] == [JOB]


async def test_plans_from_before_the_registration_are_withdrawn(site: Site) -> None:
    """Where no agent was known of, an end by anybody made a plan: the registration takes it back, and the end."""
    job = "batch-7"
    assert await site.lines("shipper", FATAL, job=job) == 204
    await site.post("shipper", f"/jobs/{job}/events", EXIT)
    await site.diagnose()
    assert [plan.job for plan in await site.acting()] == [job]
    await site.post("agent", "/jobs", REGISTERED | {"id": job})
    assert await site.acting() == []
    (attempt,) = await site.store.jobs.attempts(job)
    assert attempt.ended is None


async def test_a_shipper_opens_no_launch_far_ahead(site: Site) -> None:
    """Of a registered job it may be faster than the agent by one; an agent may name any."""
    await site.post("agent", "/jobs", REGISTERED)
    for who in ("shipper", "owner"):
        assert await site.lines(who, "step 1\n", attempt=3) == 403
        answer = await site.post(who, f"/jobs/{JOB}/events", EXIT | {"attempt": 3})
        assert (answer.status_code, "has no launch 3 yet" in answer.json()["detail"]) == (400, True)
        assert await site.lines(who, f"step of {who}\n", attempt=2) == 204
    assert await site.lines("agent", "step 1\n", attempt=5) == 204
    assert [attempt.key.number for attempt in await site.store.jobs.attempts(JOB)] == [1, 2, 5]


async def test_no_number_of_a_launch_leaves_none_for_those_that_follow(site: Site) -> None:
    """An agent of a cluster counts on from the highest, and its registration was refused for ever."""
    job = "k8s:lab:job:train:x"
    for number, status, lines in ((2_147_483_647, 400, 403), (2_000_000_001, 200, 204)):
        answer = await site.post("shipper", f"/jobs/{job}/events", {"kind": "heartbeat", "attempt": number})
        assert (answer.status_code, await site.lines("shipper", "x\n", job=job, attempt=number)) == (status, lines)
    registered = await site.post("agent", "/jobs", REGISTERED | {"id": job, "attempt": 2_000_000_002})
    assert registered.status_code == 200
    refused = await site.post("agent", f"/jobs/{job}/events", EXIT | {"attempt": 2_147_483_647})
    assert (refused.status_code, "2000000003 is the highest now" in refused.json()["detail"]) == (400, True)


async def test_a_forged_launch_names_nobody(site: Site) -> None:
    """A launch that no agent told of gets no plan, whatever its lines blame; without an agent it names no node."""
    blames = "gpu-09 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n" + FATAL
    await site.post("agent", "/jobs", REGISTERED)
    assert await site.lines("shipper", blames, attempt=2, node="gpu-09") == 204
    assert await site.lines("shipper", blames, job="free", node="gpu-09") == 204
    for job in (JOB, "free"):
        await site.post("shipper", f"/jobs/{job}/events", EXIT | {"attempt": 2 if job == JOB else 1})
    await site.diagnose()
    assert {plan.job for plan in await site.plans()} <= {"free"}
    for plan in await site.plans():
        assert "gpu-09" not in repr(plan), plan


async def test_tenants_use_one_id_without_meeting(site: Site) -> None:
    """Each has its own job under the id, with its own lines, and reads its id as it said it."""
    for who, text in (("owner", "ValueError: of alice\n"), ("squatter", "KeyError: of mallory\n")):
        assert await site.lines(who, text, job="train-1") == 204
        assert (await site.post(who, "/jobs/train-1/events", EXIT)).json()["job"] == "train-1"
    await site.diagnose()
    for who, own, foreign in (("alice", "of alice", "of mallory"), ("mallory", "of mallory", "of alice")):
        shown = await site.get(who, "/diagnoses?job=train-1", 1)
        assert [item["job"] for item in shown.json()["items"]] == ["train-1"]
        for path in ("/jobs", "/jobs/train-1", "/jobs/train-1/attempts/1/log", "/plans", "/exports/jobs.csv"):
            answer = await site.get(who, path, 1)
            assert answer.status_code == 200, (path, answer.text)
            assert "~" not in answer.text, (path, answer.text)
            assert foreign not in answer.text, path
        assert own in (await site.get(who, "/jobs/train-1/attempts/1/log", 1)).text


async def test_the_schedulers_events_end_the_job(site: Site) -> None:
    """Provenance follows from the credential: an agent's exit counts at once."""
    await site.post("agent", "/jobs", REGISTERED)
    await site.post("agent", f"/jobs/{JOB}/events", {"kind": "exit", "attempt": 1, "code": 0})
    (attempt,) = await site.store.jobs.attempts(JOB)
    assert attempt.ended == NOW
    assert [(event.kind, event.provenance) for event in attempt.events] == [(EventKind.EXIT, Provenance.SCHEDULER)]


async def test_a_foreign_and_a_missing_id_get_one_answer(site: Site) -> None:
    """On every route of a job, for reading and for writing, to a token of one tenant: nothing tells that it exists."""
    await site.post("agent", "/jobs", REGISTERED)
    assert await site.lines("owner", FATAL) == 204
    foreign, missing = JOB, "slurm-main-125"
    answers = {}
    for job in (foreign, missing):
        got = []
        for path in ("", "/attempts/1/streams", "/attempts/1/lines", "/attempts/1/log", "/attempts/1/log/live",
                     "/attempts/1/search?q=x", "/attempts/1/evidence", "/attempts/1/hang"):  # fmt: skip
            answer = await site.get("mallory", f"/jobs/{job}{path}")
            got.append((path, answer.status_code, answer.text.replace(job, "JOB")))
        for path in ("/diagnoses", "/plans"):
            answer = await site.get("mallory", f"{path}?job={job}")
            got.append((path, answer.status_code, answer.text.replace(job, "JOB")))
        headers = {"authorization": "Bearer squatter"}
        query = {"kind": "stacks", "rank": "0"}
        evidence = f"/api/v1/jobs/{job}/attempts/1/evidence"
        dump = await site.replicas[0].client.post(evidence, params=query, content=b"x", headers=headers)
        got.append(("dump", dump.status_code, dump.text.replace(job, "JOB")))
        for body in (EXIT, EXIT | {"attempt": 3}, {"kind": "checkpoint", "step": 3, "attempt": 1}):
            event = await site.post("squatter", f"/jobs/{job}/events", body | {"time": NOW})
            got.append(("event", event.status_code, event.text.replace(job, "JOB")))
        got.append(("lines", await site.lines("squatter", "step 1\n", job=job), ""))
        got.append(("lines", await site.lines("squatter", "step 1\n", job=job, attempt=7), ""))
        answers[job] = got
    assert answers[foreign] == answers[missing]
    assert {status for _, status, _ in answers[foreign]} >= {200, 204, 404}
    stored = await site.store.jobs.attempts(foreign)
    assert ([attempt.key.number for attempt in stored], [a.events for a in stored]) == ([1], [()])
