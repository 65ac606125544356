"""The main job against the real process: a log streams in, a diagnosis, a signed webhook and a page come out."""

import gzip
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.e2e.service import (
    DEMO_LOG,
    SECRET,
    Service,
    acting,
    diagnosis_of,
    node_fault,
    plans_to,
    receiver,
    send,
    service,
    until,
    verified,
)

LINES = DEMO_LOG.read_bytes().splitlines(keepends=True)
REGISTRATION = {"id": "j", "nodes": ["gpu-011", "gpu-014", "gpu-017", "gpu-023"], "framework": "Megatron-LM"}


def verdict(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """What must be the same whenever the same log was read."""
    return {
        key: value for key, value in diagnosis.items() if key not in ("id", "job", "created", "plan", "url", "revision")
    }


def end(client: httpx.Client, job: str = "j") -> None:
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()


def test_a_failed_run_is_diagnosed_told_and_shown(tmp_path: Path) -> None:
    """Batches, the node's own log, exit event, diagnosis, a webhook that survives two refusals and verifies, an alert,
    and the page."""
    with receiver(refuse=2) as hook, receiver() as chat, service(tmp_path, **acting(hook, chat)) as running:
        client = running.start()
        client.post("/api/v1/jobs", json=REGISTRATION).raise_for_status()
        for start in range(0, len(LINES), 50):
            send(client, LINES, start, start + 50)
        node_fault(client, "gpu-017")
        end(client)
        found = diagnosis_of(client, lines=len(LINES))
        plan = until(lambda: verified(hook)[2:], "the recovery webhook")[0]
        (alert,) = until(lambda: chat.requests, "the alert")
        page = client.get(f"/diagnoses/{found['id']}").raise_for_status().text
        listed = client.get("/diagnoses").raise_for_status().text
        assert running.stop() == 0

    assert (found["type"], found["root_cause"]["rank"], found["root_cause"]["node"]) == ("ecc_error", 5, "gpu-017")
    assert "uncorrectable ECC error" in LINES[found["root_cause"]["line"] - 1].decode()
    assert found["recovery"]["action"] == "cordon_and_resubmit"
    assert [body["data"]["key"] for body in verified(hook)] == [plan["data"]["key"]] * 3
    assert plan["type"] == "recovery.plan"
    assert plan["data"]["nodes"] == ["gpu-017"]
    assert plan["data"]["diagnosis"]["id"] == found["id"]
    assert b"ecc_error" in alert[1]
    assert "uncorrectable ECC error" in page
    assert found["id"] in listed
    assert SECRET not in running.log()


def test_observe_is_the_default(tmp_path: Path) -> None:
    """Without a mode that allows it the plan is stored and shown, and nothing is sent."""
    with receiver() as hook:
        with service(tmp_path, **plans_to(hook)) as running:
            client = running.start()
            send(client, LINES, 0, len(LINES))
            end(client)
            found = diagnosis_of(client, lines=len(LINES))
            running.stop()
        assert (found["plan"]["mode"], found["plan"]["state"]) == ("observe", "advised")
        assert hook.requests == []


def test_a_kill_during_the_stream_changes_nothing(tmp_path: Path) -> None:
    """kill -9 between two batches, restart, the last batch sent again and the rest: the verdict is the same, wherever
    each stream was cut."""
    cuts = {"early": 100, "cause": 237, "late": 260}
    with service(tmp_path) as running:
        client = running.start()
        send(client, LINES, 0, len(LINES), job="whole")
        end(client, "whole")
        expected = verdict(diagnosis_of(client, "whole", len(LINES)))
        for job, at in cuts.items():
            for start in range(0, at, 20):
                send(client, LINES, start, min(start + 20, at), job=job)
        running.kill()
        client = running.start()
        for job, at in cuts.items():
            again = send(client, LINES, at - 15, at + 5, job=job)
            assert again.json()["duplicates"] == 15
            send(client, LINES, at + 5, len(LINES), job=job)
            end(client, job)
            assert verdict(diagnosis_of(client, job, len(LINES))) == expected


def test_a_fatal_line_and_quiet_start_the_diagnosis(tmp_path: Path) -> None:
    """No exit event is needed: a fatal line followed by the settle time is enough."""
    with service(tmp_path, DIAGNOSER_FATAL_DEBOUNCE_SECONDS="0.5") as running:
        client = running.start()
        send(client, LINES, 0, len(LINES))
        assert diagnosis_of(client, lines=len(LINES))["type"] == "ecc_error"


def test_a_healthy_stream_is_left_alone(tmp_path: Path) -> None:
    """Lines without a fault give no diagnosis while the run goes on, and `completed` only when it says so."""
    healthy = LINES[:230]
    with service(tmp_path, DIAGNOSER_FATAL_DEBOUNCE_SECONDS="0.3") as running:
        client = running.start()
        send(client, healthy, 0, len(healthy))
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 0}).raise_for_status()
        found = diagnosis_of(client, lines=len(healthy))
        assert (found["outcome"], found["category"], found["root_cause"]) == ("completed", "none", None)
        assert found["plan"] is None


