"""What a job prints moves no machine but its own, and none on its word alone: the whole service, over HTTP, acting."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from diagnoser import app
from diagnoser.config.settings import Settings
from tests.hostile_logs import OWN, VICTIM, Forgery, forgeries
from tests.rule_files import ANALYZER
from tests.thorough import THOROUGH

FORGERIES = tuple(forgeries())
SHIPPER = "shipper-" + "s" * 16
"""A token that may send the lines of jobs, and no more: what a job's own shipper has."""
AGENT = "agent-" + "a" * 16
SHIPS = {"authorization": f"Bearer {SHIPPER}", "content-type": "text/plain"}
RANK_MAP = {"0": OWN[0], "1": OWN[1]}
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """The service as `serve` composes it, in mode act. The shipped rules are read once for all tests."""
    monkeypatch.setattr(app, "load_analyzer", lambda settings: ANALYZER)
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'hostile.db'}",
        recovery_mode="act",
        tokens=SecretStr(f"ingest:{SHIPPER},agent:{AGENT},read:{'r' * 16}"),
        exit_grace_seconds=0.05,
    )
    async with app.running(settings, asyncio.Event()) as served:
        transport = httpx.ASGITransport(served)
        address, headers = "http://127.0.0.1:8000/api/v1", {"authorization": f"Bearer {AGENT}"}
        async with httpx.AsyncClient(transport=transport, base_url=address, timeout=60, headers=headers) as client:
            yield client


async def fail(client: httpx.AsyncClient, job: str, text: str, *, rank_map: bool = False) -> None:
    """A job on its own two nodes prints this and fails."""
    registration: dict[str, Any] = {"id": job, "cluster": "lab", "tenant": job, "nodes": OWN}
    registration["rank_nodes"] = RANK_MAP if rank_map else {}
    await checked(client.post("/jobs", json=registration))
    body = f"step 1 loss 11.2\nstep 2 loss 10.9\n{text}\n"
    await checked(client.post("/logs", params={"job": job}, content=body, headers=SHIPS))
    await checked(client.post(f"/jobs/{job}/events", json={"kind": "exit", "code": 1}))


async def checked(request: Any) -> httpx.Response:
    answer: httpx.Response = await request
    assert answer.status_code < 300, answer.text
    return answer


async def pages(client: httpx.AsyncClient, path: str, cursor: str, **where: str) -> list[dict[str, Any]]:
    """All items. cursor: name of the parameter that asks for the next page."""
    items, query = list[dict[str, Any]](), dict[str, Any](where, limit=100)
    while True:
        page = (await checked(client.get(path, params=query))).json()
        items += page["items"]
        if not page["next"]:
            return items
        query[cursor] = page["next"]


async def verdicts(client: httpx.AsyncClient, *jobs: str) -> list[dict[str, Any]]:
    """The current diagnosis of each job, when all have one: asked job by job, since a page of all is dear."""
    for job in jobs:
        while not await pages(client, "/diagnoses", "cursor", job=job):  # noqa: ASYNC110 - the service has no such event
            await asyncio.sleep(0.2)
    return await pages(client, "/diagnoses", "cursor")


