"""Recovery plans over the API: reading, deciding, claiming, reporting, node checks, nodes and breakers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from diagnoser.model import (
    AttemptKey,
    CheckpointPhase,
    Event,
    EventKind,
    Job,
    Mode,
    Plan,
    PlanReason,
    Rollback,
    TransitionResult,
)
from diagnoser.model.plans import ClaimTransition
from diagnoser.model.taxonomy import Action
from diagnoser.model.work import DiagnosisRecord
from diagnoser.planning.transitions import LEASE_SECONDS
from diagnoser.recovery.policy import in_mode, plan_key
from tests.proofs import proven
from tests.serving import ECC, NOW, TIMING, Web, plan_commands, serving

API = "/api/v1"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def web(tmp_path: Path, clock: Clock) -> AsyncIterator[Web]:
    async with serving(tmp_path, clock=clock) as made:
        yield made


async def planned(
    web: Web, job: str = "j", mode: Mode = Mode.ACT, action: Action = Action.CORDON_AND_RESUBMIT, **fields: Any
) -> Plan:
    """A plan for a job that failed, stored the way a worker does it, without rails."""
    key = AttemptKey(job, 1)
    created, reason = fields.pop("created", NOW), fields.pop("reason", "")
    await web.store.jobs.add_event(key, Event(EventKind.EXIT, created - 20, code=1))
    claims = await web.store.work.claim_attempts(created, TIMING, 60.0, 100)
    claim = next(one for one in claims if one.attempt.key == key)
    decision = plan_commands().planner.decide(claim, ECC, created)
    made, plan = decision.record, decision.plan
    assert plan is not None
    nodes = plan.nodes if action is Action.CORDON_AND_RESUBMIT else ()
    plan = replace(plan, id=f"plan-{job}", action=action, nodes=nodes, key=plan_key(key, action, nodes), **fields)
    plan = replace(in_mode(proven(plan) if nodes else plan, mode), diagnosis=plan.diagnosis + job)
    plan = replace(plan, reason=reason or plan.reason)
    record = DiagnosisRecord(plan.diagnosis, key, made.revision, created, True, ECC)
    await web.store.work.save_diagnosis(claim, record, plan, [])
    return plan


async def post(web: Web, path: str, body: dict[str, Any]) -> httpx.Response:
    return await web.client.post(API + path, json=body)


async def claim(web: Web, executor: str = "slurm-1", **more: Any) -> dict[str, Any]:
    answer = await post(web, "/plans/claim", {"executor": executor, "cluster": "default", "wait": 0, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_plan_is_listed_and_shown(web: Web) -> None:
    """The contract's fields are there, and filters and paging hold."""
    for job in ("a", "b", "c"):
        await planned(web, job)
    await planned(web, "d", Mode.APPROVE)
    listed = (await web.client.get(f"{API}/plans?state=sent&limit=2")).json()
    assert [one["job"] for one in listed["items"]] == ["c", "b"]
    rest = (await web.client.get(f"{API}/plans?state=sent&limit=2&after={listed['next']}")).json()
    assert ([one["job"] for one in rest["items"]], rest["next"]) == (["a"], None)
    shown = (await web.client.get(f"{API}/plans/plan-a")).json()
    assert shown == (await web.client.get(f"{API}/plans?job=a")).json()["items"][0]
    wanted = {"id", "key", "job", "attempt", "cluster", "action", "nodes", "mode", "state", "reason", "created"}
    assert wanted | {"expires", "diagnosis", "rollback", "history", "steps"} <= set(shown)
    assert (await web.client.get(f"{API}/plans/none")).status_code == 404


async def test_only_plans_that_may_act_can_be_claimed(web: Web) -> None:
    """Observed and waiting plans, those for people, and those of other clusters are not handed out."""
    await planned(web, "watched", Mode.OBSERVE)
    await planned(web, "waiting", Mode.APPROVE)
    await planned(web, "told", Mode.ACT, Action.NOTIFY_USER)
    await planned(web, "elsewhere", cluster="west")
    answer = await post(web, "/plans/claim", {"executor": "x", "cluster": "default", "wait": 0})
    assert answer.status_code == 204
    assert (await claim(web, cluster="west"))["plan"]["job"] == "elsewhere"


async def test_the_oldest_plan_goes_first_and_to_one_executor(web: Web) -> None:
    """Two executors get two plans, and a third gets none."""
    await planned(web, "young", created=NOW)
    await planned(web, "old", created=NOW - 60)
    assert (await claim(web))["plan"]["job"] == "old"
    assert (await claim(web, "slurm-2"))["plan"]["job"] == "young"
    assert (await post(web, "/plans/claim", {"executor": "slurm-3"})).status_code == 204


