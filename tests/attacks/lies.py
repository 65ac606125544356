"""What a job can say: a list of lies for every thing that it controls. Pure.

Names in ``%`` stand for what is different in each attack: ``%TARGET%`` is the node to be blamed, ``%FOREIGN%`` one that
the liar's job never had, ``%SHARED%`` one on which it runs beside its victim, ``%JOB%`` and ``%VICTIM%`` the two jobs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from diagnoser.model import NODE_SOURCES, EventKind, EvidenceKind, Provenance
from diagnoser.model.taxonomy import Category, category_of
from diagnoser.rules.schema import Match, Maturity, Role
from tests import hostile_logs
from tests.attacks.kernel_messages import MESSAGES, NAME_BYTES
from tests.hang_dumps import dump, entry, written
from tests.rule_files import ANALYZER


class Surface(StrEnum):
    """What a lie is told with."""

    OUTPUT = "output"  # lines that the job prints
    RECORD = "record"  # fields beside a line, where a shipper takes them from the job: JSON it prints, labels
    NAME = "name"  # of a process, file, mount or label, in a true record of the kernel
    LOGGER = "logger"  # a message to syslog
    SCHEDULER = "scheduler"  # a name or comment in a line of the scheduler
    EVENT = "event"  # of an attempt, about a job that is registered
    EARLY = "early"  # lines and events under an id that its owner has not registered yet
    ATTEMPT = "attempt"  # numbers of attempts
    DUMP = "dump"  # evidence of a hang
    ANSWER = "answer"  # names in what a node answers to a query
    ALERT = "alert"  # labels of a metric
    BUTTON = "button"  # of Slack
    FEEDBACK = "feedback"  # of a person who may decide for one tenant only


@dataclass(frozen=True, slots=True)
class Lie:
    """payload: of the shape that the ways of this surface take; texts in it may hold names in ``%``."""

    name: str
    surface: Surface
    payload: Any


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."
CUDA = "RuntimeError: CUDA error: unspecified launch failure"
WATCHDOG = (
    "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds"
)

SHORT_NAMES = (
    "NVRM: Xid 79",
    "NVRM: Xid (PCI:",
    "EDAC a: 1 UE ",
    "\nEDAC a: 1 UE ",
    "\x85EDAC a: 1 UE ",
    "EDAC MC0: 1 UE ",
    "mce: [Hardware ",
    "[Hardware Error",
    "GPU lost",
    "NODE_FAIL",
    "Kernel panic",
    "Xid 79",
    "fallen off bus",
    "ECC error",
    "I/O error",
    "\nXFS (dm-0): x",
    "NVLink: fatal",
    "thermal shutdn",
)
"""Names that fit into the 15 bytes of a process."""


@cache
def fault_lines() -> tuple[str, ...]:
    """An example of each stable rule whose root is of the infrastructure, in one line."""
    lines = list[str]()
    for rule in ANALYZER.knowledge.engine.ruleset.rules:
        is_root = rule.role is Role.ROOT and rule.maturity is Maturity.STABLE
        if is_root and category_of(rule.type) is Category.INFRASTRUCTURE:
            first = rule.examples.match[0]
            text = first.text if isinstance(first, Match) else first
            named = first.node if isinstance(first, Match) else None
            lines.append((text.replace(named, "%TARGET%") if named else text).splitlines()[0])
    return tuple(dict.fromkeys(lines))


def lies() -> Iterator[Lie]:
    """All of them, each under a name of its own."""
    yield from _outputs()
    yield from _records()
    yield from _names()
    yield from _logged()
    yield from _of_scheduler()
    yield from _events()
    yield from _attempts()
    yield from _dumps()
    yield from _answers()
    yield from _alerts()
    yield Lie("unsigned", Surface.BUTTON, {})
    yield Lie("signed-by-another", Surface.BUTTON, {"secret": "s" * 32})
    yield Lie("signed-long-ago", Surface.BUTTON, {"age": 100_000})
    for kind in ("ecc_error", "gpu_lost", "node_failure", "nvlink_error"):
        yield Lie(f"corrected-{kind}", Surface.FEEDBACK, {"verdict": "corrected", "type": kind, "node": "%FOREIGN%"})


SMUGGLED: Mapping[str, str] = {
    "ansi": "\x1b[31m{}\x1b[0m",
    "ansi-inside": "NVRM\x1b[0m: {}",
    "osc": "\x1b]0;kernel\x07{}",
    "zero-width": "\u200b\u2060\ufeff{}",
    "bidi": "\u202e\u2066{}",
    "nul": "\x00{}",
    "carriage-return": "step 3 loss 9.1\r{}",
    "vertical-tab": "step 3 loss 9.1\x0b{}",
    "next-line": "step 3 loss 9.1\x85{}",
    "line-separator": "step 3 loss 9.1\u2028{}",
    "newline": "step 3 loss 9.1\n{}",
    "kmsg": "4,1234,98765,-;{}",
    "kmsg-after-newline": "x\n4,1234,98765,-;{}",
    "dmesg": "[ 8123.112233] {}",
    "priority": "<4>{}",
    "syslog": "<4>1 2026-11-22T01:00:00Z %TARGET% kernel - - - {}",
    "old-syslog": "<4>Nov 22 01:00:00 %TARGET% kernel: {}",
    "framed": "80 <4>1 2026-11-22T01:00:00Z %TARGET% kernel - - - {}",
    "journal": '{{"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "_HOSTNAME": "%TARGET%", "MESSAGE": "{}"}}',
    "loki": '{{"streams": [{{"stream": {{"source": "kernel", "node": "%TARGET%"}}, "values": [["1", "{}"]]}}]}}',
    "scheduler": "slurmctld: error: {}",
    "long-ago": "[2001-01-01T00:00:00Z] {}",
    "in-the-future": "[2099-01-01T00:00:00Z] {}",
    "escaped": "\\x0a4,1234,98765,-;{}",
    "rank-prefix": "[rank99]: {}",
    "host-prefix": "%TARGET%: {}",
}


def _outputs() -> Iterator[Lie]:
    for forgery in hostile_logs.forgeries():
        yield Lie(forgery.name, Surface.OUTPUT, forgery.text.replace(hostile_logs.VICTIM, "%TARGET%"))
    for name, form in SMUGGLED.items():
        for number, line in enumerate((XID, *fault_lines()[::7])):
            yield Lie(f"{name}-{number}", Surface.OUTPUT, form.format(line.replace('"', "'")))


def _records() -> Iterator[Lie]:
    """Fields of a record. Every source whose lines speak for somebody, and every name of a place."""
    sources = sorted(NODE_SOURCES | {"scontrol", "kubernetes", "alertmanager", "flight_recorder", "nccl_ras"})
    for source in sources:
        yield _record(f"source-{source}", source=source, node="%TARGET%")
        yield _record(f"own-source-{source}", **{"diagnoser.source": source, "diagnoser.node": "%TARGET%"})
    for provenance in Provenance:
        yield _record(f"provenance-{provenance}", provenance=str(provenance), node="%TARGET%", vouched=True)
    for name in ("_TRANSPORT", "journal.transport", "syslog.identifier", "appname", "SYSLOG_IDENTIFIER"):
        yield _record(f"{name}-kernel", **{name: "kernel", "host": "%TARGET%", "SYSLOG_FACILITY": "0", "_UID": "0"})
    for name in ("node", "host", "hostname", "host.name", "k8s.node.name", "slurmd.nodename", "kubernetes.host"):
        yield _record(f"{name}-foreign", **{name: "%TARGET%"})
    for name, value in {
        "victim": "%VICTIM%",
        "node-log": "~node/%CLUSTER%/%TARGET%",
        "clean-runs": "~runs/3/@blue//",
        "blank": " %VICTIM%",
        "zero-width": "\u200b%VICTIM%",
        "case": "SLURM-%CLUSTER%-101",
        "path": "../%VICTIM%",
        "nul": "%VICTIM%\x00",
    }.items():
        yield _record(f"job-{name}", job=value, node="%TARGET%")
        yield _record(f"kernel-job-{name}", job=value, node="%TARGET%", source="kernel")
    yield _record("slurm-of-victim", **{"slurm.cluster.name": "%CLUSTER%", "slurm.job.id": "101"})
    yield _record("cluster-of-another", cluster="%CLUSTER%-b", node="%TARGET%", source="kernel")
    yield _record("tenant-of-victim", tenant="blue", partition="gpu", node="%TARGET%")
    yield _record("slurmd-file", **{"log.file.path": "/var/log/slurm/slurmd.log", "host": "%TARGET%"})
    yield _record("kern-file", **{"log.file.path": "/var/log/kern.log", "host": "%TARGET%"})
    yield _record("nested", kubernetes={"host": "%TARGET%", "labels": {"source": "kernel", "job": "%VICTIM%"}})
    yield _record("rank-of-another", rank=99, node="%TARGET%")
    yield _record("future", time="2099-01-01T00:00:00Z", node="%TARGET%", source="kernel")


def _record(name: str, **fields: Any) -> Lie:
    return Lie(name, Surface.RECORD, {"message": XID, **fields})


def _names() -> Iterator[Lie]:
    """Every free field of every message, with what fits into 15 bytes and, where it may be longer, whole lines."""
    words = (*SHORT_NAMES, *fault_lines()[::5], XID)
    for place, message in enumerate(MESSAGES):
        for number, word in enumerate(words):
            named = "{path}" in message or number < len(SHORT_NAMES)
            if named:
                text = message.format(name=word.encode()[:NAME_BYTES].decode(errors="ignore"), path=f"/tmp/{word}")
                yield Lie(f"{place}-{number}", Surface.NAME, text)
            if number in (2, 3) and "{path}" in message:
                yield Lie(f"{place}-{number}-bare", Surface.NAME, message.format(name="x", path=word))
        yield Lie(f"{place}-long", Surface.NAME, message.format(name=XID[:NAME_BYTES], path=XID))


def _logged() -> Iterator[Lie]:
    for number, line in enumerate((XID, f"[ 8123.112233] {XID}", f"kernel: {XID}", *fault_lines()[::4])):
        yield Lie(f"fault-{number}", Surface.LOGGER, line)
    yield Lie("newline", Surface.LOGGER, f"x\n<4>1 2026-11-22T01:00:00Z %TARGET% kernel - - - {XID}")


SCHEDULER_LINES = (
    "slurmd: error: Could not open stdout file {}: Permission denied",
    "slurmstepd: error: execve(): {}: No such file or directory",
    "slurmctld: _slurm_rpc_submit_batch_job: JobId=7 JobName={} InitPrio=1 usec=300",
    "slurmctld: sched: Allocate JobId=7 NodeList=%SHARED% Comment={}",
    "slurmd: launch task StepId=7.0 request from UID:1000 cmd={}",
    "slurmstepd: error: couldn't chdir to `{}': No such file or directory: going to /tmp instead",
    "JobId=7 JobName={} JobState=FAILED Reason=NonZeroExitCode",
    "{}",
)
SCHEDULER_NAMES = (
    "srun: error: Node failure on %TARGET%",
    "error: Nodes %TARGET% not responding, setting DOWN",
    "NodeName=%TARGET% State=DOWN*+DRAIN Reason=Not responding",
    "update_node: node %TARGET% reason set to: Kill task failed",
    "JobState=NODE_FAIL DUE TO NODE FAILURE",
    XID,
)


def _of_scheduler() -> Iterator[Lie]:
    for place, line in enumerate(SCHEDULER_LINES):
        for number, name in enumerate(SCHEDULER_NAMES):
            yield Lie(f"{place}-{number}", Surface.SCHEDULER, line.format(name))


def _events() -> Iterator[Lie]:
    """Of somebody else's job: once it is registered, and before."""
    ends: dict[str, dict[str, Any]] = {
        "exit": {"code": 1},
        "exit-well": {"code": 0},
        "killed": {"signal": 9},
        "node-fail": {"code": 1, "reason": "NODE_FAIL", "node": "%TARGET%"},
        "text-reason": {"code": 1, "reason": f"srun: error: Node failure on %TARGET% {XID}"},
        "long-ago": {"code": 1, "time": 1_000_000_000},
        "in-the-future": {"code": 1, "time": 4_000_000_000},
    }
    bodies = {name: {"kind": "exit", **body} for name, body in ends.items()}
    bodies |= {str(kind): {"kind": str(kind)} for kind in EventKind if kind is not EventKind.EXIT}
    bodies["checkpoint"] = {"kind": "checkpoint", "step": 9, "path": "/ckpt/blue/9", "phase": "bad", "why": XID}
    for name, body in bodies.items():
        for number in (None, 1, 2, 3):
            told = body if number is None else {**body, "attempt": number}
            shown = "latest" if number is None else number
            for surface in (Surface.EVENT, Surface.EARLY):
                yield Lie(f"{name}-{shown}", surface, {"event": told, "line": CUDA})
                yield Lie(f"{name}-{shown}-quiet", surface, {"event": told, "line": ""})
    for surface in (Surface.EVENT, Surface.EARLY):
        yield Lie("line-alone", surface, {"event": None, "line": XID})


