"""A run that stood still and was then ended stays a hang."""

from dataclasses import replace

import pytest

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, EarlierHang, Event, EventKind, Facts, HangFindings, Job, RootCause
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from tests import accuracy_bars

T = FailureType
HUNG = Diagnosis(
    Outcome.HUNG,
    Category.INFRASTRUCTURE,
    T.NCCL_TIMEOUT_ERROR,
    0.7,
    "heuristic:waiting_ranks",
    root_cause=RootCause(0, "rank 2 sleeps", 2, "gpu-002", source="stack_dump"),
    notes=("Nothing has advanced for 21 s.",),
    hang=HangFindings(files=4),
    step=30,
)
STEPS = "".join(f"iteration {n}/900 | lm loss: {9 - n / 200:.4f} |\n" for n in range(1, 31))
INTERRUPTED = (
    'Traceback (most recent call last):\n  File "/srv/app/train.py", line 80, in <module>\nKeyboardInterrupt\n'
)
TORCHRUN = (
    'Traceback (most recent call last):\n  File "/opt/torch/distributed/run.py", line 1028, in main\n'
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 312 got signal: 2\n"
)
WATCHDOG = (
    "[rank0]:[E301 10:11:00.123456789 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600005 milliseconds "
    "before timing out.\n"
)
OWN_ERROR = "Traceback (most recent call last):\n  File \"/srv/app/data.py\", line 8, in load\nKeyError: 'shard-7'\n"
MORE_STEPS = "iteration 31/900 | lm loss: 8.8450 |\n"
CTRL_C = Event(EventKind.EXIT, 100.0, code=1, reason="SIGINT")
FAILED = Event(EventKind.EXIT, 100.0, code=1)


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def ended(analyzer: LogAnalyzer, log: str, event: Event, hang: Diagnosis | None = HUNG) -> Diagnosis:
    earlier = EarlierHang(hang, 50.0) if hang else None
    facts = Facts(Job("j"), 1, (event,), failed=(100.0, 100.0), hang=earlier)
    return analyzer.diagnose_with_node_logs(analyzer.evidence_of(log.encode()), facts)


@pytest.mark.parametrize(
    ("log", "event", "who"),
    [
        (INTERRUPTED, CTRL_C, "SIGINT"),
        (TORCHRUN, CTRL_C, "SIGINT"),
        ("", Event(EventKind.EXIT, 100.0, signal=15), "SIGTERM"),
        ("", Event(EventKind.EXIT, 100.0, code=137), "SIGKILL"),
        ("", Event(EventKind.CANCELLED, 100.0, reason="CANCELLED"), "a cancellation (CANCELLED)"),
        (TORCHRUN, Event(EventKind.EXIT, 100.0, code=1, reason="TIMEOUT"), "its time limit"),
        ("", Event(EventKind.PREEMPTED, 100.0), "a preemption"),
    ],
)
def test_whoever_ended_it_stands_beside(analyzer: LogAnalyzer, log: str, event: Event, who: str) -> None:
    """The rank that held up the others stays the cause, and who ended the run is said; what a person ended is not
    launched again for it."""
    found, alone = ended(analyzer, STEPS + log, event), ended(analyzer, STEPS + log, event, hang=None)
    assert alone.outcome is not Outcome.HUNG
    assert (found.outcome, found.type, found.root_cause, found.hang) == (
        Outcome.HUNG,
        HUNG.type,
        HUNG.root_cause,
        HUNG.hang,
    )
    assert found.notes[:2] == (f"It stood still, and was then ended by {who}.", *HUNG.notes)
    assert found.recovery == alone.recovery


def test_a_watchdog_s_line_keeps_the_rank(analyzer: LogAnalyzer) -> None:
    """Its own line names who waited, and the earlier verdict for whom."""
    found = ended(analyzer, STEPS + WATCHDOG, FAILED)
    assert (found.outcome, found.type) == (Outcome.HUNG, T.NCCL_TIMEOUT_ERROR)
    assert "watchdog" in found.notes[0]


@pytest.mark.parametrize(
    ("log", "event", "outcome"),
    [
        (MORE_STEPS + INTERRUPTED, CTRL_C, Outcome.CANCELLED),
        (OWN_ERROR, FAILED, Outcome.FAILED),
        ("", Event(EventKind.EXIT, 100.0, code=0), Outcome.COMPLETED),
    ],
    ids=["it went on", "a rank woke up and failed", "it ended well"],
)
def test_a_run_that_went_on_is_judged_by_its_end(
    analyzer: LogAnalyzer, log: str, event: Event, outcome: Outcome
) -> None:
    """Whatever it was called before."""
    assert ended(analyzer, STEPS + log, event) == ended(analyzer, STEPS + log, event, hang=None)
    assert ended(analyzer, STEPS + log, event).outcome is outcome


def test_a_verdict_made_again_says_it_once(analyzer: LogAnalyzer) -> None:
    """Late lines make it anew, and the one before is then the hang that was ended."""
    first = ended(analyzer, STEPS, CTRL_C)
    assert ended(analyzer, STEPS, CTRL_C, hang=replace(first, step=30)).notes == first.notes


def test_nobody_relaunches_what_a_person_ended(analyzer: LogAnalyzer) -> None:
    """The advice is that of the end."""
    assert ended(analyzer, STEPS, Event(EventKind.CANCELLED, 100.0)).recovery.action is Action.NONE
