"""From a log to a diagnosis, with the rules, the policy and the compressor that ship."""

from dataclasses import replace

import pytest

from diagnoser import compress
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import (
    CheckpointPhase,
    Diagnosis,
    Event,
    EventKind,
    Facts,
    Job,
    LineBlock,
    Rollback,
    Stream,
)
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.rules import examples
from tests import accuracy_bars

T = FailureType


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def diagnose(
    analyzer: LogAnalyzer, log: str, *events: Event, now: float | None = None, job: Job | None = None
) -> Diagnosis:
    facts = Facts(job or Job("j"), 1, events)
    return pipeline.diagnose(analyzer.evidence_of(log.encode()), facts, analyzer.knowledge, now)


def steps(first: int, last: int, total: int = 900) -> str:
    return "".join(
        f"[2026-03-01 10:{n // 60:02d}:{n % 60:02d}] iteration {n:8d}/{total:8d} | lm loss: {9 - n / 200:.4f} |\n"
        for n in range(first, last)
    )


TRACE = """Traceback (most recent call last):
  File "/srv/app/train.py", line 80, in <module>
    main()
  File "/srv/app/data.py", line 12, in sample
    return row["mask"]
KeyError: 'mask'
"""


def test_a_script_error_is_for_its_author(analyzer: LogAnalyzer) -> None:
    """A traceback names type, line and action, and the mitigation tells a person what to do."""
    found = diagnose(analyzer, steps(1, 20) + TRACE)
    assert (found.outcome, found.category, found.type) == (Outcome.FAILED, Category.SCRIPT, T.KEY_ERROR)
    assert found.root_cause is not None and found.root_cause.text == "KeyError: 'mask'"
    assert found.recovery.action is Action.NOTIFY_USER and found.mitigation
    assert found.nodes == ()


def test_the_first_cause_is_found_among_lost_peers(analyzer: LogAnalyzer) -> None:
    """One rank's fault is the root, what the other ranks print about lost peers are symptoms."""
    own = "".join(f"2: [rank2]: {line}\n" for line in TRACE.splitlines())
    lost = "Connection closed by peer [10.4.0.9]:777. This is typically caused by a remote worker crashing."
    gloo = f"RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] {lost}"
    peers = "".join(
        f"{rank}: [rank{rank}]: {line}\n"
        for rank in (0, 1, 3)
        for line in ("Traceback (most recent call last):", '  File "/srv/app/t.py", line 9, in step', f"{gloo}")
    )
    exits = "srun: error: n31: task 2: Exited with exit code 1\nsrun: error: n30: tasks 0-1: Terminated\n"
    found = diagnose(analyzer, peers + own + exits)
    assert found.type is T.KEY_ERROR
    assert found.root_cause is not None and (found.root_cause.rank, found.root_cause.node) == (2, "n31")
    assert {symptom.line for symptom in found.symptoms} >= {3, 6, 9}


def test_only_symptoms_say_so(analyzer: LogAnalyzer) -> None:
    """A watchdog timeout with nothing deeper is that, names no node, and asks for a check."""
    found = diagnose(
        analyzer,
        "[rank1]:[E301 10:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds "
        "before timing out.\n",
    )
    assert (found.type, found.nodes) == (T.NCCL_TIMEOUT_ERROR, ())
    assert found.recovery.action is Action.CHECK_AND_RESUBMIT


def test_text_about_memory_in_a_healthy_run_is_nothing(analyzer: LogAnalyzer) -> None:
    """A user's print of "CUDA out of memory" while training goes on is no failure."""
    found = diagnose(
        analyzer, steps(1, 40) + "tip: if you see CUDA out of memory, lower the batch size\n" + steps(40, 90)
    )
    assert found.type is not T.OUT_OF_MEMORY_ERROR
    assert found.recovery.action is not Action.CORDON_AND_RESUBMIT


def test_a_survived_error_is_not_the_root(analyzer: LogAnalyzer) -> None:
    """An exception that was logged and survived is rejected with the reason; the later one is the root."""
    found = diagnose(analyzer, TRACE.replace("mask", "first") + steps(1, 60) + TRACE)
    assert found.root_cause is not None and found.root_cause.text == "KeyError: 'mask'"
    assert any("'first'" in other.text and "went on" in other.why for other in found.rejected)


CAUGHT = """no lock yet
Traceback (most recent call last):
  File "/srv/fit.py", line 80, in take
    return held["lock"]
KeyError: 'lock'
"""


def _rank(rank: int, first: int, last: int) -> str:
    return "".join(f"[rank{rank}]: turn {n} gap {3 / n:.4f}\n" for n in range(first, last))


def test_turns_of_its_rank_show_that_a_process_survived_an_exception(analyzer: LogAnalyzer) -> None:
    """Those of other ranks, which share its loop, do not."""
    before, after = ("".join(_rank(rank, *turns) for rank in range(3)) for turns in ((1, 30), (30, 50)))
    caught = "".join(f"[rank1]: {line}" for line in CAUGHT.splitlines(keepends=True))
    of_others = "".join(_rank(rank, 30, 50) for rank in (0, 2))
    found = [diagnose(analyzer, before + caught + rest).type for rest in (after, of_others)]
    assert [kind is T.KEY_ERROR for kind in found] == [False, True]