async def test_an_approved_plan_can_be_claimed(web: Web) -> None:
    """A person's yes is in the history; a second answer comes too late."""
    await planned(web, mode=Mode.APPROVE)
    answer = await post(web, "/plans/plan-j/approve", {"comment": "go"})
    assert (answer.status_code, answer.json()["state"], answer.json()["reason"]) == (200, "sent", "approved")
    assert answer.json()["history"][-1]["by"] == "anonymous"
    late = await post(web, "/plans/plan-j/refuse", {})
    assert (late.status_code, late.json()["detail"]) == (409, "plan plan-j waits for nobody: it has been sent already")
    assert (await claim(web))["plan"]["id"] == "plan-j"


async def test_a_refused_plan_is_not_carried_out(web: Web) -> None:
    """No executor gets it."""
    await planned(web, mode=Mode.APPROVE)
    assert (await post(web, "/plans/plan-j/refuse", {"comment": "maintenance"})).status_code == 200
    assert (await post(web, "/plans/claim", {"executor": "x"})).status_code == 204


async def test_an_expired_plan_is_over(web: Web, clock: Clock) -> None:
    """It can neither be approved nor claimed."""
    await planned(web, "w", mode=Mode.APPROVE)
    await planned(web, "s")
    clock.now += 3601
    late = await post(web, "/plans/plan-w/approve", {})
    assert late.status_code == 409 and "expired" in late.json()["detail"]
    assert (await post(web, "/plans/claim", {"executor": "x"})).status_code == 204


async def test_a_plan_whose_executor_died_goes_on_with_the_next(web: Web, clock: Clock) -> None:
    """The steps so far are in the plan, and the dead one's token is void."""
    await planned(web)
    first = await claim(web)
    step = {"command": "scontrol update NodeName=hgx-04 State=DRAIN", "exit_code": 0, "output": ""}
    told = {"token": first["token"], "state": "progress", "steps": [step], "drained": ["hgx-04"]}
    assert (await post(web, "/plans/plan-j/report", told)).status_code == 200
    clock.now += LEASE_SECONDS + 1
    second = await claim(web, "slurm-2")
    assert second["plan"]["steps"] == [step]
    assert second["plan"]["drained"] == ["hgx-04"]
    late = await post(web, "/plans/plan-j/report", {**told, "state": "reached"})
    assert late.status_code == 409 and "slurm-2 holds it" in late.json()["detail"]


async def test_progress_keeps_the_lease(web: Web, clock: Clock) -> None:
    """Nobody else gets a plan whose executor reports."""
    await planned(web)
    held = await claim(web)
    for _ in range(3):
        clock.now += LEASE_SECONDS - 5
        answer = await post(web, "/plans/plan-j/report", {"token": held["token"], "state": "progress"})
        assert answer.status_code == 200
        assert (await post(web, "/plans/claim", {"executor": "x"})).status_code == 204


async def test_a_report_that_comes_twice_counts_once(web: Web) -> None:
    """Steps are not doubled, the end is not told twice, and a contrary end is refused."""
    await planned(web)
    token = (await claim(web))["token"]
    steps = [{"command": "scontrol requeue 7", "exit_code": 0, "output": "ok"}]
    told = {"token": token, "state": "progress", "steps": steps}
    for _ in range(2):
        await post(web, "/plans/plan-j/report", told)
    over = {"token": token, "state": "reached", "steps": steps, "requeued": "7"}
    ends = [await post(web, "/plans/plan-j/report", over) for _ in range(2)]
    assert [one.status_code for one in ends] == [200, 200]
    assert ends[0].json() == ends[1].json()
    assert (ends[0].json()["steps"], ends[0].json()["state"]) == (steps, "reached")
    assert (await post(web, "/plans/plan-j/report", {**over, "state": "not_reached"})).status_code == 409
    assert (await post(web, "/plans/plan-j/report", told)).status_code == 409


@pytest.mark.parametrize("token", ["wrong", "x" * 32])
async def test_a_forged_report_changes_nothing(web: Web, token: str) -> None:
    """Without the claim's token nothing can be reported, also before any claim."""
    await planned(web)
    before = await post(web, "/plans/plan-j/report", {"token": token, "state": "reached"})
    await claim(web)
    after = await post(web, "/plans/plan-j/report", {"token": token, "state": "reached"})
    assert (before.status_code, after.status_code) == (409, 409)
    assert (await web.client.get(f"{API}/plans/plan-j")).json()["state"] == "sent"