def test_records_of_many_ranks_arrive_by_json(standing: Service) -> None:
    """NDJSON with a rank and node in each record, gzipped, gives the same cause as the labelled text."""
    records = []
    for line in LINES:
        label, _, rest = line.decode().partition(": ")
        fields = {"rank": int(label), "node": f"gpu-{(11, 14, 17, 23)[int(label) // 2]:03}"} if label.isdigit() else {}
        records.append(
            {"job": "records", "message": rest.rstrip("\n") if fields else line.decode().rstrip("\n"), **fields}
        )
    body = gzip.compress(b"\n".join(orjson.dumps(record) for record in records))
    assert standing.client is not None
    headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
    standing.client.post("/api/v1/logs", content=body, headers=headers).raise_for_status()
    end(standing.client, "records")
    found = diagnosis_of(standing.client, "records", lines=len(LINES))
    assert (found["type"], found["root_cause"]["rank"], found["root_cause"]["node"]) == ("ecc_error", 5, "gpu-017")


def test_bad_input_is_told_and_the_service_stays(standing: Service) -> None:
    """Every wrong request gets a clear answer, and a good one behind it is taken."""
    bomb = gzip.compress(bytes(200 << 20))
    text, ndjson = {"Content-Type": "text/plain"}, {"Content-Type": "application/x-ndjson"}
    cases: list[tuple[dict[str, str], dict[str, str], bytes, int, str]] = [
        ({}, text, b"line\n", 400, "job"),
        ({"job": "bad"}, text, b"", 400, "empty"),
        ({"job": "bad"}, {**text, "Content-Encoding": "gzip"}, bomb, 413, ""),
        ({"job": "bad"}, {**text, "Content-Encoding": "gzip"}, b"not gzip", 400, ""),
        ({"job": "bad"}, {**text, "Content-Encoding": "br"}, b"x", 415, ""),
        ({"job": "bad"}, {"Content-Type": "text/plain; charset=utf-16"}, b"x", 415, "charset"),
        ({"job": "bad"}, ndjson, b"{oops\n", 400, "line 1"),
        ({"job": "no/slash"}, text, b"x\n", 400, "job"),
    ]
    client = standing.client
    assert client is not None
    for query, headers, body, status, word in cases:
        answer = client.post("/api/v1/logs", params=query, headers=headers, content=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), body[:20]
        assert word in answer.text
    mixed = b'{"message": "good"}\n{oops\n{"message": "also good", "time": "yesterday"}\n'
    receipt = client.post("/api/v1/logs", params={"job": "bad"}, headers=ndjson, content=mixed).json()
    assert (receipt["lines"], receipt["rejected"]) == (2, 1)
    assert "line 2" in " ".join(receipt["errors"])
    long = client.post("/api/v1/logs", params={"job": "bad"}, headers=text, content=b"x" * (50 << 20))
    assert (long.status_code, long.json()["cut"]) == (200, 1)
    raw = client.post("/api/v1/logs", params={"job": "bad"}, headers=text, content=b"\xff\xfe\x00broken \x80 bytes\n")
    assert raw.status_code == 204
    absurd = client.post("/api/v1/jobs/bad/events", json={"kind": "exit", "code": 0, "time": 9e15})
    assert absurd.status_code == 400
    assert client.get("/livez").status_code == 200


def test_a_wrong_setting_stops_the_start(tmp_path: Path) -> None:
    """An unknown name, and an open door without tokens, end the process with one clear line."""
    for setting, told in (
        ({"DIAGNOSER_PRT": "1"}, "DIAGNOSER_PORT"),
        ({"DIAGNOSER_HOST": "0.0.0.0"}, "DIAGNOSER_TOKENS"),
    ):
        with service(tmp_path, **setting) as running, pytest.raises(AssertionError, match=told):
            running.start()