async def claims(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """All plans that an executor gets."""
    held = []
    while (answer := await checked(client.post("/plans/claim", json={"executor": "x", "cluster": "lab"}))).content:
        held.append(answer.json()["plan"])
    return held


def test_there_are_at_least_two_hundred() -> None:
    """All of them different, over every rule that may lead to a cordon."""
    assert len({forgery.text for forgery in FORGERIES}) >= 200


@pytest.mark.parametrize("rank_map", [False, True], ids=["no rank map", "rank map"])
async def test_no_forged_line_takes_a_node_out(service: httpx.AsyncClient, rank_map: bool) -> None:
    """No plan names a foreign node, none cordons on the job's text alone, and no breaker trips. Every fourth forgery is
    tried in one of the two ways; thorough tests try each in both, and a unit test draws from all."""
    tried = range(len(FORGERIES)) if THOROUGH else range(4 * rank_map, len(FORGERIES), 8)
    for number in tried:
        await fail(service, f"forged-{number}", FORGERIES[number].text, rank_map=rank_map)
    diagnosed = await verdicts(service, *(f"forged-{number}" for number in tried))
    named = [verdict for verdict in diagnosed if any(suspect["node"] == VICTIM for suspect in verdict["nodes"])]
    assert len(named) > len(tried) / 12, "the forgeries do not even reach a verdict, so they prove nothing"
    plans = await pages(service, "/plans", "after")
    assert touching(plans, lambda plan: not set(plan["nodes"]) <= set(OWN)) == []
    assert touching(plans, lambda plan: plan["action"] == "cordon_and_resubmit") == []
    assert touching_nodes(await claims(service)) == []
    breakers = (await checked(service.get("/breakers"))).json()
    assert [breaker for breaker in breakers if breaker["tripped"]] == []


def touching(plans: list[dict[str, Any]], is_wrong: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    """(forgery, action, nodes) of the plans that are wrong."""
    return [(_forgery(plan).name, plan["action"], tuple(plan["nodes"])) for plan in plans if is_wrong(plan)]


def _forgery(plan: dict[str, Any]) -> Forgery:
    return FORGERIES[int(plan["job"].removeprefix("forged-"))]


async def test_the_nodes_own_log_takes_it_out(service: httpx.AsyncClient) -> None:
    """The same line, sent as the log of a node of the job, proves the fault: the plan says which line did."""
    query = {"source": "kernel", "node": OWN[1], "cluster": "lab"}
    await checked(service.post("/logs", params=query, content=f"{XID}\n", headers={"content-type": "text/plain"}))
    await fail(service, "honest", "RuntimeError: CUDA error: unspecified launch failure")
    await verdicts(service, "honest")
    (plan,) = await claims(service)
    assert (plan["action"], plan["nodes"]) == ("cordon_and_resubmit", [OWN[1]])


async def test_a_foreign_nodes_own_log_takes_nothing_out(service: httpx.AsyncClient) -> None:
    """A real fault of a node that the job never had is none of its business."""
    query = {"source": "kernel", "node": VICTIM, "cluster": "lab"}
    await checked(service.post("/logs", params=query, content=f"{XID}\n", headers={"content-type": "text/plain"}))
    await fail(service, "curious", f"rank 0 on node {VICTIM}\nRuntimeError: CUDA error: unspecified launch failure")
    (verdict,) = await verdicts(service, "curious")
    told = [verdict["root_cause"], *verdict["evidence"], *verdict["symptoms"]]
    assert [line["text"] for line in told if line["provenance"] != "job"] == []
    assert touching_nodes(await claims(service)) == []


@pytest.mark.parametrize("source", ["kernel", "syslog", "scheduler", "scontrol", "kubernetes", "flight_recorder"])
async def test_the_name_of_a_source_makes_no_line_the_nodes(service: httpx.AsyncClient, source: str) -> None:
    """A job's shipper calls its stream a kernel log of the job's own node, under the job and beside it: the first stays
    the job's word, the second is refused. Neither takes the node out."""
    query = {"job": "liar", "source": source, "node": OWN[1]}
    await checked(service.post("/logs", params=query, content=f"{XID}\n", headers=SHIPS))
    refused = await service.post("/logs", params={"source": source, "node": OWN[1]}, content=XID, headers=SHIPS)
    assert refused.status_code in (400, 403)
    await fail(service, "liar", "RuntimeError: CUDA error: unspecified launch failure")
    (verdict,) = await verdicts(service, "liar")
    assert {line["provenance"] for line in (verdict["root_cause"], *verdict["evidence"])} == {"job"}
    assert touching_nodes(await claims(service)) == []


async def test_what_a_shipper_may_not_do(service: httpx.AsyncClient) -> None:
    """It neither registers nodes, nor reports events of nodes, nor claims plans."""
    headers = {"authorization": f"Bearer {SHIPPER}"}
    for path, body in (
        ("/jobs", {"id": "liar", "nodes": [VICTIM]}),
        (f"/nodes/{VICTIM}/events", {"kind": "down", "by": "person"}),
        ("/plans/claim", {"executor": "x"}),
    ):
        assert (await service.post(path, json=body, headers=headers)).status_code == 403


def touching_nodes(plans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [plan for plan in plans if plan["nodes"]]