async def test_an_end_that_was_not_reached_alerts(web: Web) -> None:
    """People are told once."""
    await planned(web)
    told = {"token": (await claim(web))["token"], "state": "not_reached", "detail": "node hgx-04 is unknown"}
    for _ in range(2):
        await post(web, "/plans/plan-j/report", told)
    (alert,) = await web.store.outbox.messages()
    assert b"node hgx-04 is unknown" in alert.message.body


async def test_a_waiting_claim_gets_a_plan_that_comes(web: Web) -> None:
    """A long poll answers when there is something to do."""
    looked, claim_plan = asyncio.Event(), web.store.plans.claim

    async def look(cluster: str, now: float, transition: ClaimTransition) -> TransitionResult | None:
        found = await claim_plan(cluster, now, transition)
        looked.set()
        return found

    web.store.plans.claim = look  # type: ignore[method-assign]
    asking = asyncio.create_task(claim(web, wait=30))
    await looked.wait()
    await planned(web)
    assert (await asking)["plan"]["id"] == "plan-j"


async def test_many_executors_share_many_plans(web: Web) -> None:
    """Each plan is carried out by exactly one of them."""
    for number in range(20):
        await planned(web, f"j{number}")

    async def work(name: str) -> list[str]:
        done = []
        while (answer := await post(web, "/plans/claim", {"executor": name})).status_code == 200:
            held = answer.json()
            done.append(held["plan"]["id"])
            told = {"token": held["token"], "state": "reached"}
            assert (await post(web, f"/plans/{held['plan']['id']}/report", told)).status_code == 200
        return done

    done = await asyncio.gather(*(work(f"slurm-{number}") for number in range(4)))
    assert sorted(plan for plans in done for plan in plans) == sorted(f"plan-j{number}" for number in range(20))


async def check_plan(web: Web, nodes: tuple[str, ...]) -> str:
    await web.store.jobs.register(Job("j", nodes=nodes, created=NOW))
    await planned(web, action=Action.CHECK_AND_RESUBMIT, suspects=())
    return str((await claim(web))["token"])


async def test_a_node_check_is_led_from_pairs_to_its_verdict(web: Web) -> None:
    """Two rounds find the faulty node, which becomes the plan's; asking again changes nothing."""
    token = await check_plan(web, ("n1", "n2", "n3", "n4"))
    first = (await post(web, "/plans/plan-j/check/next", {"token": token})).json()
    assert (first["round"], first["pairs"]) == (1, [["n1", "n3"], ["n2", "n4"]])
    assert first["timeout_seconds"] > 0 and "verdict" not in first
    assert (await post(web, "/plans/plan-j/check/next", {"token": token})).json() == first
    answer: dict[str, Any] = {}
    for number, pairs in ((1, first["pairs"]), (2, None)):
        pairs = pairs or answer["pairs"]
        results = [{"nodes": pair, "ok": "n3" not in pair, "seconds": 2.0} for pair in pairs]
        body = {"token": token, "round": number, "results": results, "vouched": True}
        answer = (await post(web, "/plans/plan-j/check/results", body)).json()
        repeated = (await post(web, "/plans/plan-j/check/results", body)).json()
        assert repeated == answer
    assert answer["verdict"]["faulty"] == ["n3"]
    assert (await web.client.get(f"{API}/plans/plan-j")).json()["nodes"] == ["n3"]


async def test_a_check_goes_on_after_its_executor_died(web: Web, clock: Clock) -> None:
    """The next executor gets the pairs that have no result yet."""
    token = await check_plan(web, ("n1", "n2", "n3", "n4"))
    await post(web, "/plans/plan-j/check/next", {"token": token})
    result = {"nodes": ["n3", "n1"], "ok": True, "seconds": 1.0}
    body = {"token": token, "round": 1, "results": [result]}
    assert (await post(web, "/plans/plan-j/check/results", body)).json()["pairs"] == [["n2", "n4"]]
    clock.now += LEASE_SECONDS + 1
    again = await claim(web, "slurm-2")
    assert (await post(web, "/plans/plan-j/check/next", {"token": token})).status_code == 409
    assert (await post(web, "/plans/plan-j/check/next", {"token": again["token"]})).json()["pairs"] == [["n2", "n4"]]


