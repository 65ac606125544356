"""What dumps of the ranks add to a verdict, and what they never lead to."""

import io
import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from diagnoser.diagnosis import hang_evidence, pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.localize.hang_detection import Silence
from diagnoser.model import (
    Attempt,
    AttemptKey,
    Diagnosis,
    Event,
    EventKind,
    Evidence,
    EvidenceKind,
    Facts,
    HangFindings,
    HangSuspect,
    Job,
    Mode,
    PlanReason,
    PlanState,
    Provenance,
    RuntimeFile,
    Stage,
    SuspectKind,
)
from diagnoser.model.taxonomy import Action, FailureType, Outcome
from diagnoser.model.work import Claim
from diagnoser.recovery import trust
from tests import accuracy_bars
from tests.hang_dumps import dump, entry, written
from tests.proofs import node_log
from tests.serving import plan_commands

RANKS = range(4)
NODES = {rank: f"gpu-{rank:03d}" for rank in RANKS}
JOB = Job("j", rank_nodes=NODES, nodes=tuple(NODES.values()))
START = 1_772_359_200.0  # 10:00:00 in the log
TIMEOUT = (
    "[rank0]:[E301 10:11:00.123456789 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600005 milliseconds "
    "before timing out.\n"
)
KEY_ERROR = "Traceback (most recent call last):\n  File \"/srv/app/train.py\", line 80, in <module>\nKeyError: 'mask'\n"


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def steps(last: int) -> str:
    """One a second, from 10:00:00 on."""
    return "".join(
        f"[2026-03-01 10:{n // 60:02d}:{n % 60:02d}] iteration {n:8d}/     900 | lm loss: {9 - n / 200:.4f} |\n"
        for n in range(1, last + 1)
    )


def dumps(received: float = 0.0, provenance: Provenance = Provenance.RUNTIME, late: int = 2) -> tuple[RuntimeFile, ...]:
    """Of four ranks, three of which stand in number 6, which the rank ``late`` has not called."""
    done = entry("0", 5, order=0, done=True)
    waits = [done, entry("0", 6, order=1)]
    return tuple(_file(rank, [done] if rank == late else waits, received, provenance) for rank in RANKS)


def mismatched() -> tuple[RuntimeFile, ...]:
    """Rank 2 calls a broadcast where the others call an all-reduce."""
    names = {rank: "nccl:broadcast" if rank == 2 else "nccl:all_reduce" for rank in RANKS}
    return tuple(_file(rank, [entry("0", 6, order=1, name=name)]) for rank, name in names.items())


def _file(
    rank: int, entries: list[dict[str, object]], received: float = 0.0, by: Provenance = Provenance.RUNTIME
) -> RuntimeFile:
    content = written(dump({"0": RANKS}, entries))
    return RuntimeFile(EvidenceKind.FLIGHT_RECORDER, content, rank, received=received, provenance=by)


def diagnose(
    analyzer: LogAnalyzer,
    log: str,
    files: Iterable[RuntimeFile],
    *events: Event,
    now: float | None = None,
    last_line: float = 0.0,
) -> Diagnosis:
    facts = Facts(JOB, 1, events, runtime=tuple(files), last_line=last_line)
    quiet = None if now is None else now - last_line
    return pipeline.diagnose(analyzer.evidence_of(log.encode()), facts, analyzer.knowledge, quiet)


def test_a_silent_run_with_waiting_ranks_hangs_where_they_wait(analyzer: LogAnalyzer) -> None:
    """Rank, node and suspects come from the dumps, the cause is cited from the flight recorder, and nothing is left to
    ask a model."""
    found = diagnose(analyzer, steps(60), dumps(START + 160), now=START + 170, last_line=START + 60)
    assert (found.outcome, found.type, found.decided_by) == (
        Outcome.HUNG,
        FailureType.NCCL_TIMEOUT_ERROR,
        "heuristic:waiting_ranks",
    )
    root = found.root_cause
    assert root is not None
    assert (root.line, root.rank, root.node, root.source) == (0, 2, "gpu-002", "flight_recorder")
    assert root.provenance is Provenance.RUNTIME
    assert root.text.startswith("rank 2 on gpu-002: 3 ranks wait for it")
    assert [suspect.node for suspect in found.nodes] == ["gpu-002"]
    assert (found.recovery.action, found.doubts) == (Action.CHECK_AND_RESUBMIT, ())
    assert found.hang is not None
    assert (found.hang.headline, found.hang.files) == ("Rank 2 on gpu-002 holds up 3 ranks", 4)


