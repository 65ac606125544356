"""What the logs of nodes say of a failure: whom they blame, what they explain, and what proves it."""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser import compress
from diagnoser.model import (
    Diagnosis,
    Facts,
    Job,
    LineBlock,
    NodeActor,
    NodeEvent,
    NodeEventKind,
    NodeProof,
    ProofKind,
    Stream,
)
from diagnoser.model.taxonomy import Action, Category, FailureType
from tests import accuracy_bars
from tests.thorough import examples

T = FailureType
ANALYZER = accuracy_bars.load()
NOON = 1_772_362_800.0  # 2026-03-01 11:00:00 UTC
NODES = ("gpu-01", "gpu-02")
RANKS = {0: "gpu-01", 1: "gpu-02"}
STAMP = "Mar  1 10:59:30"

XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=0, GPU has fallen off the bus."
ECC = "NVRM: Xid (PCI:0000:4e:00): 48, pid=0, An uncorrectable double bit error (DBE) has been detected."
OOM = "Out of memory: Killed process 4711 (python3) total-vm:93939kB, anon-rss:83838kB, file-rss:0kB, shmem-rss:0kB"
LINK = "mlx5_core 0000:5e:00.0 ens3f0: Link down"
DISK = "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1612: inode #2: comm python3: reading directory lblock 0"
FATAL = (
    "mce: [Hardware Error]: Machine check events logged",
    "pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0",
    "thermal thermal_zone0: critical temperature reached (105 C), shutting down",
    "NVRM: Xid (PCI:0000:4e:00): 64, pid=0, Failed to persist remap information",
)
LINES = (XID, ECC, OOM, LINK, DISK)

MISMATCH = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/srv/a/train.py", line 9, in <module>\n'
    "[rank0]:     model.load_state_dict(state)\n"
    "[rank0]: RuntimeError: Error(s) in loading state_dict for GPTModel:\n"
    "[rank0]: \tsize mismatch for embed.weight: copying a param with shape torch.Size([8, 4]) from checkpoint\n"
)
TIMEOUT = (
    "[rank0]:[E301 11:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds "
    "before timing out.\n"
)
CUDA = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/srv/a/train.py", line 9, in <module>\n'
    "[rank0]:     loss.backward()\n"
    "[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
)
KILLED = "srun: error: gpu-02: task 1: Killed\n"
SYNTAX = '  File "/srv/a/train.py", line 9\n    def go(:\n           ^\nSyntaxError: invalid syntax\n'
ARGUMENT = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lr-decay\n"
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens.bin'\n"
COMPLETED = "Training completed\n"
UNEXPLAINED = {
    "mismatch": MISMATCH,
    "syntax": SYNTAX,
    "argument": ARGUMENT,
    "completed": COMPLETED,
}
"""Failures, and an end, that no fault of a machine explains."""


def facts(logs: Mapping[str, str], nodes: tuple[str, ...] = NODES, source: str = "kernel", job: str = "") -> Facts:
    parts = {node: [part(node, text, source)] for node, text in logs.items()}
    return Facts(Job(job, rank_nodes=RANKS), node_logs=parts, nodes=nodes)


def part(node: str, text: str, source: str) -> bytes:
    compressor = ANALYZER.compressor()
    times = (NOON - 30,) * (text.count("\n") + 1)
    compressor.feed(LineBlock(Stream(source, node), text.encode(), times=times))
    return compress.to_bytes(compressor.take())


def diagnose(log: str, known: Facts) -> Diagnosis:
    return ANALYZER.analyze(ANALYZER.read(io.BytesIO(log.encode())), known)


def summary(verdict: Diagnosis) -> tuple[FailureType, str | None, list[str]]:
    root = verdict.root_cause
    return verdict.type, root.node if root else None, [suspect.node for suspect in verdict.nodes]


@pytest.mark.parametrize("log", UNEXPLAINED.values(), ids=UNEXPLAINED)
@pytest.mark.parametrize("fault", LINES)
def test_no_fault_explains_what_the_script_did(log: str, fault: str) -> None:
    """A mismatch, a syntax error, an argument error and an end stay what they are whatever the nodes went through; the
    fault is told, and proves nothing."""
    alone = diagnose(log, facts({}))
    verdict = diagnose(log, facts({"gpu-02": fault}))
    assert (summary(verdict), verdict.confidence, verdict.recovery) == (
        summary(alone),
        alone.confidence,
        alone.recovery,
    )
    assert verdict.proofs == ()
    assert any("kernel log of gpu-02" in note and "not taken for the cause" in note for note in verdict.notes)