async def test_a_check_that_nobody_goes_on_with_expires(web: Web, clock: Clock) -> None:
    """Its results come too late then: nothing is drained by what was true an hour ago."""
    token = await check_plan(web, ("n1", "n2", "n3", "n4"))
    await post(web, "/plans/plan-j/check/next", {"token": token})
    clock.now += 3601.0
    for plan_id in await web.store.plans.expired(clock.now, 10):
        await web.services.plans.change(plan_id, clock.now, partial(web.services.plans.commands.expire, now=clock.now))
    body = {"token": token, "round": 1, "results": [{"nodes": ["n1", "n3"], "ok": False, "seconds": 1.0}]}
    late = await post(web, "/plans/plan-j/check/results", body)
    assert (late.status_code, "is over" in late.json()["detail"]) == (409, True)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["reason"], plan["nodes"]) == ("expired", "expired", [])


async def checked(web: Web, *faulty: str) -> str:
    """The check of six nodes comes to the verdict that these are faulty. The token of the claim."""
    nodes = tuple(f"n{number}" for number in range(6))
    token = await check_plan(web, nodes)
    answer = (await post(web, "/plans/plan-j/check/next", {"token": token})).json()
    while "pairs" in answer and "verdict" not in answer:
        results = [{"nodes": one, "ok": not set(faulty) & set(one), "seconds": 1.0} for one in answer["pairs"]]
        body = {"token": token, "round": answer["round"], "results": results, "vouched": True}
        answer = (await post(web, "/plans/plan-j/check/results", body)).json()
    assert "waits for a person" in answer["detail"]
    return token


async def test_a_verdict_beyond_the_tenants_share_waits_for_a_person(web: Web) -> None:
    """Two of six nodes are more than one tenant may take out within an hour: no breaker trips for the others, the
    executor is told to stop, and goes on once a person has said yes."""
    token = await checked(web, "n0", "n1")
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["reason"], plan["nodes"]) == ("waiting", "tenant_cap", ["n0", "n1"])
    assert (await post(web, "/plans/plan-j/report", {"token": token, "state": "reached"})).status_code == 409
    assert not [one for one in (await web.client.get(f"{API}/breakers")).json() if one["tripped"]]
    await post(web, "/plans/plan-j/approve", {})
    again = await claim(web)
    decided = (await post(web, "/plans/plan-j/check/next", {"token": again["token"]})).json()
    assert decided["verdict"]["faulty"] == ["n0", "n1"]


async def test_a_verdict_beyond_the_breaker_waits_for_a_person(web: Web) -> None:
    """The second node within an hour, for another tenant: the breaker trips, the executor is told to stop."""
    await planned(web, "other", tenant="eve", cluster="default")
    first = await claim(web)
    ended = {"token": first["token"], "state": "reached", "drained": ["n5"]}
    await post(web, "/plans/plan-other/report", ended)
    token = await checked(web, "n0")
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["reason"], plan["nodes"]) == ("waiting", "breaker_open", ["n0"])
    assert (await post(web, "/plans/plan-j/report", {"token": token, "state": "reached"})).status_code == 409
    (open_,) = [one for one in (await web.client.get(f"{API}/breakers")).json() if one["tripped"]]
    assert "2 nodes would be taken out" in open_["reason"]
    for comment in ({}, {"comment": " "}):
        assert (await post(web, "/breakers/default/reset", comment)).status_code == 400
    reset = await post(web, "/breakers/default/reset", {"comment": "two bad GPUs, really"})
    assert (reset.status_code, reset.json()["tripped"]) == (200, False)


def reply(node: str, id: str, output: str, exit_code: int | None = 0) -> dict[str, object]:
    return {"node": node, "id": id, "exit_code": exit_code, "output": output}


async def ask_plan(web: Web, **fields: Any) -> tuple[str, dict[str, Any]]:
    """(token, what is to be done first) of a check of five nodes after an ECC error which the job's log lays to n4."""
    await web.store.jobs.register(Job("j", nodes=("n1", "n2", "n3", "n4", "n5"), created=NOW))
    values: dict[str, Any] = {
        "reason": PlanReason.UNPROVEN,
        "suspects": ("n4",),
        "unproven_suspects": ("n4",),
        **fields,
    }
    await planned(web, action=Action.CHECK_AND_RESUBMIT, **values)
    token = str((await claim(web))["token"])
    body = {"token": token, "queries": True}
    return token, (await post(web, "/plans/plan-j/check/next", body)).json()


def clean(queries: list[dict[str, Any]]) -> list[dict[str, object]]:
    return [reply(query["node"], query["id"], "", None) for query in queries]


