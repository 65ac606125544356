"""Where the structure of a verdict leaves room for doubt, with the rules that ship."""

from dataclasses import replace

import pytest

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.review_reasons import review_reasons
from diagnoser.model import ASK_REASONS, AskReason, Diagnosis, Event, EventKind, Facts, Job
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from tests import accuracy_bars

STEPS = "".join(f"iteration {n}/900 | lm loss: {9 - n / 200:.4f} |\n" for n in range(1, 20))
TRACE = 'Traceback (most recent call last):\n  File "/srv/app/train.py", line 80, in <module>\n    main()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.\n"


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def doubted(analyzer: LogAnalyzer, log: str, *events: Event) -> tuple[AskReason, ...]:
    return analyzer.diagnose_with_node_logs(analyzer.evidence_of(log.encode()), Facts(Job("j"), 1, events)).doubts


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (STEPS + TRACE + OOM, ()),
        (STEPS + TRACE + "KeyError: 'mask'\n", ()),
        (STEPS + "zx81: the quilt does not fit\n", (AskReason.UNKNOWN,)),
        (STEPS + "training finished after 19 iterations\n", ()),
        (STEPS + "Done.\n", ()),
    ],
    ids=["message", "class with a type of its own", "nothing", "end", "done"],
)
def test_a_verdict_of_a_kind_that_is_mostly_right_is_in_no_doubt(
    analyzer: LogAnalyzer, log: str, expected: tuple[AskReason, ...]
) -> None:
    """A rule that knows the message or the class, and a run that says that it ended; not a cause that nobody knows."""
    assert doubted(analyzer, log) == expected


LOST = Diagnosis(Outcome.FAILED, Category.INFRASTRUCTURE, FailureType.GPU_LOST, 0.9, "rule:x")
KILLED = Diagnosis(Outcome.FAILED, Category.SCRIPT, FailureType.HOST_OUT_OF_MEMORY, 0.48, "heuristic:exit_signal")


@pytest.mark.parametrize(
    ("diagnosis", "expected"),
    [
        (replace(LOST, confidence=0.8), (AskReason.UNSURE,)),
        (replace(LOST, confidence=0.81), ()),
        (KILLED, ()),
        (replace(KILLED, decided_by="heuristic:exit_code"), (AskReason.UNSURE,)),
    ],
    ids=["low", "high", "a signal from nobody", "an exit code"],
)
def test_doubt_follows_from_how_often_such_verdicts_were_wrong(
    diagnosis: Diagnosis, expected: tuple[AskReason, ...]
) -> None:
    """Whatever decided, the measured confidence counts; no model reads who sent a signal in a log that does not say."""
    assert review_reasons(diagnosis) == expected


def test_what_the_scheduler_reports_is_no_guess(analyzer: LogAnalyzer) -> None:
    """An exit code of 0 settles that the run completed, and a failed one leaves the cause open."""
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=0)) == ()
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=1)) == (AskReason.UNKNOWN,)


def test_every_reason_has_its_words() -> None:
    """People and the model read the same closed list."""
    assert set(ASK_REASONS) == set(AskReason)
