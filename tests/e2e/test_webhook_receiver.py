"""The example receiver, as its own process, against what the service really sends."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from standardwebhooks import Webhook

from diagnoser.adapters.http import create_client
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.model import OutboxMessage
from diagnoser.model.errors import DeliveryError
from tests.contract.records import outbox_message
from tests.e2e.service import DEMO_LOG, SECRET, send, service, until
from tests.ports import free_port

RECEIVER = Path(__file__).resolve().parents[2] / "deploy" / "webhook" / "receiver.py"
ACT = """#!/bin/sh
# Fails as long as there is a file "broken"; else keeps the plan that it was given.
[ -e broken ] && exit 1
cat >> acted.jsonl; echo >> acted.jsonl
"""


@contextmanager
def receiving(folder: Path) -> Iterator[str]:
    """The address of a receiver that runs in this folder."""
    (folder / "act.sh").write_text(ACT)
    (folder / "act.sh").chmod(0o755)
    port = free_port()
    command = [sys.executable, str(RECEIVER), str(port), "./act.sh"]
    process = subprocess.Popen(command, cwd=folder, env={"DIAGNOSER_WEBHOOK_SECRET": SECRET}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(port), "the receiver listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=120)


def listens(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}").status_code == 501
    except httpx.TransportError:
        return False


def acted(folder: Path) -> list[str]:
    path = folder / "acted.jsonl"
    return [json.loads(line)["key"] for line in path.read_text().splitlines()] if path.exists() else []


def told(key: str) -> OutboxMessage:
    body = json.dumps({"type": "recovery.plan", "data": {"key": key, "action": "resubmit"}}).encode()
    return replace(outbox_message(key), body=body)


async def test_the_service_s_own_plan_is_carried_out_once(tmp_path: Path) -> None:
    """From a failing job to the command; refused at first, so that it is sent again."""
    inside = tmp_path / "receiver"
    inside.mkdir()
    (inside / "broken").touch()
    with receiving(inside) as url:
        settings = {
            "DIAGNOSER_WEBHOOK_URL": url,
            "DIAGNOSER_WEBHOOK_SECRET": SECRET,
            "DIAGNOSER_ALLOW_PRIVATE_TARGETS": "true",
            "DIAGNOSER_RECOVERY_MODE": "act",
        }
        with service(tmp_path, **settings) as found:
            client = found.start()
            lines = DEMO_LOG.read_bytes().splitlines(keepends=True)
            nodes = {str(rank): f"gpu-{rank:03}" for rank in range(8)}
            client.post("/api/v1/jobs", json={"id": "j", "rank_nodes": nodes}).raise_for_status()
            send(client, lines, 0, len(lines))
            client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
            until(lambda: "HTTP 503" in found.log(), "the first try is refused")
            (inside / "broken").unlink()
            until(lambda: acted(inside), "the plan is carried out")
            plan = client.get("/api/v1/plans?job=j").json()["items"][0]
        given = json.loads((inside / "acted.jsonl").read_text())
        assert (given["plan"], given["action"], given["nodes"]) == (plan["id"], plan["action"], plan["nodes"])
        assert given["rollback"] is None
        assert datetime.fromisoformat(given["expires"]) > datetime.now(UTC)


async def test_repeated_forged_and_old_deliveries_do_nothing(tmp_path: Path) -> None:
    """A delivery that comes again counts once, also after a restart; one without our secret, or replayed later, not."""
    with receiving(tmp_path) as url:
        async with create_client() as client:
            sender = RecoveryWebhook(url, SECRET, client, time.time, allow_private=True)
            await sender.send(told("plan-1"))
            await sender.send(told("plan-1"))
            assert acted(tmp_path) == ["plan-1"]
            forger = RecoveryWebhook(url, "whsec_" + "Zm9yZ2Vk" * 4, client, time.time, allow_private=True)
            assert await refusal(forger) == "HTTP 401"
            late = RecoveryWebhook(url, SECRET, client, lambda: time.time() - 3600, allow_private=True)
            assert await refusal(late) == "HTTP 401"
            early = RecoveryWebhook(url, SECRET, client, lambda: time.time() + 3600, allow_private=True)
            assert await refusal(early) == "HTTP 401"
            at = datetime.now(UTC) - timedelta(seconds=1)
            signature = Webhook(SECRET).sign("plan-1", at, told("plan-1").body.decode())
            stolen = {
                "webhook-id": "plan-1",
                "webhook-timestamp": str(int(at.timestamp())),
                "webhook-signature": signature,
            }
            assert (await client.post(url, content=told("plan-2").body, headers=stolen)).status_code == 401
    with receiving(tmp_path) as url:
        async with create_client() as client:
            sender = RecoveryWebhook(url, SECRET, client, time.time, allow_private=True)
            await sender.send(told("plan-1"))
            await sender.send(told("plan-3"))
    assert acted(tmp_path) == ["plan-1", "plan-3"]


async def refusal(sender: RecoveryWebhook) -> str:
    """What it says to a plan that must not be carried out."""
    try:
        await sender.send(told("plan-2"))
    except DeliveryError as error:
        assert error.permanent
        return str(error)
    return "taken"


def test_the_example_stays_short() -> None:
    """Thirty lines of code, imports and blank lines aside."""
    code = RECEIVER.read_text().split('"""')[2].splitlines()
    assert len([line for line in code if line.strip() and not line.startswith(("import", "from"))]) <= 30