async def test_a_suspect_is_asked_before_pairs_are_tested(web: Web) -> None:
    """Its own word is proof: it becomes the plan's node, with the line that proves it, and no pair is tested."""
    token, first = await ask_plan(web)
    assert first["pairs"] == []
    assert {query["node"] for query in first["queries"]} == {"n4"}
    argv = {query["id"]: query["argv"] for query in first["queries"]}
    assert argv["gpu_ecc"][0] == "nvidia-smi" and "free_space" not in argv
    answers = clean([query for query in first["queries"] if query["id"] != "gpu_ecc"])
    answers.append(reply("n4", "gpu_ecc", "0, 00000000:07:00.0, 0\n1, 00000000:0F:00.0, 3\n"))
    body = {"token": token, "round": 1, "answers": answers}
    answer = (await post(web, "/plans/plan-j/check/results", body)).json()
    assert answer["verdict"]["faulty"] == ["n4"]
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    (proof,) = plan["proofs"]
    assert (plan["state"], plan["nodes"]) == ("sent", ["n4"])
    assert (proof["node"], proof["kind"], proof["source"]) == ("n4", "query", "gpu_ecc")
    assert proof["text"] == "1, 00000000:0F:00.0, 3"
    states = {query["query"]: query["state"] for query in plan["queries"]}
    assert (states["gpu_ecc"], states["kernel_journal"]) == ("proves", "not_available")


async def test_a_suspect_that_nothing_proves_waits_for_a_person(web: Web) -> None:
    """Clean answers, pairs that all pass: the executor is told to stop; a person says whether the node goes."""
    token, first = await ask_plan(web)
    body = {"token": token, "round": 1, "answers": clean(first["queries"])}
    pairs = (await post(web, "/plans/plan-j/check/results", body)).json()
    assert "queries" not in pairs
    assert pairs["pairs"][0][0] == "n4", "the suspect is in the first pair"
    results = [{"nodes": pair, "ok": True, "seconds": 1.0} for pair in pairs["pairs"]]
    stopped = await post(web, "/plans/plan-j/check/results", {"token": token, "round": 1, "results": results})
    assert (stopped.status_code, "nothing proves that n4" in stopped.json()["detail"]) == (409, True)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["reason"], plan["nodes"], plan["proofs"]) == ("waiting", "unproven", ["n4"], [])
    assert (await post(web, "/plans/plan-j/report", {"token": token, "state": "reached"})).status_code == 409
    await post(web, "/plans/plan-j/approve", {"by": "maria"})
    again = await claim(web)
    decided = await post(web, "/plans/plan-j/check/next", {"token": again["token"], "queries": True})
    assert decided.json()["verdict"]["faulty"] == ["n4"]


async def test_pairs_that_prove_a_node_leave_their_proof(web: Web) -> None:
    """The plan of an unproven suspect goes on with whichever node the pairs find."""
    token, first = await ask_plan(web)
    answer = (
        await post(web, "/plans/plan-j/check/results", {"token": token, "round": 1, "answers": clean(first["queries"])})
    ).json()
    while "verdict" not in answer:
        results = [{"nodes": pair, "ok": "n2" not in pair, "seconds": 1.0} for pair in answer["pairs"]]
        body = {"token": token, "round": answer["round"], "results": results, "vouched": True}
        answer = (await post(web, "/plans/plan-j/check/results", body)).json()
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["nodes"]) == ("sent", ["n2"])
    assert [(proof["node"], proof["kind"]) for proof in plan["proofs"]] == [("n2", "check")]


async def found_faulty(
    web: Web, plan: str, token: str, vouched: tuple[bool | None, ...], bad: str = "n3"
) -> httpx.Response:
    """The last answer of a check whose pairs with this node fail. vouched: what is said of each round's results."""
    answer = await post(web, f"/plans/{plan}/check/next", {"token": token})
    for word in vouched:
        found = answer.json()
        results = [{"nodes": pair, "ok": bad not in pair, "seconds": 1.0} for pair in found["pairs"]]
        body = {"token": token, "round": found["round"], "results": results, "vouched": word}
        answer = await post(
            web,
            f"/plans/{plan}/check/results",
            {name: value for name, value in body.items() if value is not None},
        )
    return answer


