"""A node's own log, as syslog-ng frames it, explains a failure that the job's log only shows."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.service import diagnosis_of, service, until
from tests.integration.shippers.failing_run import NODE
from tests.integration.shippers.programs import SYSLOG_NG_NODE, shipping
from tests.integration.shippers.test_restart import PERSON, accepted

TIMEOUT = (
    b"[2026-03-01 11:00:00] iteration        9/     900 | lm loss: 7.1000 |\n"
    b"[rank1]:[E301 11:10:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds "
    b"before timing out.\n"
)
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.skipif(bool(SYSLOG_NG_NODE.missing), reason=SYSLOG_NG_NODE.missing)
def test_a_kernels_message_of_an_agent_is_the_cause(tmp_path: Path) -> None:
    """With the token of an agent its word is the node's, and proves that the node is at fault."""
    logs, agent = tmp_path / "training", "token-of-an-agent"
    logs.mkdir()
    tokens = f"agent:{agent},admin:token-of-a-person"
    with (
        service(tmp_path, DIAGNOSER_TOKENS=tokens) as process,
        shipping(SYSLOG_NG_NODE, tmp_path / "shipper", f"127.0.0.1:{process.port}", agent, logs, NODE) as shipper,
    ):
        client = process.start()
        client.headers.update(PERSON)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        (logs / "node.log").write_text(f"<3>{now} {NODE} kernel: {XID}\n<30>{now} {NODE} sshd[9]: session opened\n")
        until(lambda: accepted(client) == 2, f"both lines arrive: {shipper.log()}", 60)
        client.post("/api/v1/jobs", json={"id": "j", "nodes": [NODE, "gpu-018"]}).raise_for_status()
        headers = {"Content-Type": "text/plain"}
        client.post("/api/v1/logs?job=j", content=TIMEOUT, headers=headers).raise_for_status()
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        found = diagnosis_of(client)
    assert (found["type"], found["root_cause"]["source"], found["root_cause"]["node"]) == ("gpu_lost", "kernel", NODE)
    assert [(proof["node"], proof["kind"]) for proof in found["proofs"]] == [(NODE, "node_log")]