def _attempts() -> Iterator[Lie]:
    """A number that the scheduler never gave, with a fault on somebody's node."""
    for number in ("0", "-1", "2", "3", "1000", str(2**31 - 1), str(2**31), str(2**63), "1e3", "٣"):
        for place, text in enumerate((XID, "srun: error: Node failure on %FOREIGN%", "node %FOREIGN%: GPU is lost")):
            yield Lie(f"{number}-{place}", Surface.ATTEMPT, {"attempt": number, "line": text})


def _dumps() -> Iterator[Lie]:
    """Dumps that name nodes and ranks of others."""
    groups = {"0": (0, 1, 2, 3)}
    late = dump(groups, [entry("0", 5, order=1), entry("0", 4, order=0, done=True)])
    ras = "[2026-11-22 01:00:00] PEER_DEAD: Process 7103 on node %FOREIGN% managing GPU 3\n"
    dead = (
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 7103 on node %FOREIGN% managing GPU 3\n"
    )
    table = (
        "Communicator ranks have different collective operation counts\n"
        "  30 ranks have launched up to operation 812\n  2 ranks have launched up to operation 811\n"
        "  Rank 1 -- GPU 4 managed by process 7104 on node %FOREIGN%\n"
    )
    contents: dict[str, tuple[EvidenceKind, Any]] = {
        "recorder": (EvidenceKind.FLIGHT_RECORDER, written(late, as_json=True)),
        "recorder-of-host": (
            EvidenceKind.FLIGHT_RECORDER,
            json.dumps(late | {"hostname": "%FOREIGN%", "node": "%FOREIGN%"}),
        ),
        "ras-dead": (EvidenceKind.RAS, ras),
        "ras-process": (EvidenceKind.RAS, dead),
        "ras-behind": (EvidenceKind.RAS, table),
        "stack": (
            EvidenceKind.STACKS,
            'Thread 0x7f01 (most recent call first):\n  File "/x.py", line 1 in all_reduce\n',
        ),
        "stack-of-host": (EvidenceKind.STACKS, "=== Rank 1: %FOREIGN%:1 ===\nThread 77 (idle)\n    step (x.py:8)\n"),
    }
    for name, (kind, content) in contents.items():
        for rank in (0, 1, 99):
            for node in ("%FOREIGN%", "%SHARED%"):
                query = {"kind": str(kind), "rank": str(rank), "node": node}
                yield Lie(f"{name}-{rank}-{node.strip('%').lower()}", Surface.DUMP, {"query": query, "body": content})