def test_two_attempts_in_one_log_diagnose_the_last(analyzer: LogAnalyzer) -> None:
    """A preempted attempt, appended to by one that fails: the last failure is the root, the first is linked."""
    preempted = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-01T10:02:00 DUE TO PREEMPTION ***\n"
    found = diagnose(analyzer, steps(1, 30) + preempted + steps(20, 60) + TRACE)
    assert found.type is T.KEY_ERROR
    assert any("went on" in other.why or "earlier attempt" in other.why for other in found.rejected)


def test_a_log_cut_inside_a_traceback_is_read_as_far_as_it_goes(analyzer: LogAnalyzer) -> None:
    """A traceback without its end gives no wrong certainty and no error."""
    found = diagnose(analyzer, TRACE[: TRACE.index("KeyError")])
    assert found.type is T.UNKNOWN or found.confidence < 0.9


@pytest.mark.parametrize(
    "log", ["", "\n\n", "\x00\x01\x02\x7f" * 500, "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")]
)
def test_nothing_to_read_is_unknown(analyzer: LogAnalyzer, log: str) -> None:
    """An empty and a binary file give an honest ``unknown``."""
    found = diagnose(analyzer, log)
    assert (found.outcome, found.category, found.type) == (Outcome.UNKNOWN, Category.UNKNOWN, T.UNKNOWN)
    assert found.root_cause is None and found.confidence < 0.5


def test_exit_code_zero_means_completed(analyzer: LogAnalyzer) -> None:
    """When the launcher reports success, scary lines are only that."""
    found = diagnose(analyzer, steps(1, 30) + TRACE, Event(EventKind.EXIT, 9.0, code=0))
    assert (found.outcome, found.type) == (Outcome.COMPLETED, T.COMPLETED)
    assert found.recovery.action is Action.NONE


def test_a_signal_names_a_silent_death(analyzer: LogAnalyzer) -> None:
    """A process that prints nothing and dies of SIGSEGV is a segmentation fault by its exit event."""
    found = diagnose(analyzer, steps(1, 30), Event(EventKind.EXIT, 9.0, signal=11))
    assert (found.type, found.decided_by) == (T.SEGMENTATION_FAULT, "heuristic:exit_signal")


def with_floor(analyzer: LogAnalyzer, floor: float) -> LogAnalyzer:
    calibration = analyzer.knowledge.calibration.model_copy(update={"floor": floor})
    return replace(analyzer, knowledge=replace(analyzer.knowledge, calibration=calibration))


def test_a_type_below_the_confidence_floor_is_not_named(analyzer: LogAnalyzer) -> None:
    """The line is shown and the type is unknown; at the floor itself the type is named."""
    named = diagnose(analyzer, steps(1, 20) + TRACE)
    kept = diagnose(with_floor(analyzer, named.confidence), steps(1, 20) + TRACE)
    unknown = diagnose(with_floor(analyzer, named.confidence + 0.001), steps(1, 20) + TRACE)
    assert (kept.type, kept.confidence) == (T.KEY_ERROR, named.confidence)
    assert (unknown.type, unknown.category) == (T.UNKNOWN, Category.UNKNOWN)
    assert unknown.confidence == named.confidence
    assert unknown.root_cause == named.root_cause


def test_unknown_is_stated_with_no_more_than_the_floor(analyzer: LogAnalyzer) -> None:
    """However often such a verdict was right, "unknown" names nothing that could be right."""
    calibration = analyzer.knowledge.calibration.model_copy(update={"floor": 0.15, "default": 0.9, "kinds": {}})
    sure = replace(analyzer, knowledge=replace(analyzer.knowledge, calibration=calibration))
    found = diagnose(sure, "one line of a log\n")
    assert (found.type, found.confidence) == (T.UNKNOWN, 0.15)


def test_the_confidence_floor_is_for_failures_only(analyzer: LogAnalyzer) -> None:
    """An end that is no failure keeps its name however unsure it is."""
    found = diagnose(with_floor(analyzer, 1.0), steps(1, 20), Event(EventKind.EXIT, 100.0, code=0))
    assert found.type is T.COMPLETED


def test_silence_of_an_open_attempt_is_a_hang(analyzer: LogAnalyzer) -> None:
    """Minutes without a step at one-second steps: the attempt hangs, though nothing says why."""
    evidence = analyzer.evidence_of(steps(1, 60).encode())
    timed = tuple(replace(point, time=1000.0 + (point.step or 0)) for point in evidence.progress)
    found = pipeline.diagnose(replace(evidence, progress=timed), Facts(), analyzer.knowledge, quiet=1000.0)
    assert (found.outcome, found.decided_by) == (Outcome.HUNG, "heuristic:no_progress")


