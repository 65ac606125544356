"""Two replicas on one real PostgreSQL and Redis: any of them may take any batch, and one may die."""

from pathlib import Path

import pytest

from tests.contract import redis_server
from tests.e2e.service import (
    DEMO_LOG,
    SECRET,
    diagnosis_of,
    node_fault,
    receiver,
    send,
    service,
    until,
    verified,
)
from tests.ports import free_port

LINES = DEMO_LOG.read_bytes().splitlines(keepends=True)

pytestmark = [
    pytest.mark.xdist_group("postgresql"),
    pytest.mark.skipif(not redis_server.present(), reason=redis_server.MISSING),
]


def test_a_log_dealt_over_two_replicas_gives_one_verdict_and_one_webhook(
    tmp_path: Path, postgresql_database: str
) -> None:
    """Batches go to both in turn, some to both, one replica is killed; the other finishes: one plan, sent once."""
    left, right = tmp_path / "left", tmp_path / "right"
    left.mkdir()
    right.mkdir()
    port = free_port()
    with receiver() as hook, redis_server.redis(port, tmp_path):
        settings = {
            "DIAGNOSER_DATABASE_URL": postgresql_database,
            "DIAGNOSER_REDIS_URL": f"redis://127.0.0.1:{port}/0",
            "DIAGNOSER_WEBHOOK_URL": hook.url,
            "DIAGNOSER_WEBHOOK_SECRET": SECRET,
            "DIAGNOSER_ALLOW_PRIVATE_TARGETS": "true",
            "DIAGNOSER_RECOVERY_MODE": "act",
            "DIAGNOSER_CLAIM_LEASE_SECONDS": "3",
        }
        with service(left, **settings) as first, service(right, **settings) as second:
            one, two = first.start(), second.start()
            one.post("/api/v1/jobs", json={"id": "j", "nodes": ["gpu-011", "gpu-017"]}).raise_for_status()
            for start in range(0, 200, 20):
                send(one if start % 40 else two, LINES, start, start + 20)
            send(two, LINES, 180, 220)
            first.kill()
            send(two, LINES, 200, len(LINES))
            node_fault(two, "gpu-017")
            two.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
            found = diagnosis_of(two, lines=len(LINES))
            until(lambda: hook.requests, "the recovery webhook")
            two.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
            assert second.stop() == 0
        assert (found["type"], found["root_cause"]["rank"], found["root_cause"]["node"]) == ("ecc_error", 5, "gpu-017")
        assert found["compression"]["lines_in"] == len(LINES)
        assert len(verified(hook)) == 1