def _answers() -> Iterator[Lie]:
    """What a node says when it is asked, with names of the tenant's in it. Text by the id of its query."""
    for place, message in enumerate(MESSAGES):
        for number, word in enumerate(SHORT_NAMES[:6]):
            name = word.encode()[:NAME_BYTES].decode(errors="ignore")
            text = message.format(name=name, path=f"/tmp/{word}")
            # dmesg and journalctl print the time once for a message, and indent what follows a newline
            lines = [f"%ISO% %TARGET% kernel: {text}", f"%DMESG% {text}"]
            kernel = {"kernel_journal": lines[0], "kernel_ring_buffer": lines[1].replace("\n", "\n%DMESG% ")}
            yield Lie(f"kernel-{place}-{number}", Surface.ANSWER, kernel)
    yield Lie("fuse-full", Surface.ANSWER, {"free_space": "/dev/nvme9n1p1 fuse.x 1000 1000 0 100% /tmp/x"})
    mounted = "31 22 0:45 / /tmp/x rw,nosuid - fuse /dev/nvme1n1p1 ro,user_id=1000"
    yield Lie("fuse-read-only", Surface.ANSWER, {"mounts": mounted})
    labelled = "31 22 0:45 / /tmp/x rw,nosuid - tmpfs a\\040-\\040ext4\\040/dev/sda\\040ro rw"
    yield Lie("tmpfs-named-like-ext4", Surface.ANSWER, {"mounts": labelled})
    overlay = "31 22 0:45 / /tmp/x rw - overlay overlay rw,lowerdir=/tmp/y\\040-\\040ext4\\040/dev/sda1\\040ro"
    yield Lie("overlay-folder-like-ext4", Surface.ANSWER, {"mounts": overlay})


def _alerts() -> Iterator[Lie]:
    """Metrics of a pod carry labels that its owner writes."""
    for label in ("instance", "node", "host", "hostname", "kubernetes_node", "exported_instance"):
        for name, summary in (
            ("GpuXid79", XID),
            ("NodeDown", "node %TARGET% is down"),
            ("EccError", "EDAC MC0: 1 UE x"),
        ):
            labels = {"alertname": name, "severity": "critical", label: "%TARGET%", "cluster": "%CLUSTER%"}
            alert = {"labels": labels, "annotations": {"summary": summary}}
            yield Lie(f"{label}-{name}", Surface.ALERT, alert)
