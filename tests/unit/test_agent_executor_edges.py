"""What the executor says when it will not act, and how long it waits before it looks again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from diagnoser.agent import executor
from diagnoser.agent.cluster import Attempts, Done, Held, NextStep
from diagnoser.agent.executor import cordon_step, refuse_foreign, refuse_unproven
from diagnoser.agent.plan_spec import PlanSpec
from tests.unit.memory_cluster import Fault, MemoryCluster, MemoryJob
from tests.unit.test_agent_executor import CHECK, CORDON, LOST, PLAN, Clock, Service, carried_out, scheduler

LOOK, UNCLEAR = 0.001, 0.002


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LOOK_SECONDS", LOOK)
    monkeypatch.setattr(executor, "UNCLEAR_SECONDS", UNCLEAR)
    monkeypatch.setattr(executor, "PERSON_SECONDS", 0.0)


def test_a_node_without_a_proof_is_refused_by_name() -> None:
    """Also by a plan of a service that sends no proofs at all; a proof without a known kind is none."""
    known, unknown = {"node": "n2", "kind": "node_log"}, {"node": "n1", "kind": "said"}
    refusal = refuse_unproven({"nodes": ["n1", "n2", "n3"], "proofs": [known, unknown, {"node": "n3"}]})
    assert refusal is not None
    assert refusal.refused == "unproven" and "that n1, n3 is at fault; nothing was done" in refusal.detail
    alone = refuse_unproven({"nodes": ["n1"]})
    assert alone is not None and "that n1 is at fault" in alone.detail
    assert refuse_unproven({"nodes": ["n2"], "proofs": [known]}) is None


def test_a_foreign_node_is_refused_by_name() -> None:
    """Where the job never ran as far as the cluster knows, and where nobody knows where it ran."""
    why = "the scheduler did not give n8, n9 to job-7; nothing was done"
    assert refuse_foreign("job-7", ["n1", "n8", "n9"], {"n1"}) == Done(False, why, refused="foreign_node")
    unknown = "neither the scheduler nor this agent knows where the job ran; nothing was done"
    assert refuse_foreign("job-7", ["n1"], ()) == Done(False, unknown, refused="allocation_unknown")
    assert refuse_foreign("job-7", ["n1"], {"n1"}) is None


def test_a_node_that_the_cluster_does_not_have_is_no_step() -> None:
    """None of the plan's nodes is touched then."""
    cluster = MemoryCluster(scheduler())
    spec = cluster.spec(PLAN | {"nodes": ["n1", "n8", "n9"]}, "ecc_error")
    step = cordon_step(cluster, spec, cluster.scheduler.all_nodes, Attempts())
    assert step == Done(False, "the cluster has no node n8, n9; nothing was done")


@dataclass
class Recorded(Service):
    """Also notes which diagnosis is asked for; another has no type."""

    def answer(self, request: httpx.Request) -> httpx.Response:
        if "/diagnoses/" in request.url.path and not request.url.path.endswith("/d1"):
            return httpx.Response(404, json={"detail": "no such diagnosis"})
        if request.url.path.endswith("/jobs/memory-seven"):
            return httpx.Response(200, json={"nodes": ["n1", "n2", "n4"]})
        return super().answer(request)


async def test_the_reason_of_a_cordon_is_the_type_of_the_plan_s_own_diagnosis() -> None:
    """One that cannot be read leaves it unknown."""
    known, unknown = MemoryCluster(scheduler()), MemoryCluster(scheduler())
    await carried_out(known, Recorded())
    await carried_out(unknown, Recorded(), PLAN | {"diagnosis": "d2"})
    assert known.scheduler.asked[0] == CORDON
    assert unknown.scheduler.asked[0] == "cordon n1 diagnoser p1: unknown"


async def test_a_step_is_reported_with_its_command_and_its_answer() -> None:
    """As people and the next executor read it."""
    service = await carried_out(MemoryCluster(scheduler(faults=[Fault(arrives=False, code=7)])))
    (_, report, _) = service.reports
    told = {"command": f"cordon n1 '{CORDON[10:]}'", "exit_code": 7, "output": "no", "time": 1000.0}
    assert report == {"token": "token", "state": "progress", "steps": [told], "drained": []}


@pytest.mark.parametrize(
    ("fault", "pause"),
    [(LOST, UNCLEAR), (Fault(arrives=False, code=409, passing=True), LOOK), (Fault(), 0.0)],
    ids=["no answer", "busy", "done"],
)
async def test_how_long_it_waits_before_it_looks_again(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, pause: float
) -> None:
    """Longest where a command got no answer: it may still be under way."""
    pauses, sleep = list[float](), asyncio.sleep

    async def slept(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", slept)
    await carried_out(MemoryCluster(scheduler(faults=[fault])))
    assert [seconds for seconds in pauses if seconds in (LOOK, UNCLEAR)] == ([pause] if pause else [])


@dataclass(frozen=True, slots=True)
class HoldsSome(MemoryCluster):
    """Only one node of a held job may be checked: other jobs run on the others."""

    def hold(self, spec: PlanSpec, state: MemoryJob, attempts: Attempts) -> NextStep:
        step = MemoryCluster.hold(self, spec, state, attempts)
        return Held(("n1",)) if isinstance(step, Held) else step


async def test_a_check_says_which_nodes_it_left_alone() -> None:
    """Those of the job on which others run now."""
    service = await carried_out(HoldsSome(scheduler()), Recorded(), CHECK)
    left = "node check: n1 failed twice; other jobs run on n2, n4, which the check left alone; launch 2 runs"
    assert service.end["detail"] == left
    whole = await carried_out(MemoryCluster(scheduler()), Recorded(), CHECK)
    assert whole.end["detail"] == "node check: n1 failed twice; launch 2 runs"


async def test_a_check_that_finds_a_foreign_node_only_launches_the_job() -> None:
    """With what was refused, and what was done all the same."""
    cluster = MemoryCluster(scheduler(said={"n1": "x"}))
    queries = [{"node": "n1", "id": "gpu_ecc", "argv": ["nvidia-smi", "-q"], "timeout_seconds": 5.0}]
    service = await carried_out(cluster, Service(queries=queries, faulty=["n9"]), CHECK)
    why = "the scheduler did not give n9 to memory-seven; nothing was done but to launch it again: launch 2 runs"
    end = {"state": "not_reached", "detail": why, "refused": "foreign_node", "requeued": "memory-seven", "drained": []}
    assert service.end == {"token": "token", **end}
    assert "free" in cluster.scheduler.asked and not any("cordon" in command for command in cluster.scheduler.asked)


async def test_a_held_job_that_cannot_be_launched_is_told_as_held() -> None:
    """Nobody else would launch it: it is tried for longer, and people read where it is."""
    faults = [Fault(), *([LOST] * 1000)]
    service = await carried_out(MemoryCluster(scheduler(faults=faults), checks=False), plan=CHECK, clock=Clock())
    assert service.end["state"] == "not_reached"
    assert "gave up after 1800 s: launch seven did not get through; the job is held" in service.end["detail"]


@pytest.mark.parametrize("late", [0.0, 1.0])
async def test_a_plan_is_begun_until_it_expires(late: float) -> None:
    """Its last moment is still in time."""
    clock: Callable[[], float] = iter([0.0, *[late] * 1000]).__next__
    service: Any = await carried_out(MemoryCluster(scheduler()), clock=clock, seconds=0.5)
    assert service.end["state"] == ("not_reached" if late else "reached")