def test_a_short_silence_is_confirmed_by_the_dumps() -> None:
    """Only where there is a silence, and a suspect that is sure enough."""
    quiet = Silence(20.0, 1.0, Stage.TRAIN, confirmed=False)
    sure = hang_evidence.analyze(Evidence(), Facts(JOB), dumps())
    nobody = hang_evidence.analyze(Evidence(), Facts(JOB), dumps(late=-1))
    assert hang_evidence.confirmed(quiet, sure) == replace(quiet, confirmed=True)
    assert hang_evidence.confirmed(quiet, nobody) == quiet
    assert hang_evidence.confirmed(quiet, None) == quiet
    assert hang_evidence.confirmed(None, sure) is None


@pytest.mark.parametrize(("program", "longest"), [("cicc", 1800.0), ("tokenizer", 3600.0), ("gc_collect", 600.0)])
def test_a_rank_at_work_explains_a_long_silence(program: str, longest: float) -> None:
    """As long as work of its kind may take: then a rank that loops for ever is a hang as well."""
    work = json.dumps({"activity": {"2": {"cores": 0.9, "bytes": 0, "program": program}}}).encode()
    files = [*dumps(), RuntimeFile(EvidenceKind.ACTIVITY, work, node="gpu-002", provenance=Provenance.RUNTIME)]
    hang = hang_evidence.analyze(Evidence(), Facts(JOB), files)
    silence = Silence(400.0, 1.0, Stage.TRAIN, confirmed=True)
    assert hang_evidence.confirmed(silence, hang) == replace(silence, confirmed=False)
    assert hang_evidence.confirmed(replace(silence, seconds=longest), hang) == replace(silence, seconds=longest)


def test_a_rank_that_worked_until_the_others_gave_up_accuses_no_node(analyzer: LogAnalyzer) -> None:
    """The timeout names the rank for which the others waited and what it did; its machine did what it was told to."""
    work = b'{"activity": {"2": {"cores": 0.9, "bytes": 0, "program": "cicc"}}}'
    files = [*dumps(), RuntimeFile(EvidenceKind.ACTIVITY, work, node="gpu-002", provenance=Provenance.RUNTIME)]
    found = diagnose(analyzer, steps(60) + TIMEOUT, files)
    assert found.root_cause is not None
    assert (found.root_cause.rank, found.nodes) == (2, ())
    assert found.hang is not None
    assert found.hang.suspects[0].why.startswith("compiles (0.9 cores in use, most by cicc)")


def test_a_stage_of_unknown_length_is_not_cut_short_by_a_rank_that_may_be_at_work() -> None:
    """The others wait for a rank that evaluates alone as for one that sleeps; only a bug of the script shows itself."""
    quiet = Silence(600.0, 0.0, Stage.EVAL, confirmed=False, known=False)
    waits = hang_evidence.analyze(Evidence(), Facts(JOB), dumps())
    bug = hang_evidence.analyze(Evidence(), Facts(JOB), mismatched())
    assert hang_evidence.confirmed(quiet, waits) == quiet
    assert hang_evidence.confirmed(quiet, bug) == replace(quiet, confirmed=True)
    assert hang_evidence.confirmed(replace(quiet, known=True), waits) == replace(quiet, known=True, confirmed=True)


def test_the_dump_of_a_rank_in_its_newest_launch_counts() -> None:
    """An elastic restart moved every rank to another node; the dumps of the launch before say more."""
    more = entry("0", 4, order=0, done=True)
    before = [replace(file, node=f"old{file.rank}") for file in dumps(100.0, late=1)]
    now = [_file(rank, [more] if rank == 3 else [more, entry("0", 5, order=1)], 200.0) for rank in RANKS]
    after = [replace(file, node=f"new{file.rank}") for file in now]
    hang = hang_evidence.analyze(Evidence(), Facts(Job("j")), hang_evidence.vouched_first([*after, *before]))
    assert hang is not None
    assert [(suspect.rank, suspect.node) for suspect in hang.suspects] == [(3, "new3")]


@pytest.mark.parametrize("zone", [0.0, 7200.0, -19_800.0])
def test_dumps_of_an_earlier_silence_do_not_count(analyzer: LogAnalyzer, zone: float) -> None:
    """A step after them shows that it is over, also where the log's clock is that of another zone."""
    last = START + 60 + zone
    old, new = dumps(last - 20), dumps(last + 100)
    live = {"now": START + 170, "last_line": last}
    assert diagnose(analyzer, steps(60), old, **live).hang is None
    assert diagnose(analyzer, steps(60), new, **live).hang is not None
    assert diagnose(analyzer, steps(60) + TIMEOUT, old, last_line=last + 600).hang is None
    assert diagnose(analyzer, steps(60) + TIMEOUT, new, last_line=last + 600).hang is not None