def test_a_mismatch_beside_a_lost_gpu_moves_no_node() -> None:
    """A checkpoint that does not fit, on gpu-01, and an Xid on gpu-02: a person is told, and no node suspected."""
    verdict = diagnose(MISMATCH, facts({"gpu-02": XID}))
    assert (verdict.type, verdict.nodes, verdict.recovery.action) == (
        T.MODEL_LOADING_ERROR,
        (),
        Action.NOTIFY_USER,
    )
    assert not verdict.grounds.node_named


def test_the_node_whose_log_it_is_takes_the_blame() -> None:
    """A timeout seen on gpu-01, an Xid in the kernel log of gpu-02: gpu-02 is the cause, with its only rank."""
    verdict = diagnose(TIMEOUT, facts({"gpu-02": XID}))
    assert summary(verdict) == (T.GPU_LOST, "gpu-02", ["gpu-02"])
    assert verdict.root_cause is not None and (verdict.root_cause.rank, verdict.root_cause.source) == (
        1,
        "kernel",
    )
    assert verdict.recovery.action is Action.CORDON_AND_RESUBMIT
    assert verdict.grounds.node_named and verdict.grounds.stable
    assert [symptom.type for symptom in verdict.symptoms] == [T.NCCL_TIMEOUT_ERROR]
    assert verdict.proofs == (NodeProof("gpu-02", ProofKind.NODE_LOG, XID, "kernel", 1, NOON - 30),)


def test_a_rank_is_told_only_where_one_runs() -> None:
    """Eight ranks on a node: which of them had the GPU, the kernel does not say."""
    known = facts({"gpu-02": XID})
    many = Facts(Job("", rank_nodes=dict.fromkeys(range(8), "gpu-02")), node_logs=known.node_logs, nodes=NODES)
    verdict = diagnose(TIMEOUT, many)
    assert verdict.root_cause is not None and (verdict.root_cause.node, verdict.root_cause.rank) == (
        "gpu-02",
        None,
    )


@pytest.mark.parametrize(
    ("log", "fault", "expected"),
    [
        (TIMEOUT, ECC, T.ECC_ERROR),
        (TIMEOUT, LINK, T.NETWORK_ERROR),
        (TIMEOUT, OOM, T.HOST_OUT_OF_MEMORY),
        (KILLED, XID, T.GPU_LOST),
        (KILLED, OOM, T.HOST_OUT_OF_MEMORY),
        (MISSING, DISK, T.FILESYSTEM_ERROR),
        ("step 3 loss 2.1\n", XID, T.GPU_LOST),
    ],
)
def test_what_a_fault_explains(log: str, fault: str, expected: FailureType) -> None:
    """A wait, a killed process, a missing file and a failure without a word each have faults that explain them."""
    assert summary(diagnose(log, facts({"gpu-02": fault}))) == (expected, "gpu-02", ["gpu-02"])


@pytest.mark.parametrize(("log", "fault"), [(KILLED, LINK), (KILLED, DISK), (MISSING, XID), (TIMEOUT, "disk quota")])
def test_what_a_fault_does_not_explain(log: str, fault: str) -> None:
    """A link does not kill a process, and a GPU loses no file."""
    assert summary(diagnose(log, facts({"gpu-02": fault}))) == summary(diagnose(log, facts({})))


def test_an_error_of_its_own_is_not_the_fault_of_another_node() -> None:
    """A CUDA error of the rank on gpu-01 follows from a fault of gpu-01, not from one of gpu-02."""
    beside = diagnose(CUDA, facts({"gpu-02": ECC}))
    assert (beside.nodes[0].node, beside.proofs) == ("gpu-01", ())
    own = diagnose(CUDA, facts({"gpu-01": ECC}))
    assert (summary(own), [proof.node for proof in own.proofs]) == ((T.ECC_ERROR, "gpu-01", ["gpu-01"]), ["gpu-01"])


def test_a_person_may_give_the_log_of_one_node_only() -> None:
    """A file of gpu-02 beside the log of a job that failed on gpu-01: the CUDA error stays gpu-01's. The service knows
    all nodes of a job, so a job that says it failed elsewhere does not hide the fault of its only node."""
    logs = {"gpu-02": ECC}
    assert diagnose(CUDA, facts(logs, ("gpu-02",))).proofs == ()
    assert [proof.node for proof in diagnose(CUDA, facts(logs, ("gpu-02",), job="j")).proofs] == ["gpu-02"]


