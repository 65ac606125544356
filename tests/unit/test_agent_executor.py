"""The executor between a service and a Slurm that both answer late, or not at all."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from diagnoser.agent.service import Order, Service, _left
from diagnoser.agent.slurm import executor
from diagnoser.agent.slurm.commands import Done, Slurm, run
from diagnoser.agent.slurm.executor import Executor
from diagnoser.agent.slurm.records import JobRecord, NodeRecord
from diagnoser.model.errors import Unavailable

SILENT = "no answer within 30 s"
REQUEUE = ("scontrol", "requeue", "7")
FAILED = JobRecord(7, "FAILED", nodes=("n1",), name="seven")
IDLE = NodeRecord("n1", frozenset({"IDLE"}))
DRAIN = ("scontrol", "update", "nodename=n1", "state=drain", "reason=diagnoser p1: ecc_error")


@dataclass
class Cluster:
    """Job 7 has failed on n1. silent: (arrives, answers) of the first commands; then each arrives and is answered."""

    silent: list[tuple[bool, bool]] = field(default_factory=list)
    reading: list[bool] = field(default_factory=list)
    told: list[tuple[str, ...]] = field(default_factory=list)
    job: JobRecord = FAILED
    node: NodeRecord = IDLE

    async def run(self, command: Sequence[str], seconds: float) -> Done:
        given = tuple(command)
        self.told.append(given)
        arrives, answers = self.silent.pop(0) if self.silent else (True, True)
        if arrives and given == DRAIN:
            self.node = replace(self.node, states=frozenset({"IDLE", "DRAIN"}), reason="diagnoser p1: ecc_error")
        elif arrives:
            self.job = replace(self.job, state="PENDING", restarts=self.job.restarts + 1)
        return Done(given, 0) if answers else Done(given, None, error=SILENT)


@dataclass(frozen=True, slots=True)
class Reads(Slurm):
    cluster: Cluster = field(default_factory=Cluster)

    async def jobs(self) -> dict[int, JobRecord]:
        if self.cluster.reading and not self.cluster.reading.pop(0):
            raise Unavailable("squeue: slow")
        return {7: self.cluster.job}

    async def nodes(self) -> dict[str, NodeRecord]:
        return {"n1": self.cluster.node}


@dataclass
class Clock:
    """A minute passes with each look at it."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 60.0
        return self.now


@dataclass
class Told:
    """What the service hears."""

    reports: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/report"):
            self.reports.append(json.loads(request.content))
        return httpx.Response(200, json={"type": "ecc_error"})

    @property
    def end(self) -> dict[str, Any]:
        return self.reports[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(executor, "UNCLEAR_SECONDS", 0.0)


async def carried_out(cluster: Cluster, folder: Path, clock: Callable[[], float] = lambda: 0.0) -> Told:
    told = Told()
    transport = httpx.MockTransport(told.answer)
    plan = {
        "id": "p1",
        "job": "slurm-east-7",
        "attempt": 1,
        "action": "cordon_and_resubmit",
        "nodes": ["n1"],
        "rollback": None,
        "steps": [],
        "diagnosis": "d1",
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test") as client:
        made = Executor(
            Service(client), Reads(cluster.run, cluster), None, "east", "root", folder, clock, lambda: 1000.0
        )
        await made.carry_out(Order(plan, "token", 1e6))
    return told


async def test_a_requeue_without_an_answer_that_arrived_is_not_made_again(tmp_path: Path) -> None:
    """Neither by another requeue nor by a submission: the job's launches tell that it was done."""
    cluster = Cluster([(True, True), (True, False)])
    told = await carried_out(cluster, tmp_path)
    assert cluster.told == [DRAIN, REQUEUE]
    assert (told.end["state"], cluster.job.restarts) == ("reached", 1)


async def test_a_requeue_that_did_not_arrive_is_made_again(tmp_path: Path) -> None:
    """Each try is a step of the plan."""
    cluster = Cluster([(True, True), (False, False), (False, False)])
    told = await carried_out(cluster, tmp_path)
    assert cluster.told == [DRAIN, REQUEUE, REQUEUE, REQUEUE]
    assert (told.end["state"], cluster.job.restarts) == ("reached", 1)
    steps = [step["exit_code"] for report in told.reports for step in report.get("steps", [])]
    assert steps == [0, None, None, 0]


async def test_a_scheduler_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """With what it was that got no answer."""
    cluster = Cluster([(False, False)] * 1000)
    told = await carried_out(cluster, tmp_path, Clock())
    assert told.end["state"] == "not_reached"
    assert "no answer to scontrol update nodename=n1" in told.end["detail"]
    assert told.end["drained"] == []


async def test_a_scheduler_that_is_slow_is_waited_for(tmp_path: Path) -> None:
    """Its listings fail for a while; nothing is done until they come."""
    cluster = Cluster(reading=[False] * 5)
    told = await carried_out(cluster, tmp_path)
    assert (told.end["state"], cluster.told) == ("reached", [DRAIN, REQUEUE])
    away = await carried_out(Cluster(reading=[False] * 1000), tmp_path, Clock())
    assert (away.end["state"], away.end["detail"]) == ("not_reached", "the scheduler does not answer: squeue: slow")


async def test_a_drain_is_told_also_when_its_report_was_lost(tmp_path: Path) -> None:
    """The one before has died right after the drain: ledger and breaker must know that the node is out by us."""
    cluster = Cluster()
    await cluster.run(DRAIN, 1.0)
    told = await carried_out(cluster, tmp_path)
    assert (told.end["state"], told.end["drained"]) == ("reached", ["n1"])
    assert cluster.told == [DRAIN, REQUEUE]


async def test_a_command_that_is_not_there_is_a_refusal() -> None:
    """Waiting for it would not help."""
    done = await run(("no-such-command-of-slurm",), 5.0)
    assert (done.code, done.told) == (127, "no-such-command-of-slurm: No such file or directory")


def test_the_time_left_is_by_the_service_s_clock() -> None:
    """An agent whose clock is wrong by hours carries a plan out in time, and not too late."""
    for skew in (-7200, 0, 7200):
        there = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=skew)
        plan = {"expires": (there + timedelta(seconds=90)).isoformat()}
        assert _left(plan, format_datetime(there, usegmt=True)) == 90.0
    here = {"expires": (datetime.now(UTC) + timedelta(seconds=90)).isoformat()}
    assert 80.0 < _left(here, "") <= 90.0