def test_a_run_that_is_open_and_not_silent_only_waits(analyzer: LogAnalyzer) -> None:
    """In a step, too, some ranks wait for others: what the dumps show is told, and decides nothing."""
    found = diagnose(analyzer, steps(60), dumps(START + 61), now=START + 62, last_line=START + 60)
    assert (found.outcome, found.type) == (Outcome.UNKNOWN, FailureType.UNKNOWN)
    assert found.hang is not None


def test_a_log_that_just_stops_hangs_where_ranks_wait(analyzer: LogAnalyzer) -> None:
    """Of a file, whose dumps nobody received; not where nobody is suspected, and not where the run ended some way."""
    found = diagnose(analyzer, steps(60), dumps())
    assert (found.outcome, found.type) == (Outcome.HUNG, FailureType.NCCL_TIMEOUT_ERROR)
    nobody = diagnose(analyzer, steps(60), dumps(late=-1))
    assert (nobody.outcome, nobody.type) == (Outcome.UNKNOWN, FailureType.UNKNOWN)
    assert nobody.hang is not None
    assert "the network or a GPU" in nobody.hang.notes[0]
    ended = diagnose(analyzer, steps(60), dumps(), Event(EventKind.EXIT, START + 99, code=0))
    assert ended.type is FailureType.COMPLETED


def test_a_watchdog_timeout_names_the_rank_that_did_not_come(analyzer: LogAnalyzer) -> None:
    """The line stays the root, and its rank, node and GPU are no longer those of the rank that printed it."""
    alone = diagnose(analyzer, steps(60) + TIMEOUT, ())
    found = diagnose(analyzer, steps(60) + TIMEOUT, dumps())
    assert alone.root_cause is not None and found.root_cause is not None
    assert (found.type, found.decided_by) == (alone.type, alone.decided_by)
    assert (found.root_cause.line, found.root_cause.text) == (alone.root_cause.line, alone.root_cause.text)
    assert (found.root_cause.rank, found.root_cause.node, found.root_cause.gpu) == (2, "gpu-002", None)
    assert found.evidence[-1].source == "flight_recorder"


def test_a_deeper_cause_in_the_log_stands(analyzer: LogAnalyzer) -> None:
    """An exception explains the waiting of the others: the verdict is the same with dumps, which it also shows."""
    alone = diagnose(analyzer, steps(60) + KEY_ERROR, ())
    found = diagnose(analyzer, steps(60) + KEY_ERROR, dumps())
    assert found.hang is not None
    assert replace(found, hang=None) == alone


@pytest.mark.parametrize("log", [steps(60), steps(60) + TIMEOUT])
def test_another_collective_than_the_rest_is_for_the_author(analyzer: LogAnalyzer, log: str) -> None:
    """No node is suspected, and nothing is launched again, whatever the rule of the watchdog's line asks for."""
    found = diagnose(analyzer, log, mismatched())
    assert (found.type, found.decided_by) == (FailureType.RUNTIME_ERROR, "heuristic:mismatched_collectives")
    assert (found.nodes, found.recovery.action) == ((), Action.NOTIFY_USER)
    assert found.hang is not None
    assert found.hang.headline == "Rank 2 on gpu-002 calls another collective than the others"


def test_what_the_job_itself_sent_is_only_its_own_word(analyzer: LogAnalyzer) -> None:
    """One dump of its credential makes all of it so; where an agent took the dump of that rank, it does not count."""
    forged = dumps(provenance=Provenance.JOB, late=0)
    found = diagnose(analyzer, steps(60), (*dumps()[1:], *forged[:1]))
    assert found.root_cause is not None and found.root_cause.provenance is Provenance.JOB
    assert {line.provenance for line in found.evidence} == {Provenance.JOB}
    both = diagnose(analyzer, steps(60), (*dumps(), *forged))
    assert both.root_cause is not None
    assert (both.root_cause.rank, both.root_cause.provenance) == (2, Provenance.RUNTIME)
    assert both == diagnose(analyzer, steps(60), dumps())


def test_dumps_that_cannot_be_read_are_counted_out(analyzer: LogAnalyzer) -> None:
    """They neither stop the diagnosis nor count as read."""
    broken = RuntimeFile(EvidenceKind.FLIGHT_RECORDER, b"\x80\x02garbage", 0)
    found = diagnose(analyzer, steps(60), (broken, *dumps()[1:]))
    assert found.hang is not None
    assert (found.hang.files, found.hang.suspects[0].rank) == (3, 2)