@pytest.mark.parametrize("vouched", [(False, False), (None, None), (False, True), (True, None)])
async def test_pairs_in_the_job_s_own_image_prove_nothing(web: Web, vouched: tuple[bool | None, ...]) -> None:
    """Nor does a check of which one round ran there: the node waits for a person, whose word is the proof."""
    token = await check_plan(web, ("n1", "n2", "n3", "n4"))
    stopped = await found_faulty(web, "plan-j", token, vouched)
    assert (stopped.status_code, "nothing proves that n3" in stopped.json()["detail"]) == (409, True)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["reason"], plan["nodes"], plan["proofs"]) == ("waiting", "unproven", ["n3"], [])
    stored = await web.store.plans.find("plan-j")
    assert stored is not None and stored.check is not None and not stored.check.vouched
    approved = (await post(web, "/plans/plan-j/approve", {"comment": "it is"})).json()
    assert [(proof["node"], proof["kind"]) for proof in approved["proofs"]] == [("n3", "person")]
    again = await claim(web)
    decided = (await post(web, "/plans/plan-j/check/next", {"token": again["token"]})).json()
    assert decided["verdict"]["faulty"] == ["n3"]


async def test_an_agent_that_does_not_say_whose_program_ran_is_not_believed(web: Web) -> None:
    """Whatever the scheduler: it may have run what the job brought along."""
    nodes = ("n1", "n2", "n3", "n4")
    for job in ("slurm-lab-7", "k8s:lab:job:train:slurm-lab-7"):
        await web.store.jobs.register(Job(job, nodes=nodes, created=NOW))
        await planned(web, job, action=Action.CHECK_AND_RESUBMIT, suspects=())
        token = str((await claim(web))["token"])
        await found_faulty(web, f"plan-{job}", token, (None, None))
        plan = (await web.client.get(f"{API}/plans/plan-{job}")).json()
        assert (plan["state"], plan["nodes"]) == ("waiting", ["n3"])
        assert [proof["kind"] for proof in plan["proofs"]] == []


async def test_an_approved_check_that_proves_nothing_asks_again(web: Web) -> None:
    """A person said yes to a check, not to the suspect: whether it goes is asked when the check has proven nothing."""
    await web.store.jobs.register(Job("j", nodes=("n1", "n2", "n3", "n4"), created=NOW))
    suspected: dict[str, Any] = {"suspects": ("n4",), "unproven_suspects": ("n4",)}
    await planned(web, mode=Mode.APPROVE, action=Action.CHECK_AND_RESUBMIT, **suspected)
    assert (await post(web, "/plans/plan-j/approve", {})).json()["reason"] == "approved"
    token = str((await claim(web))["token"])
    stopped = await found_faulty(web, "plan-j", token, (True,), bad="")
    assert (stopped.status_code, "nothing proves that n4" in stopped.json()["detail"]) == (409, True)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["reason"], plan["nodes"], plan["proofs"]) == ("waiting", "unproven", ["n4"], [])
    await post(web, "/plans/plan-j/refuse", {})
    assert (await web.client.get(f"{API}/plans/plan-j")).json()["state"] == "refused"


async def test_without_a_program_for_pairs_the_answers_decide(web: Web) -> None:
    """Clean ones leave the suspect to a person, as clean pairs would."""
    await web.store.jobs.register(Job("j", nodes=("n1", "n2", "n3", "n4", "n5"), created=NOW))
    suspected: dict[str, Any] = {"suspects": ("n4",), "unproven_suspects": ("n4",)}
    await planned(web, action=Action.CHECK_AND_RESUBMIT, **suspected)
    token = str((await claim(web))["token"])
    body = {"token": token, "queries": True, "pairs": False}
    first = (await post(web, "/plans/plan-j/check/next", body)).json()
    assert first["queries"] and not first["pairs"]
    answers = {"token": token, "round": 1, "answers": clean(first["queries"])}
    stopped = await post(web, "/plans/plan-j/check/results", answers)
    assert (stopped.status_code, "nothing proves that n4" in stopped.json()["detail"]) == (409, True)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["state"], plan["reason"], plan["nodes"]) == ("waiting", "unproven", ["n4"])


@pytest.mark.parametrize(("suspects", "status"), [(("n4",), 409), ((), 200)])
async def test_an_executor_that_can_do_neither_ends_the_check(web: Web, suspects: tuple[str, ...], status: int) -> None:
    """Whom the job's text blames waits for a person; where it blames nobody, the job is free to run again."""
    token, first = await ask_plan(web, suspects=suspects, unproven_suspects=suspects)
    decided = await post(web, "/plans/plan-j/check/next", {"token": token, "pairs": False})
    assert decided.status_code == status
    if not suspects:
        verdict = decided.json()["verdict"]
        assert (verdict["faulty"], "--check" in verdict["reason"]) == ([], True)
    assert first["round"] == 1