@pytest.mark.parametrize(
    "said",
    [
        f"{STAMP} gpu-01 kernel: {XID}",
        "slurmctld: error: Nodes gpu-99 not responding, setting DOWN",
        "Node vic-9 is dead: no heartbeat for 300 s",
        "srun: error: Node failure on gpu-01",
    ],
)
def test_a_host_that_a_line_names_is_not_blamed(said: str) -> None:
    """A line of gpu-02's log about another host is no fault of gpu-02, nor a word against the other."""
    verdict = diagnose(TIMEOUT, facts({"gpu-02": said}, source="scheduler"))
    assert (verdict.type, verdict.nodes, verdict.proofs) == (T.NCCL_TIMEOUT_ERROR, (), ())


def test_an_alias_in_front_of_a_line_proves_nothing() -> None:
    """The host that syslog prints may be another name of the node: it is suspected, and must be proven otherwise."""
    verdict = diagnose(TIMEOUT, facts({"gpu-02": f"{STAMP} hgx-b kernel: {XID}"}))
    assert (summary(verdict), verdict.proofs) == ((T.GPU_LOST, "gpu-02", ["gpu-02"]), ())


def test_short_and_full_names_are_one_host() -> None:
    """The log names its node in full, the scheduler in short: it is the same node, under the scheduler's name."""
    verdict = diagnose(TIMEOUT, facts({"gpu-02": f"{STAMP} gpu-02.hpc.example kernel: {XID}"}))
    assert (summary(verdict)[1], len(verdict.proofs)) == ("gpu-02", 1)


def test_a_line_of_the_scheduler_proves_nothing() -> None:
    """It may say that the node is down, in the node's log or in the job's: the verdict reads it, and the node stays."""
    said = "slurmctld: error: Nodes gpu-02 not responding, setting DOWN"
    verdict = diagnose(TIMEOUT, facts({"gpu-02": said}, source="scheduler"))
    assert (verdict.type, verdict.proofs) == (T.NODE_FAILURE, ())


def test_an_agents_event_of_a_node_proves() -> None:
    """That the scheduler holds a node of the attempt for down explains that its ranks did not answer."""
    down = NodeEvent("c", "gpu-02", NodeEventKind.DOWN, NodeActor.DIAGNOSER, 90.0, "Not responding")
    verdict = diagnose(TIMEOUT, replace(facts({}), node_events=(down,), failed=(100.0, 100.0)))
    (proof,) = verdict.proofs
    assert (proof.node, proof.kind, proof.text) == ("gpu-02", ProofKind.SCHEDULER, "down: Not responding")


@pytest.mark.parametrize(
    "events",
    [
        [("gpu-09", NodeEventKind.DOWN, 90.0)],
        [("gpu-02", NodeEventKind.CORDONED, 90.0)],
        [("gpu-02", NodeEventKind.DOWN, 50.0), ("gpu-02", NodeEventKind.RESUMED, 60.0)],
    ],
    ids=["foreign", "cordoned", "back"],
)
def test_other_events_of_nodes_prove_nothing(events: list[tuple[str, NodeEventKind, float]]) -> None:
    """Not that of a node which the attempt never had, nor a cordon, nor of one that was back before the failure."""
    told = tuple(NodeEvent("c", node, kind, NodeActor.DIAGNOSER, time) for node, kind, time in events)
    assert diagnose(TIMEOUT, replace(facts({}), node_events=told, failed=(100.0, 100.0))).proofs == ()


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python3, Ch 00000048, MMU Fault: ENGINE GRAPHICS",
        "NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=python3, Ch 00000011",
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python3, Ch 00000010",
        OOM,
    ],
)
def test_faults_of_a_process_prove_nothing_against_its_node(line: str) -> None:
    """An application's page fault, the clean-up after it, and the OOM killer are no reason to take a node out."""
    assert diagnose(TIMEOUT, facts({"gpu-02": line})).proofs == ()


def test_two_faulty_nodes_are_both_suspected_and_none_is_named() -> None:
    """Both state a fault of their own: the check decides, and the proofs of both are kept."""
    verdict = diagnose(TIMEOUT, facts({"gpu-01": XID, "gpu-02": ECC}))
    assert {suspect.node for suspect in verdict.nodes} == set(NODES) == {proof.node for proof in verdict.proofs}
    assert (verdict.grounds.node_named, verdict.recovery.action) == (False, Action.CHECK_AND_RESUBMIT)


