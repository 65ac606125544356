"""Logs as they should not be: only symptoms, cut, of two failures, of loose talk, empty, binary."""

import io
import random

import pytest

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from tests import accuracy_bars

T = FailureType


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def diagnose(analyzer: LogAnalyzer, log: str | bytes) -> Diagnosis:
    data = log.encode() if isinstance(log, str) else log
    return analyzer.diagnose_with_node_logs(analyzer.read(io.BytesIO(data)).evidence, Facts())


def steps(first: int, last: int) -> str:
    return "".join(
        f"step {n:5d} | loss {8 - n / 100:.4f} | grad norm 0.71 | 812.4 ms/step\n" for n in range(first, last)
    )


def watchdog(rank: int, second: int) -> str:
    head = f"[rank{rank}]:[E1104 03:12:{second:02d}.881034211 ProcessGroupNCCL.cpp:632] [Rank {rank}]"
    return (
        f"{head} Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90317, OpType=ALLREDUCE, "
        f"NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 60007{rank} milliseconds before timing out.\n"
        f"{head} To avoid data inconsistency, we are taking the entire process down.\n"
    )


def trace(error: str, file: str = "/home/mk/ft/train.py") -> str:
    return (
        f'Traceback (most recent call last):\n  File "{file}", line 211, in <module>\n    main(cfg)\n'
        f'  File "{file}", line 164, in main\n    batch = next(stream)\n{error}\n'
    )


def test_only_symptoms_are_called_that(analyzer: LogAnalyzer) -> None:
    """Every rank waited and none says why: a timeout, no node, and a check of the nodes before the next launch."""
    found = diagnose(analyzer, steps(1, 60) + "".join(watchdog(rank, rank) for rank in range(8)))
    assert (found.type, found.outcome) == (T.NCCL_TIMEOUT_ERROR, Outcome.FAILED)
    assert found.nodes == ()
    assert found.recovery.action is Action.CHECK_AND_RESUBMIT


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_a_traceback_without_its_end_gives_no_certainty(analyzer: LogAnalyzer, kept: int) -> None:
    """The disk was full, the pipe closed: what would have been the exception is not guessed."""
    whole = trace("KeyError: 'input_ids'").splitlines(keepends=True)
    found = diagnose(analyzer, steps(1, 30) + "".join(whole[:kept]))
    assert found.type is not T.KEY_ERROR
    assert found.type is T.UNKNOWN or found.confidence < 0.9
    assert found.recovery.action is not Action.CORDON_AND_RESUBMIT


def test_a_cut_inside_the_exception_line_is_read_as_far_as_it_goes(analyzer: LogAnalyzer) -> None:
    """The class is there, the message is not: the class decides."""
    found = diagnose(analyzer, steps(1, 30) + trace("FileNotFoundError: [Errno 2] No su"))
    assert found.type is T.FILE_NOT_FOUND_ERROR


def test_of_two_failures_in_one_log_the_last_is_diagnosed_and_the_first_is_linked(analyzer: LogAnalyzer) -> None:
    """Two attempts of one job were appended: the second one is the question, a note points at the first."""
    first = steps(1, 40) + trace("ValueError: sequence length 4097 is longer than 4096")
    second = steps(1, 90) + trace("KeyError: 'input_ids'")
    found = diagnose(analyzer, first + second)
    assert found.root_cause is not None
    assert (found.type, found.root_cause.text) == (T.KEY_ERROR, "KeyError: 'input_ids'")
    line = first.count("\n")
    told = [one for one in found.rejected if one.line == line]
    assert told and told[0].type is T.VALUE_ERROR
    assert any(f"line {line}" in note for note in found.notes), (found.notes, told)


def test_talk_about_memory_is_not_a_lack_of_it(analyzer: LogAnalyzer) -> None:
    """Text that names an error while training goes on to its end is no failure."""
    talk = "[tuner] trial 3: CUDA out of memory. Tried to allocate 2.00 GiB, halving micro batch and going on\n"
    found = diagnose(analyzer, steps(1, 40) + talk + steps(40, 120))
    assert found.type is not T.OUT_OF_MEMORY_ERROR
    assert found.category in (Category.NONE, Category.UNKNOWN)


def test_talk_does_not_hide_the_failure_behind_it(analyzer: LogAnalyzer) -> None:
    """What was survived is rejected; what came later is the cause."""
    talk = "CUDA out of memory is what you get when the batch is too large\n"
    found = diagnose(analyzer, steps(1, 40) + talk + steps(40, 120) + trace("KeyError: 'input_ids'"))
    assert found.type is T.KEY_ERROR


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"\n",
        b"\r\r\r",
        b"\0" * 4096,
        random.Random(5).randbytes(200_000),
        b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 64,
    ],
    ids=["empty", "newline", "returns", "zeros", "noise", "program"],
)
def test_what_is_no_log_is_unknown(analyzer: LogAnalyzer, log: bytes) -> None:
    """An empty or binary file gives an honest ``unknown``: no cause, no node, no action on a machine."""
    found = diagnose(analyzer, log)
    assert (found.outcome, found.category, found.type) == (Outcome.UNKNOWN, Category.UNKNOWN, T.UNKNOWN)
    assert (found.root_cause, found.nodes) == (None, ())
    assert found.confidence < 0.5
