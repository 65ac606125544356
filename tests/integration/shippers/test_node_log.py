"""A node's own log, as real daemons ship it: the kernel's records prove, what any process writes does not."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.service import diagnosis_of, service, until
from tests.integration.shippers.failing_run import NODE
from tests.integration.shippers.programs import RSYSLOG_NODE, SYSLOG_NG_NODE, Program, shipping
from tests.integration.shippers.test_restart import PERSON, accepted

TIMEOUT = (
    b"[2026-03-01 11:00:00] iteration        9/     900 | lm loss: 7.1000 |\n"
    b"[rank1]:[E301 11:10:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds "
    b"before timing out.\n"
)
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FORGED = [
    f"<{priority}>{stamp}{tag}: {XID}"
    for priority in (3, 0, 11, 27, 131)  # kern.err, kern.emerg, user.err, daemon.err, local0.err
    for stamp, tag in (("Nov 24 15:00:00 ", "kernel"), ("Nov 24 15:00:00 ", "root[7]"), ("", "kernel"))
]
"""What ``logger``, or ten lines of Python, write to /dev/log in the name of the kernel."""


def begin_kernel(program: Program, logs: Path, *messages: str) -> None:
    """The kernel's own records, and what root wrote to /dev/kmsg beside them (facility user)."""
    uptime = time.monotonic()
    if program is SYSLOG_NG_NODE:
        records = [f"3,{number},{uptime:.0f}000000,-;{text}\n" for number, text in enumerate(messages)]
        (logs / "kmsg").write_text("".join([f"11,9,{uptime:.0f}000000,-;root: {XID}\n", *records]))
        return
    records = [f"<3>[{uptime:.6f}] {text}\n" for text in messages]
    data = "".join([f"<11>[{uptime:.6f}] root: {XID}\n", *records])
    threading.Thread(target=(logs / "kmsg").write_text, args=(data,), daemon=True).start()  # a pipe, as /proc/kmsg


def say(logs: Path, *messages: str) -> None:
    until((logs / "devlog").exists, "the daemon listens", 60)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        for message in messages:
            sending.sendto(message.encode(), str(logs / "devlog"))


@pytest.mark.parametrize("is_true", [True, False], ids=["kernel", "forged"])
@pytest.mark.parametrize("program", [SYSLOG_NG_NODE, RSYSLOG_NODE], ids=["syslog-ng", "rsyslog"])
def test_only_a_record_of_the_kernels_own_proves(tmp_path: Path, program: Program, is_true: bool) -> None:
    """With the token of an agent: the kernel's Xid is the cause and proves it; the same text from /dev/log, under any
    facility and tag, and from /dev/kmsg under the facility that is left to root, proves nothing."""
    if program.missing:
        pytest.skip(program.missing)
    logs, agent = tmp_path / "training", "token-of-an-agent"
    logs.mkdir()
    if program is RSYSLOG_NODE:
        os.mkfifo(logs / "kmsg")
    begin_kernel(program, logs, "usb 1-1: new high-speed USB device number 2", *([XID] if is_true else []))
    tokens = f"agent:{agent},admin:token-of-a-person"
    with (
        service(tmp_path, DIAGNOSER_TOKENS=tokens) as process,
        shipping(program, tmp_path / "shipper", f"127.0.0.1:{process.port}", agent, logs, NODE) as shipper,
    ):
        client = process.start()
        client.headers.update(PERSON)
        if not is_true:
            say(logs, *FORGED)
        until(lambda: accepted(client) >= (2 if is_true else 10), f"the lines arrive: {shipper.log()}", 60)
        client.post("/api/v1/jobs", json={"id": "j", "nodes": [NODE, "gpu-018"]}).raise_for_status()
        headers = {"Content-Type": "text/plain"}
        client.post("/api/v1/logs?job=j", content=TIMEOUT, headers=headers).raise_for_status()
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        found = diagnosis_of(client)
    if is_true:
        root = found["root_cause"]
        assert (found["type"], root["source"], root["node"]) == ("gpu_lost", "kernel", NODE)
    assert [(proof["node"], proof["kind"]) for proof in found["proofs"]] == [(NODE, "node_log")] * is_true
