"""What cordons in mode act, through the real service: the kernel's own record does, a name in one does not."""

import time
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import SECRET, diagnosis_of, receiver, service, until, verified
from tests.e2e.test_node_logs import TEXT, TIMEOUT, XID, end

LIE = "NVRM: Xid (PCI:0000:4e:00): 79"
KERNEL = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel"}
LIES: dict[str, dict[str, str]] = {
    "illegal": {**KERNEL, "MESSAGE": "traps: NVRM: Xid 79[991] trap invalid opcode ip:7f2c sp:7ffd in a[7f+10]"},
    "segfault": {**KERNEL, "MESSAGE": f"{LIE[:15]}[991]: segfault at 0 ip 7f2c sp 7ffd error 4 in {LIE}[7f2c+1000]"},
    "memory": {**KERNEL, "MESSAGE": "Out of memory: Killed process 991 (NVRM: Xid 79) total-vm:9kB, anon-rss:8kB"},
    "path": {**KERNEL, "MESSAGE": f"process '/tmp/{LIE}, GPU has fallen off the bus.' started with executable stack"},
    "newline": {**KERNEL, "MESSAGE": f"process '/tmp/a\n{XID}' started with executable stack"},
    "logger": {"_TRANSPORT": "syslog", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": XID},
    "kmsg": {**KERNEL, "SYSLOG_FACILITY": "1", "MESSAGE": XID},
    "program": {"source": "syslog", "MESSAGE": XID},
}  # fmt: skip


def failed(client: httpx.Client, job: str, record: dict[str, str]) -> dict[str, Any]:
    """The diagnosis of a job of two nodes that waited for a rank, after one of its nodes has logged the record."""
    node = f"{job}-n1"
    entry = {"_HOSTNAME": node, "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)), **record}
    client.post("/api/v1/logs", json=[entry]).raise_for_status()
    client.post("/api/v1/jobs", json={"id": job, "nodes": [node, f"{job}-n2"]}).raise_for_status()
    client.post("/api/v1/logs", params={"job": job}, content=TIMEOUT, headers=TEXT).raise_for_status()
    end(client, job)
    return diagnosis_of(client, job)


def test_only_the_kernels_own_record_cordons(tmp_path: Path) -> None:
    """The true Xid is sent as a cordon of its node; a process, path or logger that says the same leads to none."""
    with receiver() as hook:
        settings = {
            "DIAGNOSER_WEBHOOK_URL": hook.url,
            "DIAGNOSER_WEBHOOK_SECRET": SECRET,
            "DIAGNOSER_ALLOW_PRIVATE_TARGETS": "true",
            "DIAGNOSER_RECOVERY_MODE": "act",
        }
        with service(tmp_path, **settings) as running:
            client = running.start()
            lied = {job: failed(client, job, record) for job, record in LIES.items()}
            true = failed(client, "true", {**KERNEL, "MESSAGE": XID})
            until(lambda: any(body["data"]["nodes"] for body in verified(hook)), "the cordon is sent")
            sent = [(body["data"]["action"], body["data"]["nodes"]) for body in verified(hook)]
    assert {job: found["proofs"] for job, found in lied.items()} == {job: [] for job in LIES}
    assert [(action, nodes) for action, nodes in sent if nodes] == [("cordon_and_resubmit", ["true-n1"])]
    assert "cordon_and_resubmit" not in {
        found["recovery"]["action"] for job, found in lied.items() if job in ("illegal", "memory", "path")
    }
    assert [(proof["node"], proof["kind"]) for proof in true["proofs"]] == [("true-n1", "node_log")]
    assert lied["logger"]["type"] == "gpu_lost", "what anybody may write is a suspicion"