def test_nodes_that_the_log_suspects_come_after_those_of_the_dumps(analyzer: LogAnalyzer) -> None:
    """Of two suspected ranks of one node the surer one stands for it; without a node the log's own suspects stay."""
    by_ras = HangSuspect(2, SuspectKind.DEAD, "cannot be reached", 0.7, "gpu-002")
    other = replace(by_ras, rank=3, score=0.6)
    (suspect,) = hang_evidence._suspect_nodes((by_ras, other), ())
    assert (suspect.node, suspect.score, suspect.why) == ("gpu-002", 0.7, "rank 2 cannot be reached")
    assert hang_evidence._suspect_nodes((replace(by_ras, node=""),), (suspect,)) == (suspect,)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE, Mode.ACT])
@pytest.mark.parametrize("provenance", [Provenance.JOB, Provenance.RUNTIME])
def test_dumps_alone_neither_cordon_nor_act(analyzer: LogAnalyzer, mode: Mode, provenance: Provenance) -> None:
    """Whatever the site's mode: no node is named by the plan, it has no proof, and at most a person may start it."""
    found = diagnose(analyzer, steps(60), dumps(START + 160, provenance), now=START + 170, last_line=START + 60)
    assert (found.type, found.proofs) == (FailureType.NCCL_TIMEOUT_ERROR, ())
    attempt = Attempt(AttemptKey("j"), opened=START, last_line=START + 60, nodes=tuple(NODES.values()))
    plan = plan_commands(mode=mode).planner.decide(Claim(attempt, JOB, ""), found, START + 171).plan
    assert plan is not None
    assert (plan.action, plan.nodes) == (Action.CHECK_AND_RESUBMIT, ())
    assert plan.state is (PlanState.ADVISED if mode is Mode.OBSERVE else PlanState.WAITING)
    cordon = replace(plan, action=Action.CORDON_AND_RESUBMIT, nodes=("gpu-002",))
    objection = trust.why_not_removable(cordon, attempt.nodes)
    assert objection and objection[0] is PlanReason.UNPROVEN
    assert trust.why_not_removable(replace(cordon, proofs=node_log("gpu-002")), attempt.nodes) is None


def test_a_proof_in_a_nodes_own_log_wins(analyzer: LogAnalyzer) -> None:
    """A GPU of another node is lost: that is the verdict, with its proof, and the dumps are only shown."""
    kernel = b"Mar  1 10:01:05 gpu-003 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=0, GPU has fallen off the bus.\n"
    parts = _node_log(analyzer, "gpu-003", kernel)
    facts = Facts(
        JOB, node_logs={"gpu-003": [parts]}, nodes=JOB.nodes, runtime=dumps(), failed=(START + 70, START + 70)
    )
    found = analyzer.diagnose_with_node_logs(analyzer.evidence_of(steps(60).encode()), facts)
    assert (found.type, found.nodes[0].node) == (FailureType.GPU_LOST, "gpu-003")
    assert [proof.node for proof in found.proofs] == ["gpu-003"]
    assert found.hang is not None and found.hang.suspects[0].rank == 2


def _node_log(analyzer: LogAnalyzer, node: str, text: bytes) -> bytes:
    return analyzer.node_log(node, io.BytesIO(text), START)


@pytest.mark.parametrize(
    ("suspects", "waiting", "headline"),
    [
        ((), 0, ""),
        (((7, SuspectKind.BEHIND, "n1"),), 1, "Rank 7 on n1 holds up 1 rank"),
        (((12, SuspectKind.BEHIND, ""), (14, SuspectKind.BEHIND, "")), 14, "Ranks 12 and 14 hold up 14 ranks"),
        (((3, SuspectKind.DEAD, ""), (4, SuspectKind.BEHIND, "")), 0, "Rank 3 holds up the others"),
        (((3, SuspectKind.DEADLOCK, ""),), 0, "Rank 3 calls its groups in another order than the others"),
    ],
)
def test_a_headline_says_who_holds_up_how_many(
    suspects: tuple[tuple[int, SuspectKind, str], ...], waiting: int, headline: str
) -> None:
    """Ranks of the first suspect's kind, with their nodes where known."""
    listed = tuple(HangSuspect(rank, kind, "", 0.9, node) for rank, kind, node in suspects)
    assert HangFindings(listed, waiting=waiting).headline == headline
