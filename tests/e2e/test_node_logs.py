"""Logs of nodes, end to end: real process, real HTTP, real database."""

import time
from typing import Any

import httpx
import pytest

from tests.e2e.service import Service, diagnosis_of, until

TIMEOUT = (
    b"[2026-03-01 11:00:00] iteration        9/     900 | lm loss: 7.1000 |\n"
    b"[rank1]:[E301 11:10:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds "
    b"before timing out.\n"
)
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def client(standing: Service) -> httpx.Client:
    assert standing.client is not None
    return standing.client


def run(client: httpx.Client, job: str, *nodes: str) -> None:
    client.post("/api/v1/jobs", json={"id": job, "nodes": nodes, "cluster": "east"}).raise_for_status()
    client.post("/api/v1/logs", params={"job": job}, content=TIMEOUT, headers=TEXT).raise_for_status()


def end(client: httpx.Client, job: str) -> None:
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()


def say(client: httpx.Client, node: str, *lines: str, source: str = "kernel", ago: float = 0.0) -> httpx.Response:
    """As a shipper of node logs sends them: records with their time, and no job."""
    records: list[dict[str, Any]] = [
        {"message": line, "source": source, "node": node, "time": time.time() - ago} for line in lines
    ]
    return client.post("/api/v1/logs", json=records)


def test_a_timeout_and_a_lost_gpu_on_its_node_are_one_diagnosis(client: httpx.Client) -> None:
    """The job tells of a timeout, the kernel of Xid 79: gpu_lost on that node, with the kernel's line as root."""
    assert say(client, "n44.hpc.example", "usb 1-1: new device", XID, ago=60).status_code == 204
    run(client, "lost", "n44", "n45")
    end(client, "lost")
    found = diagnosis_of(client, "lost")
    page = client.get(f"/diagnoses/{found['id']}").text
    assert (found["category"], found["type"]) == ("infrastructure", "gpu_lost")
    root = found["root_cause"]
    assert (root["source"], root["line"], root["node"]) == ("kernel", 2, "n44")
    assert [suspect["node"] for suspect in found["nodes"]] == ["n44"]
    assert found["recovery"]["action"] == "cordon_and_resubmit"
    assert [symptom["type"] for symptom in found["symptoms"]] == ["nccl_timeout_error"]
    assert [(proof["node"], proof["kind"], proof["text"]) for proof in found["proofs"]] == [("n44", "node_log", XID)]
    assert "usb 1-1: new device" in page, "the page shows what the kernel said just before"


def test_other_nodes_and_other_times_are_left_out(client: httpx.Client) -> None:
    """A fault on a node of somebody else, or an hour ago, is not the cause; and a node's log is no job."""
    say(client, "n99", XID)
    say(client, "n54", XID, ago=3600)
    run(client, "apart", "n54", "n55")
    end(client, "apart")
    found = diagnosis_of(client, "apart")
    assert (found["type"], found["nodes"]) == ("nccl_timeout_error", [])
    for node in ("n99", "n54"):
        items = client.get("/api/v1/diagnoses", params={"node": node}).json()["items"]
        assert [one["job"] for one in items] == []
    listed = {one["job"] for one in client.get("/api/v1/diagnoses", params={"limit": 100}).json()["items"]}
    assert "apart" in listed and not [job for job in listed if "n99" in job or "n54" in job]


def test_a_job_cannot_call_up_the_log_of_a_foreign_node(client: httpx.Client) -> None:
    """The job prints, ships and reports that it runs on vic-9: the log of that node stays out of its diagnosis."""
    say(client, "vic-9", XID)
    client.post(
        "/api/v1/logs", params={"job": "liar", "node": "vic-9"}, content=b"rank 0 on node vic-9\n", headers=TEXT
    )
    run(client, "liar", "n64", "n65")
    client.post("/api/v1/jobs/liar/events", json={"kind": "exit", "code": 1, "node": "vic-9"}).raise_for_status()
    found = diagnosis_of(client, "liar")
    page = client.get(f"/diagnoses/{found['id']}").text
    assert (found["type"], found["nodes"], found["proofs"]) == ("nccl_timeout_error", [], [])
    assert "fallen off the bus" not in page


def test_a_node_log_that_comes_late_corrects_the_diagnosis(client: httpx.Client) -> None:
    """The kernel's line arrives after the verdict: the attempt is looked at again."""
    run(client, "late", "n74", "n75")
    end(client, "late")
    assert diagnosis_of(client, "late")["type"] == "nccl_timeout_error"
    say(client, "n74", XID, source="syslog")
    until(lambda: diagnosis_of(client, "late")["type"] == "gpu_lost", "the kernel's line is heard")


def test_a_node_log_needs_its_node(client: httpx.Client) -> None:
    """Kernel lines of nobody are refused, as text and as records; with a node and numbers they count once."""
    post = client.post("/api/v1/logs", params={"source": "kernel"}, content=XID.encode(), headers=TEXT)
    assert (post.status_code, "job" in post.json()["detail"]) == (400, True)
    assert client.post("/api/v1/logs", json=[{"message": XID, "source": "dmesg"}]).status_code == 400
    query: dict[str, str | int] = {"source": "dmesg", "node": "n84", "cluster": "east", "offset": 0}
    first, again = (client.post("/api/v1/logs", params=query, content=XID.encode(), headers=TEXT) for _ in range(2))
    assert (first.status_code, again.status_code) == (204, 200)
    assert again.json()["duplicates"] == 1