def test_a_broken_loss_is_divergence_though_the_run_completes(analyzer: LogAnalyzer) -> None:
    """A loss that becomes NaN and stays so is the verdict, with the step and the batches to skip."""
    broken = "".join(f"iter {n}: loss nan, time 100.00ms, mfu 1.00%\n" for n in range(20, 40))
    calm = "".join(f"iter {n}: loss {6 - n / 10:.4f}, time 100.00ms, mfu 1.00%\n" for n in range(1, 20))
    found = diagnose(analyzer, calm + broken)
    assert (found.type, found.recovery.action) == (T.LOSS_DIVERGENCE, Action.ROLLBACK_AND_RESUBMIT)
    assert found.root_cause is not None and "iter 20" in found.root_cause.text


def test_registration_places_the_rank(analyzer: LogAnalyzer) -> None:
    """The node of a rank comes from the job's registration when the log does not show it."""
    own = "".join(f"[rank5]: {line}\n" for line in TRACE.splitlines())
    found = diagnose(analyzer, own, job=Job("j", rank_nodes={5: "n77"}))
    assert found.root_cause is not None and found.root_cause.node == "n77"


def test_a_named_broken_node_is_cordoned(analyzer: LogAnalyzer) -> None:
    """A hardware fault whose line names the node leads to a cordon of that node."""
    kernel = "Mar  1 10:00:00 n44 kernel: [88.1] NVRM: Xid (PCI:0000:4e:00): 79, pid=0, GPU has fallen off the bus.\n"
    found = diagnose(analyzer, kernel)
    assert (found.type, found.nodes[0].node) == (T.GPU_LOST, "n44")
    assert found.recovery.action is Action.CORDON_AND_RESUBMIT


def test_the_kernel_log_of_a_node_joins_the_job(analyzer: LogAnalyzer) -> None:
    """A timeout in the job's log and a lost GPU in a node's kernel log are one story, told on that node."""
    watchdog = (
        "[rank1]:[E301 10:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=81, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600033 milliseconds before timing out.\n"
    )
    kernel = "[88.1] NVRM: Xid (PCI:0000:4e:00): 79, pid=0, GPU has fallen off the bus.\n"
    compressor = analyzer.compressor()
    compressor.feed(LineBlock(Stream(), watchdog.encode(), times=(2000.0,)))
    compressor.feed(LineBlock(Stream("kernel", "n44"), kernel.encode(), times=(1500.0,)))
    evidence = compress.digest(compressor.take()).evidence
    found = pipeline.diagnose(evidence, Facts(), analyzer.knowledge)
    assert (found.type, found.nodes[0].node) == (T.GPU_LOST, "n44")
    assert found.root_cause is not None and found.root_cause.source == "kernel"
    assert [symptom.type for symptom in found.symptoms] == [T.NCCL_TIMEOUT_ERROR]


def test_the_silent_rank_is_found_among_hundreds(analyzer: LogAnalyzer) -> None:
    """Of 256 ranks all but one time out; few of their lines are kept, and still the silent rank and its node show."""
    announced = [f"{rank}: rank {rank} on node n{rank // 8:02d} (pid {7000 + rank})" for rank in range(256)]
    timeout = (
        "RuntimeError: [/src/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation"
    )
    said = [
        f"{rank}: [rank{rank}]: {line}"
        for rank in range(256)
        if rank != 77
        for line in ("Traceback (most recent call last):", '  File "/srv/app/t.py", line 9, in step', timeout)
    ]
    found = diagnose(analyzer, "\n".join([*announced, *said]) + "\n")
    assert found.type is T.NCCL_TIMEOUT_ERROR
    assert [suspect.node for suspect in found.nodes] == ["n09"]
    assert found.root_cause is not None and found.root_cause.rank == 77


def test_the_diagnosis_names_its_rule_set(analyzer: LogAnalyzer) -> None:
    """Every verdict carries the hash of the rules that made it."""
    assert diagnose(analyzer, TRACE).ruleset == analyzer.knowledge.engine.ruleset.hash


def test_every_shipped_example_holds(analyzer: LogAnalyzer) -> None:
    """All rules hit their matches, spare their counter-examples and are reached through their own anchors."""
    assert [str(fault) for fault in examples.check(analyzer.knowledge.engine, analyzer.evidence_of)] == []


def test_a_damaged_checkpoint_leads_back_to_the_newest_verified_one(analyzer: LogAnalyzer) -> None:
    """One of an earlier launch too, but not the one that the error names; nothing where none is verified."""

    def saved(step: int) -> Event:
        return Event(EventKind.CHECKPOINT, 1.0, step=step, path=f"/ckpt/step_{step}", phase=CheckpointPhase.VERIFIED)

    log = """Traceback (most recent call last):
  File "/code/run.py", line 71, in load_checkpoint
    state = torch.load(path)
EOFError: Ran out of input in /ckpt/step_300/model.pt
"""
    facts = Facts(Job("j"), 2, earlier_checkpoints=((saved(200), saved(300)),))
    found = pipeline.diagnose(analyzer.evidence_of(log.encode()), facts, analyzer.knowledge)
    assert (found.type, found.recovery.action) == (T.MODEL_LOADING_ERROR, Action.ROLLBACK_AND_RESUBMIT)
    assert found.rollback == Rollback("/ckpt/step_200", 200, verified=True)
    assert diagnose(analyzer, log).rollback is None