def test_a_link_lost_to_a_dead_node_is_a_symptom() -> None:
    """gpu-02 lost its GPU and gpu-01 its link: gpu-02 alone is suspected."""
    assert summary(diagnose(TIMEOUT, facts({"gpu-01": LINK, "gpu-02": XID}))) == (T.GPU_LOST, "gpu-02", ["gpu-02"])


def test_a_node_gives_few_proofs() -> None:
    """A kernel that states fault after fault gives five proofs; the next node has its own."""
    verdict = diagnose(TIMEOUT, facts({"gpu-01": ECC, "gpu-02": "\n".join((XID, ECC, LINK, DISK, *FATAL))}))
    assert Counter(proof.node for proof in verdict.proofs) == {"gpu-01": 1, "gpu-02": 5}


def test_logs_of_nodes_that_the_scheduler_did_not_give_are_not_read() -> None:
    """vic-9 has a lost GPU, and the job prints that it runs there: that is another tenant's node."""
    verdict = diagnose(f"rank 0 on node vic-9\n{TIMEOUT}", facts({"vic-9": XID}))
    assert (verdict.type, verdict.nodes, verdict.proofs, verdict.notes) == (T.NCCL_TIMEOUT_ERROR, (), (), ())


def test_it_is_said_that_no_agent_told_the_nodes() -> None:
    """A known job without nodes, and a failure that a node could explain: the missing logs are named; not for a
    failure that no node could explain, and not for a file."""
    why = "no node's own log was read: no agent reported which nodes the attempt ran on"
    assert why in diagnose(TIMEOUT, facts({}, nodes=(), job="j")).notes
    assert why not in diagnose(MISMATCH, facts({}, nodes=(), job="j")).notes
    assert why not in diagnose(TIMEOUT, facts({}, nodes=())).notes


def test_what_a_job_prints_hides_no_fault_of_its_node() -> None:
    """Lines in the job's log that a rule takes for an exception to the kernel's line do not touch that line."""
    noise = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module\nXid 79 test pattern, ignore\n"
    assert summary(diagnose(noise + TIMEOUT, facts({"gpu-02": XID})))[1] == "gpu-02"


_TEXTS = st.sampled_from(
    [
        *LINES,
        f"{STAMP} gpu-99 kernel: {XID}",
        f"{STAMP} gpu-01 kernel: {ECC}",
        "srun: error: Node failure on vic-9",
        "Node gpu-01 is dead: no heartbeat for 300 s",
        "usb 1-1: new device",
        "[rank7]: RuntimeError: CUDA error: unspecified launch failure",
    ]
)
_JOBS = st.sampled_from(
    [TIMEOUT, CUDA, KILLED, MISSING, *UNEXPLAINED.values(), "rank 0 on node vic-9\n" + TIMEOUT, "loss 2\n"]
)
_LOGS = st.dictionaries(st.sampled_from(["gpu-01", "gpu-02", "vic-9", "gpu-99"]), st.lists(_TEXTS, max_size=5))


@settings(deadline=None, max_examples=examples(150))
@given(_JOBS, _LOGS, st.sampled_from([NODES, ("gpu-01",), ()]))
def test_whatever_nodes_log_only_the_attempts_own_are_blamed(
    job: str, logs: dict[str, list[str]], nodes: tuple[str, ...]
) -> None:
    """For any job log and any node logs: proofs and suspects from nodes' lines are nodes of the attempt, each stated in
    its own log; a verdict either stays as it is without those logs, or its root is such a line."""
    written = {node: "\n".join(lines) for node, lines in logs.items() if lines}
    alone, verdict = diagnose(job, facts({}, nodes)), diagnose(job, facts(written, nodes))
    for proof in verdict.proofs:
        assert proof.node in nodes
        assert proof.text in logs[proof.node]
    root = verdict.root_cause
    if root is not None and root.source == "kernel":
        assert root.node in nodes and root.text in logs[root.node]
        assert all(suspect.node in nodes and written.get(suspect.node) for suspect in verdict.nodes)
        assert alone.category is not Category.NONE and job not in UNEXPLAINED.values()
    else:
        assert (summary(verdict), verdict.recovery, verdict.grounds) == (
            summary(alone),
            alone.recovery,
            alone.grounds,
        )
