"""A switch dies under the nodes of many jobs: one incident, one alert and one check, through the real service."""

from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import acting, diagnosis_of, node_fault, receiver, service, until, verified
from tests.thorough import THOROUGH

COUNT = 18 if THOROUGH else 6
SWITCH = "switch:leaf-07"
TEXT = {"content-type": "text/plain"}
LINE = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def place_nodes(client: httpx.Client, failing: list[str]) -> None:
    """The failing nodes stand under one switch of several, in a cluster of 100 nodes."""
    others = [f"gpu-{number:03}" for number in range(COUNT, 100)]
    places = {node: [SWITCH] for node in failing} | {node: [f"switch:leaf-{node[-1]}"] for node in others}
    client.post("/api/v1/nodes/places", json={"cluster": "east", "places": places}).raise_for_status()


def fails(client: httpx.Client, node: str) -> dict[str, Any]:
    """The diagnosis of a job of two nodes, each of its own user, after its first node has logged its fault."""
    job = f"job-{node}"
    registration = {"id": job, "nodes": [node, f"well-{node}"], "cluster": "east", "tenant": f"user-{node}"}
    node_fault(client, node, "east")
    client.post("/api/v1/jobs", json=registration).raise_for_status()
    client.post("/api/v1/logs", params={"job": job}, content=LINE, headers=TEXT).raise_for_status()
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    return diagnosis_of(client, job)


def settled(client: httpx.Client) -> list[dict[str, Any]]:
    """All messages once none is on its way."""
    messages: list[dict[str, Any]] = client.get("/api/v1/effects").json()["items"]
    is_over = messages and all(message["state"] != "pending" for message in messages)
    return messages if is_over else []


def test_many_failures_under_one_switch(tmp_path: Path) -> None:
    """The second failure makes the incident of the switch and the check of it; all others join it, and wait for a
    person."""
    nodes = [f"gpu-{number:03}" for number in range(COUNT)]
    with receiver() as hook, receiver() as chat, service(tmp_path, **acting(hook, chat)) as running:
        client = running.start()
        place_nodes(client, nodes)
        plans = [fails(client, node)["plan"] for node in nodes]
        messages = until(lambda: settled(client), "all messages are sent or withheld")
        (incident,) = client.get("/api/v1/incidents").json()["items"]

    assert (incident["place"], incident["failures"], incident["jobs"]) == (SWITCH, COUNT, COUNT)
    assert sorted(incident["nodes"]) == nodes
    (alert,) = chat.requests
    assert b"Node gpu-000 had an ECC memory error" in alert[1]
    withheld = [message for message in messages if message["state"] == "withheld"]
    assert len(withheld) == 2 * COUNT - 3, "of all failures but the first, and of all plans that wait"
    sent = [(body["data"]["action"], body["data"]["job"]) for body in verified(hook)]
    assert sent == [("cordon_and_resubmit", "job-gpu-000"), ("check_and_resubmit", "job-gpu-001")]
    waiting = [plan for plan in plans if (plan["state"], plan["reason"]) == ("waiting", "place_fails")]
    assert len(waiting) == COUNT - 2