async def test_only_nodes_of_the_attempt_are_asked(web: Web) -> None:
    """A suspect that the scheduler did not give to the attempt is neither asked nor put first."""
    _, first = await ask_plan(web, suspects=("n4", "n5"), allocation=("n1", "n2", "n3", "n5"))
    assert {query["node"] for query in first["queries"]} == {"n5"}


@pytest.mark.parametrize(("age", "state"), [(15.0, "proves"), (3600.0, "proves_nothing")])
async def test_the_kernel_s_log_counts_since_the_failure(web: Web, age: float, state: str) -> None:
    """What a node logged an hour before the attempt failed has nothing to do with it."""
    token, first = await ask_plan(web)
    stamp = datetime.fromtimestamp(NOW - age, UTC).isoformat(timespec="seconds")
    line = f"{stamp} n4 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    answers = clean([query for query in first["queries"] if query["id"] != "kernel_journal"])
    body = {"token": token, "round": 1, "answers": [*answers, reply("n4", "kernel_journal", line)]}
    await post(web, "/plans/plan-j/check/results", body)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert {query["query"]: query["state"] for query in plan["queries"]}["kernel_journal"] == state


async def test_an_executor_that_cannot_ask_gets_the_pairs(web: Web) -> None:
    """One of before this step, also when it takes over from one that has begun to ask."""
    token, first = await ask_plan(web)
    assert first["pairs"] == []
    old = (await post(web, "/plans/plan-j/check/next", {"token": token})).json()
    assert ("queries" in old, len(old["pairs"])) == (False, 2)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert {query["state"] for query in plan["queries"]} == {"not_available"}


async def test_an_answer_outlives_the_executor_that_got_it(web: Web, clock: Clock) -> None:
    """It dies with one query open, and the next one cannot ask: what the node has said is the verdict all the same."""
    token, _ = await ask_plan(web)
    body = {"token": token, "round": 1, "answers": [reply("n4", "gpu_ecc", "1, 00000000:0F:00.0, 3")]}
    assert (await post(web, "/plans/plan-j/check/results", body)).json()["queries"]
    clock.now += LEASE_SECONDS + 1
    again = await claim(web, "slurm-2")
    decided = (await post(web, "/plans/plan-j/check/next", {"token": again["token"]})).json()
    assert decided["verdict"]["faulty"] == ["n4"]
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert (plan["nodes"], [proof["source"] for proof in plan["proofs"]]) == (["n4"], ["gpu_ecc"])


async def test_an_executor_with_nothing_to_say_gets_the_pairs(web: Web) -> None:
    """A report without answers does not lead round in a circle."""
    token, _ = await ask_plan(web)
    after = await post(web, "/plans/plan-j/check/results", {"token": token, "round": 1})
    assert len(after.json()["pairs"]) == 2


async def test_the_script_of_the_site_is_one_more_query(web: Web) -> None:
    """Only the executor knows its path; its exit code is proof, and its first line says why."""
    token, _ = await ask_plan(web)
    await web.store.plans.change("plan-j", lambda plan: TransitionResult(replace(plan, check=None)))
    body = {"token": token, "queries": True, "site_check": True}
    queries = (await post(web, "/plans/plan-j/check/next", body)).json()["queries"]
    assert [query["argv"] for query in queries if query["id"] == "site_check"] == [[]]
    answers = clean([query for query in queries if query["id"] != "site_check"])
    answers.append(reply("n4", "site_check", "ERROR: ib0 runs at 2x\n", 1))
    body = {"token": token, "round": 1, "answers": answers}
    await post(web, "/plans/plan-j/check/results", body)
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    assert [(proof["source"], proof["text"]) for proof in plan["proofs"]] == [("site_check", "ERROR: ib0 runs at 2x")]


async def test_the_page_shows_what_was_asked_and_what_proves(web: Web) -> None:
    """Answers are hostile text: they are shown, not run."""
    token, first = await ask_plan(web)
    answers = clean([query for query in first["queries"] if query["id"] not in ("gpu_ecc", "dcgm_diag")])
    answers.append(reply("n4", "gpu_ecc", "1, 00000000:0F:00.0, 3"))
    answers.append(reply("n4", "dcgm_diag", "<script>alert(1)</script>"))
    await post(web, "/plans/plan-j/check/results", {"token": token, "round": 1, "answers": answers})
    plan = (await web.client.get(f"{API}/plans/plan-j")).json()
    page = (await web.client.get(f"/diagnoses/{plan['diagnosis']}")).text
    assert "1, 00000000:0F:00.0, 3" in page and "gpu_ecc" in page
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page


