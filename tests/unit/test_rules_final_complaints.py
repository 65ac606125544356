"""What a process complained of last, where no exit code is in the log."""

import pytest

from diagnoser.diagnosis import pipeline
from diagnoser.model import Facts
from tests import accuracy_bars

_STEPS = "".join(f"{rank}: round {number} of 40, risk 0.{90 - number}\n" for number in range(9) for rank in (0, 1))


@pytest.mark.parametrize(
    ("end", "type_", "rank"),
    [
        ("1: fit_hs: scheduler: window must not be empty\n", "configuration_error", 1),
        ("1: fit_hs: undefined weight\n1: CallStack (from HasCallStack):\n1:   error, called at F.hs:4:2\n", None, 1),
        ("1: tar: s.tar: Cannot open: No such file or directory\n1: tar: no way on\n", "file_not_found_error", 1),
    ],
)
def test_a_process_that_ends_with_a_complaint_has_failed(end: str, type_: str | None, rank: int) -> None:
    """The first line of what a program says in its name at its end is the cause, on the rank that printed it."""
    analyzer = accuracy_bars.load()
    log = (_STEPS + end + "0: round 9 of 40, risk 0.80\n").encode()
    diagnosis = pipeline.diagnose(analyzer.evidence_of(log), Facts(), analyzer.knowledge)
    assert diagnosis.root_cause is not None
    assert (diagnosis.root_cause.text, diagnosis.root_cause.rank) == (end.splitlines()[0], rank)
    assert type_ in (None, diagnosis.type)
    assert diagnosis.confidence < 0.8


@pytest.mark.parametrize(
    "end",
    [
        "1: fit_hs: window must not be empty\n1: round 9 of 40, risk 0.79\n",
        "1: sweep: best risk 0.80\n",
        "1: round: 9, no: 3\n",
    ],
)
def test_who_goes_on_or_does_not_complain_has_not_failed(end: str) -> None:
    """A complaint that the same process prints more after, and a name in front of figures, are no failure."""
    analyzer = accuracy_bars.load()
    diagnosis = pipeline.diagnose(analyzer.evidence_of((_STEPS + end).encode()), Facts(), analyzer.knowledge)
    assert diagnosis.outcome != "failed"