async def test_a_check_without_known_nodes_asks_for_them(web: Web) -> None:
    """The executor may name the job's nodes when nobody registered them."""
    token = await check_plan(web, ())
    assert (await post(web, "/plans/plan-j/check/next", {"token": token})).status_code == 400
    named = await post(web, "/plans/plan-j/check/next", {"token": token, "nodes": ["n1", "n2"]})
    assert named.json()["pairs"] == [["n1", "n2"]]


async def test_what_a_person_does_to_a_node_is_kept_as_feedback(web: Web) -> None:
    """Bringing back a node that we took out says that we were wrong."""
    await planned(web)
    token = (await claim(web))["token"]
    await post(web, "/plans/plan-j/report", {"token": token, "state": "reached", "drained": ["hgx-04"]})
    answer = await post(web, "/nodes/hgx-04/events", {"kind": "uncordoned", "by": "person", "reason": "GPU is fine"})
    assert (answer.status_code, answer.json()["feedback"]) == (200, "eviction_undone")
    (shown,) = (await web.client.get(f"{API}/nodes?cluster=default")).json()
    assert (shown["node"], shown["kind"], shown["by"]) == ("hgx-04", "uncordoned", "person")


@pytest.mark.parametrize(
    "body", [{}, {"kind": "cordoned"}, {"kind": "fenced", "by": "person"}, {"kind": "down", "by": "nobody"}]
)
async def test_faulty_node_events(web: Web, body: dict[str, str]) -> None:
    """An unknown kind or actor is a bad request."""
    assert (await post(web, "/nodes/n1/events", body)).status_code == 400


async def test_a_plan_that_has_not_begun_leaves_a_person_s_node_alone(web: Web) -> None:
    """What is under way is not stopped half way; what is not is held, and people are told."""
    await planned(web, "begun")
    await claim(web)
    await planned(web, "open")
    await planned(web, "asked", Mode.APPROVE)
    answer = await post(web, "/nodes/hgx-04/events", {"kind": "cordoned", "by": "person", "reason": "fan"})
    assert answer.json()["feedback"] == "node_is_bad"
    states = {job: (await web.client.get(f"{API}/plans/plan-{job}")).json() for job in ("begun", "open", "asked")}
    assert {job: one["state"] for job, one in states.items()} == {"begun": "sent", "open": "held", "asked": "held"}
    assert states["open"]["reason"] == "person_handles_node"
    assert (await post(web, "/plans/claim", {"executor": "x"})).status_code == 204
    assert len(await web.store.outbox.messages()) == 2


async def test_a_checkpoint_that_is_reported_bad_is_taken_from_the_plans_that_go_back_to_it(web: Web) -> None:
    """Nobody can claim or approve them, also where the process that took the report died before it looked at plans. An
    executor that has one already may refuse it."""
    back = Rollback("/ckpt/100", 100, verified=True)
    for job, mode in (("sent", Mode.ACT), ("asked", Mode.APPROVE), ("other", Mode.ACT)):
        await planned(web, job, mode, Action.ROLLBACK_AND_RESUBMIT, rollback=back)
    bad = {"kind": "checkpoint", "step": 100, "path": "/ckpt/100", "phase": "bad", "why": "a bit flipped"}
    for path in ("/ckpt/90", "/ckpt/100"):
        assert (await post(web, "/jobs/sent/events", bad | {"path": path})).status_code == 200
    event = Event(EventKind.CHECKPOINT, NOW, step=100, path="/ckpt/100", phase=CheckpointPhase.BAD)
    await web.store.jobs.add_event(AttemptKey("asked", 1), event)
    refused = await post(web, "/plans/plan-asked/approve", {})
    assert (refused.status_code, "a guardrail holds it" in refused.text) == (409, True)
    held = (await web.client.get(f"{API}/plans/plan-sent")).json()
    assert (held["state"], held["reason"]) == ("held", "bad_checkpoint")
    assert held["history"][-1]["why"] == "/ckpt/100 was reported bad: a bit flipped"
    mine = await claim(web)
    assert mine["plan"]["job"] == "other"
    assert (await post(web, "/plans/claim", {"executor": "x", "cluster": "default"})).status_code == 204
    end = {"token": mine["token"], "state": "not_reached", "refused": "bad_checkpoint"}
    ended = (await post(web, "/plans/plan-other/report", end)).json()
    assert (ended["state"], ended["reason"]) == ("not_reached", "bad_checkpoint")
